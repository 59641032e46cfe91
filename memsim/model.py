"""What a model is made of: parameters and buffers with shapes, dtypes, tying and owners."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from memsim.errors import UsageError
from memsim.tensors import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSpec:
    """One name of `module.named_parameters(remove_duplicate=False)`."""

    name: str
    """Full dotted name, as in `state_dict`."""
    tensor: TensorSpec
    """Shape, dtype and device."""
    tied_to: str | None = None
    """Name of the first parameter with the same storage; `None` where this is the first (or only) one."""
    requires_grad: bool = True
    """Whether a gradient and optimizer state exist for it."""
    module_class: str = ""
    """`torch.nn` class that owns it (`Linear`, `Embedding`, ...; the nearest `torch.nn` ancestor), else the model's own
    class name (`LlamaRMSNorm`); empty where it is not known."""
    tied_classes: tuple[str, ...] = ()
    """The same of the modules that hold it under its other names; `ParameterTable.unique` fills it in."""

    @property
    def is_embedding(self) -> bool:
        """Whether a `torch.nn.Embedding` holds it under any of its names."""
        return self.module_class == "Embedding" or "Embedding" in self.tied_classes


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSpec:
    """One name of `module.named_buffers()`."""

    name: str
    """Full dotted name."""
    tensor: TensorSpec
    """Shape, dtype and device."""
    persistent: bool = True
    """Whether it is in `state_dict`; it takes memory either way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterTable:
    """Every parameter and buffer of a module, in the order of `named_parameters()`."""

    parameters: tuple[ParameterSpec, ...]
    """All names, tied ones too."""
    buffers: tuple[BufferSpec, ...] = ()
    """All buffers, persistent or not."""

    @property
    def unique(self) -> tuple[ParameterSpec, ...]:
        """Parameters with a storage of their own: what `named_parameters()` yields by default."""
        classes: dict[str, tuple[str, ...]] = {}
        for p in self.parameters:
            if p.tied_to is not None:
                classes[p.tied_to] = (*classes.get(p.tied_to, ()), p.module_class)
        return tuple(
            replace(p, tied_classes=classes[p.name]) if p.name in classes else p
            for p in self.parameters
            if p.tied_to is None
        )

    @property
    def trainable(self) -> tuple[ParameterSpec, ...]:
        """Unique parameters that require a gradient: what an optimizer gets."""
        return tuple(p for p in self.unique if p.requires_grad)

    @property
    def num_parameters(self) -> int:
        """Elements of all unique parameters."""
        return sum(p.tensor.numel for p in self.unique)

    @property
    def num_trainable_parameters(self) -> int:
        """Elements of the unique parameters that require a gradient."""
        return sum(p.tensor.numel for p in self.trainable)

    @property
    def num_parameter_tensors(self) -> int:
        """Number of unique parameters."""
        return sum(p.tied_to is None for p in self.parameters)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all unique parameters."""
        return sum(p.tensor.nbytes for p in self.unique)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(b.tensor.nbytes for b in self.buffers)

    def freeze(self, patterns: Iterable[str]) -> ParameterTable:
        """Return the table with `requires_grad=False` for every storage that one of the `patterns` names.

        A pattern is a shell-style wildcard over the full name (`*.embeddings.*`, `model.layers.[0-3].*`) or a module's
        name, which covers all below it (`vit.encoder`). A storage with several names is frozen by any of them.

        Raises:
            UsageError: a pattern matches no parameter.
        """
        frozen = {name for pattern in patterns for name in self.covered(pattern, "--freeze")}
        if not frozen:
            return self
        return replace(
            self,
            parameters=tuple(
                replace(p, requires_grad=False) if (p.tied_to or p.name) in frozen else p for p in self.parameters
            ),
        )

    def covered(self, pattern: str, asked_by: str) -> set[str]:
        """Return the names of the storages that a pattern covers; see `freeze`.

        Raises:
            UsageError: it covers none; `asked_by` says which option it came from.
        """
        matched = {p.tied_to or p.name for p in self.parameters if _covers(pattern, p.name)}
        if matched:
            return matched
        first = f" (the first is {self.parameters[0].name!r})" if self.parameters else ""
        raise UsageError(
            f"{asked_by} {pattern!r} matches none of the {len(self.parameters)} parameter names{first}. "
            "Give a module's name or a wildcard such as '*embed*'."
        )


def _covers(pattern: str, name: str) -> bool:
    return name == pattern or name.startswith(pattern + ".") or fnmatch.fnmatchcase(name, pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A resolved model: where it came from and what it is made of."""

    name: str
    """Catalog or hub id, folder, or the class of a Python object."""
    source: str
    """Where the facts come from: `catalog`, `hub`, `folder`, `module` or `config`, with the detail after a colon."""
    task: str
    """Task of the built class, as in `--task` (`causal-lm`, `sequence-classification`, ...); empty if not known."""
    model_class: str
    """Class whose parameters these are; empty if not known."""
    dtype: str
    """Dtype of the floating-point weights; single tensors may keep another (see the table)."""
    table: ParameterTable
    """Every parameter and buffer."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Facts of the model's `config.json` as far as they are known."""
    assumptions: tuple[str, ...] = ()
    """What was assumed on the way, in sentences for the user."""
