"""`CatalogEntry`: the facts of one model, and its parameter table for every task it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memsim.catalog.folding import KEPT_IN_FLOAT32, NUM_LABELS, Leaf, Node, Row, expand
from memsim.config import TASKS, WEIGHT_DTYPES
from memsim.errors import ModelError, NoLabelsError, UnknownNameError
from memsim.model import BufferSpec, ModelSpec, ParameterSpec, ParameterTable
from memsim.tensors import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogFile:
    """One parsed file of the catalog: all models of one `model_type`, and what their tables share."""

    models: Mapping[str, Mapping[str, Any]]
    """Facts and tables by id."""
    shared: Mapping[str, Node]
    """Subtrees that more than one table holds."""
    expanded: dict[int, list[Row]] = field(default_factory=dict)
    """What was expanded already; see `memsim.catalog.folding.expand`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A model that memsim knows without asking anybody."""

    id: str
    """Its id on the hub."""
    aliases: tuple[str, ...]
    """Other names, such as `gpt2`."""
    model_type: str
    """`model_type` of its `config.json`."""
    task: str
    """Key of `memsim.config.TASKS` of its own class."""
    model_class: str
    """Class that its `config.json` names."""
    tasks: tuple[str, ...]
    """Every task it has a table for."""
    dtype: str | None
    """Dtype of the checkpoint; `None` where no source states it."""
    config: Mapping[str, Any]
    """Its configuration as far as it differs from the defaults of its configuration class (nulls count), and its main
    sizes, defaults written out."""
    num_labels: int
    """Labels of a classification head when the user names none."""
    num_parameters: int
    """Elements of the unique parameters of its own class, as loaded from the checkpoint."""
    published_num_parameters: int | None
    """Parameters as somebody else published them."""
    published_match: str
    """How the published number relates to the counted one."""
    published_source: str
    """Where it was published."""
    confirmation: str
    """How far publication confirms the count."""
    source: str
    """Where the configuration was read."""
    other_source: str
    """A second source; empty where there is none."""
    note: str
    """What to know about the facts."""
    keys_not_read: tuple[str, ...]
    """Configuration keys that no source for this very model states."""
    assumptions: tuple[str, ...]
    """What is assumed about the model, in sentences for the user."""
    file: CatalogFile = field(repr=False, compare=False)
    """Where its tables are."""

    def model_spec(self, task: str | None = None, dtype: str = "auto", num_labels: int | None = None) -> ModelSpec:
        """Return the model built for `task`, as `from_pretrained(dtype=...)` gives it.

        Args:
            task: one of `tasks`; `None` is the model's own.
            dtype: dtype of the weights; `auto` is the checkpoint's, and float32 (with an assumption) where it is not
                known.
            num_labels: labels of a classification head; `None` is the configuration's own.

        Raises:
            UnknownNameError: no such task or dtype.
            ModelError: the architecture does not have the task, or cannot have that number of labels.
            UsageError: its class has no head with a number of labels.
        """
        table = self._table(self._checked_task(task))
        if num_labels not in (None, self.num_labels) and table.get("num_labels_fixed"):
            raise ModelError(f"{table['class']} of {self.id} takes {self.num_labels} labels only, not {num_labels}.")
        if num_labels is not None and not (table.get("num_labels_fixed") or self._takes_labels(table)):
            having = [t for t in self.tasks if self._takes_labels(self._table(t))]
            raise NoLabelsError(f"{table['class']} of {self.id}", num_labels, having)
        if dtype not in WEIGHT_DTYPES:
            raise UnknownNameError("dtype", dtype, WEIGHT_DTYPES, f"Allowed: {', '.join(WEIGHT_DTYPES)}.")
        weights = (self.dtype or "float32") if dtype == "auto" else dtype
        return ModelSpec(
            name=self.id,
            source=f"catalog: {self.source}",
            task=task or self.task,
            model_class=table["class"],
            dtype=weights,
            table=_parameter_table(table, self.file, weights, num_labels or self.num_labels),
            config=self.config,
            assumptions=self.assumptions + (self._dtype_assumption() if dtype == "auto" else ()),
        )

    def _checked_task(self, task: str | None) -> str:
        if task is None:
            return self.task
        if task not in TASKS:
            raise UnknownNameError("task", task, TASKS, f"Tasks: {', '.join(TASKS)}.")
        if task not in self.tasks:
            raise ModelError(f"{self.id} has no {task} model in transformers. It has: {', '.join(self.tasks)}.")
        return task

    def _table(self, task: str) -> Mapping[str, Any]:
        table = self.file.models[self.id]["tables"][task]
        found: Mapping[str, Any] = self.file.shared[table[1:]] if isinstance(table, str) else table
        return found

    def _takes_labels(self, table: Mapping[str, Any]) -> bool:
        rows = expand(table["parameters"], self.file.shared, self.file.expanded)
        return any(NUM_LABELS in leaf.shape for _, leaf in rows)

    def _dtype_assumption(self) -> tuple[str, ...]:
        if self.dtype is not None:
            return ()
        return (
            f"The dtype of the checkpoint of {self.id} is not known: float32 weights (say otherwise with --dtype).",
        )


def _parameter_table(table: Mapping[str, Node], file: CatalogFile, dtype: str, num_labels: int) -> ParameterTable:
    specs: dict[str, TensorSpec] = {}
    parameters = []
    for name, leaf in expand(table["parameters"], file.shared, file.expanded):
        specs[name] = tensor = specs[leaf.tied_to] if leaf.tied_to else _tensor_spec(leaf, dtype, num_labels)
        parameters.append(
            ParameterSpec(
                name=name,
                tensor=tensor,
                tied_to=leaf.tied_to,
                requires_grad=not leaf.frozen,
                module_class=leaf.module_class,
            )
        )
    buffers = tuple(
        BufferSpec(name=name, tensor=_tensor_spec(leaf, dtype, num_labels), persistent=not leaf.transient)
        for name, leaf in expand(table["buffers"], file.shared, file.expanded)
    )
    return ParameterTable(parameters=tuple(parameters), buffers=buffers)


_specs: dict[tuple[tuple[int | str, ...], str], TensorSpec] = {}


def _tensor_spec(leaf: Leaf, dtype: str, num_labels: int) -> TensorSpec:
    if leaf.dtype in KEPT_IN_FLOAT32:
        dtype = "float32" if dtype in KEPT_IN_FLOAT32[leaf.dtype] else dtype
    elif leaf.dtype:
        dtype = leaf.dtype
    known = _specs.get((leaf.shape, dtype))
    if known is not None:
        return known
    shape = tuple(num_labels if size == NUM_LABELS else int(size) for size in leaf.shape)
    spec = TensorSpec(shape, dtype)
    if NUM_LABELS not in leaf.shape:
        _specs[leaf.shape, dtype] = spec
    return spec
