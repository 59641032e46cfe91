"""The tensors that functions of torch return, seen as they are made: what no module returns and no node keeps.

A `TorchFunctionMode` stands between Python code and torch's functions and changes nothing below them. (A
`TorchDispatchMode` would: some formulas of backward then avoid in-place operations, `areAnyTensorSubclassLike` of
aten/src/ATen/TensorSubclassLikeUtils.h @2.13.)
"""

from __future__ import annotations

from typing import Any

from .sightings import Sightings

_GETTER = "__get__"


def seeing_functions(torch: Any, sightings: Sightings) -> Any:
    """Return a context in which every function's results are seen."""

    class SeeingFunctions(torch.overrides.TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            name = getattr(func, "__name__", "")
            if name != _GETTER:  # of `.shape`, `.dtype`, ...: nothing is made
                sightings.made(result, name)
            return result

    return SeeingFunctions()
