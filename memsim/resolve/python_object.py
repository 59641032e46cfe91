"""Models that are Python objects already: a `torch.nn.Module` or a `transformers.PretrainedConfig`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from memsim.errors import UsageError
from memsim.model import ModelSpec, ParameterTable

_DTYPE_NOT_KNOWN = "The config states no dtype for the weights: float32 was taken; choose one with dtype=."


def is_module(model: object) -> bool:
    """Return whether `model` is a `torch.nn.Module`, without importing torch: who has one has imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def is_config(model: object) -> bool:
    """Return whether `model` is a configuration object of transformers, without importing transformers."""
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(model, transformers.PretrainedConfig)


def spec_from_module(module: Any, *, task: str | None, dtype: str, num_labels: int | None) -> ModelSpec:
    """Return the model that `module` is, tensor by tensor; another `dtype` casts as `module.to(dtype)` does.

    Raises:
        UsageError: a task or number of labels, which a built module already has.
    """
    from memsim.record.meta import table_from_module

    for option, value in (("task", task), ("num_labels", num_labels)):
        if value is not None:
            raise UsageError(f"{option}={value!r} cannot change a module that is already built; leave it out.")
    table = table_from_module(module)
    own = _main_dtype(table)
    config: Any = getattr(module, "config", None)
    name = type(module).__name__
    return ModelSpec(
        name=name,
        source=f"module:{name}",
        task="",
        model_class=name,
        dtype=own if dtype == "auto" else dtype,
        table=table if dtype == "auto" else cast_table(table, dtype),
        config=config.to_dict() if is_config(config) else {},
    )


def spec_from_config(config: Any, *, task: str | None, dtype: str, num_labels: int | None) -> ModelSpec:
    """Return the model that transformers builds from a configuration object.

    Raises:
        UnknownNameError: transformers has no such architecture.
        ModelError: the architecture has no such task, or no model can have the config's sizes.
    """
    from memsim.resolve.config_json import config_dtype
    from memsim.resolve.labels import build_with_labels

    facts: Mapping[str, Any] = config.to_dict()
    name = type(config).__name__
    stated = config_dtype(facts, name) if dtype == "auto" else dtype
    chosen = stated or "float32"
    built = build_with_labels(facts, task=task, dtype=chosen, num_labels=num_labels)
    return ModelSpec(
        name=config.name_or_path or name,
        source=f"config:{name}",
        task=built.task,
        model_class=built.model_class,
        dtype=chosen,
        table=built.table,
        config=facts,
        assumptions=() if stated else (_DTYPE_NOT_KNOWN,),
    )


def _main_dtype(table: ParameterTable) -> str:
    """Return the dtype of most floating-point tensors, else of most complex ones, else of most of any kind."""
    tensors = [p.tensor for p in table.unique] or [b.tensor for b in table.buffers]
    groups = (
        [t.dtype for t in tensors if t.is_floating_point],
        [t.dtype for t in tensors if t.dtype.startswith("complex")],
        [t.dtype for t in tensors],
    )
    dtypes = next((group for group in groups if group), ["float32"])
    return max(sorted(set(dtypes)), key=dtypes.count)


def cast_table(table: ParameterTable, dtype: str) -> ParameterTable:
    """Return the table with every floating-point parameter and buffer in `dtype`, as `module.to(dtype)` leaves them."""
    return ParameterTable(
        parameters=tuple(
            replace(p, tensor=p.tensor.with_dtype(dtype)) if p.tensor.is_floating_point else p for p in table.parameters
        ),
        buffers=tuple(
            replace(b, tensor=b.tensor.with_dtype(dtype)) if b.tensor.is_floating_point else b for b in table.buffers
        ),
    )
