"""Parameter tables of real PyTorch modules, and of models that transformers builds on the meta device.

Nothing is allocated and no weights are read. Remote code is never run (`memsim.record.architecture`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from memsim.errors import ModelError
from memsim.model import BufferSpec, ParameterSpec, ParameterTable
from memsim.record.architecture import construct, import_transformers
from memsim.tensors import TensorSpec

MAX_PARAMETERS = 10**15
"""A hundred times the largest model that anybody has announced."""
_FLOAT16 = ("float16",)
_HALF = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A model that transformers built on the meta device, as `from_pretrained(dtype=...)` would leave it."""

    model_class: str
    """Name of the transformers class."""
    task: str
    """A key of `memsim.config.TASKS`; empty where no auto class leads to this class."""
    table: ParameterTable
    """Every parameter and buffer."""


def table_from_module(module: Any) -> ParameterTable:
    """Return every parameter and buffer of a `torch.nn.Module`, in the order of `named_parameters()`.

    Names that share a parameter object point to the first of them through `tied_to`. The module may be real or on the
    meta device; only the public interface of `torch.nn.Module` is used.

    Raises:
        ModelError: a parameter or buffer of a lazy module has no shape yet.
    """
    owners = dict(module.named_modules(remove_duplicate=False))
    first_names: dict[int, str] = {}
    specs: dict[tuple[tuple[int, ...], str], TensorSpec] = {}
    parameters = []
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first = first_names.setdefault(id(parameter), name)
        parameters.append(
            ParameterSpec(
                name=name,
                tensor=_tensor_spec(name, parameter, specs),
                tied_to=None if first == name else first,
                requires_grad=bool(parameter.requires_grad),
                module_class=_module_class(owners[name.rpartition(".")[0]]),
            )
        )
    return ParameterTable(parameters=tuple(parameters), buffers=tuple(_buffers(module, owners, specs)))


def build_from_config(
    config: Mapping[str, Any], *, task: str | None, dtype: str, num_labels: int | None = None
) -> BuiltModel:
    """Return the table of the model that `config` (the content of a `config.json`, not trusted) describes.

    Args:
        config: needs `model_type`; everything else falls back to the configuration class's own defaults.
        task: key of `memsim.config.TASKS`, built through its auto class; `None` is the class that
            `architectures` names, and the base model where it names none.
        dtype: dtype of the weights. Tensors that `from_pretrained(dtype=...)` keeps in float32 are float32 here:
            those that the class itself creates in float32, those of `_keep_in_fp32_modules` (with float16) and
            of `_keep_in_fp32_modules_strict` (with float16 and bfloat16): modeling_utils.py:3844 and
            core_model_loading.py:1919 @transformers 5.24.
        num_labels: labels of a classification head; `None` is the configuration's own.

    Raises:
        MissingPackageError: torch or transformers is not installed.
        UnknownNameError: transformers has no such `model_type` or architecture.
        ModelError: the architecture does not have the task, or the configuration's sizes make no model.
    """
    import_transformers()
    import torch

    constructed = construct(config, task=task, dtype=dtype, num_labels=num_labels, creating=torch.device("meta"))
    model = constructed.model
    table = _keep_float32(table_from_module(model), float32_patterns(model, dtype))
    if not table.parameters:
        raise ModelError(
            f"{type(model).__name__} has no parameters with this configuration; choose a class with --task."
        )
    if table.num_parameters > MAX_PARAMETERS:
        raise ModelError(
            f"the {config['model_type']} configuration makes {table.num_parameters:,} parameters; at most "
            f"{MAX_PARAMETERS:,} are plausible. Check its sizes."
        )
    return BuiltModel(model_class=type(model).__name__, task=constructed.task, table=table)


def _tensor_spec(name: str, tensor: Any, specs: dict[tuple[tuple[int, ...], str], TensorSpec]) -> TensorSpec:
    if hasattr(tensor, "materialize"):  # UninitializedTensorMixin of torch.nn.parameter
        raise ModelError(
            f"{name} has no shape yet: a lazy module (torch.nn.LazyLinear and the like) gets it in its first forward.\n"
            "Run one forward with a real batch, then estimate."
        )
    key = (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
    return specs.setdefault(key, TensorSpec(*key))


def _buffers(
    module: Any, owners: Mapping[str, Any], specs: dict[tuple[tuple[int, ...], str], TensorSpec]
) -> Iterator[BufferSpec]:
    for name, buffer in module.named_buffers():
        owner, _, leaf = name.rpartition(".")
        persistent = leaf not in owners[owner]._non_persistent_buffers_set
        yield BufferSpec(name=name, tensor=_tensor_spec(name, buffer, specs), persistent=persistent)


def _module_class(owner: Any) -> str:
    for cls in type(owner).__mro__:
        # torch.nn.utils.parametrize makes a ParametrizedConv1d(Conv1d) on the fly: the layer is still a Conv1d.
        on_the_fly = cls.__name__.startswith("Parametrized")
        if cls.__module__.startswith("torch.nn") and cls.__name__ != "Module" and not on_the_fly:
            return cls.__name__
    return type(owner).__name__


def float32_patterns(model: Any, dtype: str) -> list[str]:
    """Return regular expressions of the names that `from_pretrained(dtype=...)` loads in float32."""
    names: set[str] = set()
    if dtype in _FLOAT16:
        names |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    if dtype in _HALF:
        names |= set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if hasattr(model, "_get_dtype_plan"):
        return [name.replace("*", ".*") for name in sorted(names)]
    # transformers 4.x compared whole parts of the dotted name (modeling_utils.py @4.45: `in param_name.split(".")`).
    return [rf"(^|\.){name}(\.|$)" for name in sorted(names)]


def _keep_float32(table: ParameterTable, patterns: list[str]) -> ParameterTable:
    if not patterns:
        return table
    kept = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))

    def in_float32(name: str, tensor: TensorSpec) -> TensorSpec:
        return tensor.with_dtype("float32") if tensor.is_floating_point and kept.search(name) else tensor

    # A tied name is not in the checkpoint: the first name decides for its storage.
    return ParameterTable(
        parameters=tuple(replace(p, tensor=in_float32(p.tied_to or p.name, p.tensor)) for p in table.parameters),
        buffers=tuple(replace(b, tensor=in_float32(b.name, b.tensor)) if b.persistent else b for b in table.buffers),
    )
