"""`optimizer_state`: the rules alone, for shapes that belong to no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memsim.errors import UsageError, shown
from memsim.model import ParameterSpec
from memsim.optimizers.registry import resolve_optimizer
from memsim.optimizers.state import OptimizerState, derive_state
from memsim.tensors import TensorSpec

ShapeAndDtype = tuple[Sequence[int], str]


def optimizer_state(
    optimizer: str, parameters: Mapping[str, ShapeAndDtype | ParameterSpec], **args: Any
) -> OptimizerState:
    """Return the state that an optimizer keeps for the given parameters.

    Args:
        optimizer: any optimizer name or class path that memsim knows.
        parameters: name to `(shape, dtype)`, for example `{"w": ((4097,), "float32")}`; or to a `ParameterSpec` where
            the rule depends on the module that owns the parameter.
        args: keyword arguments of the optimizer's class.

    Raises:
        UnknownNameError: no such optimizer, argument or dtype.
        UsageError: a shape that is none, or an argument of the wrong type.
    """
    if not isinstance(parameters, Mapping):
        raise UsageError(f"parameters must map names to (shape, dtype), not {shown(parameters)}.")
    specs = [_parameter(name, value) for name, value in parameters.items()]
    return derive_state(resolve_optimizer(optimizer, args), specs)


def _parameter(name: str, value: ShapeAndDtype | ParameterSpec) -> ParameterSpec:
    if isinstance(value, ParameterSpec):
        return value
    try:
        shape, dtype = value
        sizes = tuple(shape)
    except (TypeError, ValueError):
        raise UsageError(f"parameter {name!r}: give (shape, dtype), as in ((4096, 4096), 'bfloat16').") from None
    if any(type(size) is not int or size < 0 for size in sizes):
        raise UsageError(f"parameter {name!r}: {list(sizes)} is not a shape; sizes are whole numbers from 0 up.")
    return ParameterSpec(name=name, tensor=TensorSpec(sizes, str(dtype).removeprefix("torch.")))
