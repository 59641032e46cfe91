"""The functions of torch that a model calls: what they return, and which of them depend on values.

A `TorchFunctionMode` stands between Python code and torch's functions and changes nothing below them. (A
`TorchDispatchMode` would: some formulas of backward then avoid in-place operations, `areAnyTensorSubclassLike` of
aten/src/ATen/TensorSubclassLikeUtils.h @2.13.)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .sightings import Sightings
from .values import LIMIT_BYTES

_GETTER = "__get__"
_NUMBER = re.compile(r"\.\d+")
_READING = frozenset({"item", "tolist", "__bool__", "__float__", "__int__", "__index__", "numpy", "cpu"})
"""Functions that bring values to the host."""
_CHOOSING = frozenset({"topk", "argmax", "argmin", "sort", "argsort", "multinomial", "bernoulli"})
"""Functions that make integers of floating-point numbers."""
_SIZING = frozenset({"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"})
"""Functions whose results have a size that values decide."""


class Doubts:
    """Where a model depends on values that an imaginary GPU does not compute, in sentences.

    Args:
        torch: the module.
        place: returns the path of the module whose `forward` is running; empty outside of any.
    """

    def __init__(self, torch: Any, place: Callable[[], str]) -> None:
        self._torch = torch
        self._place = place
        self._has_chosen = False
        self.notes: list[str] = []

    def called(self, name: str, args: Any) -> None:
        """Take notice of a call."""
        tensor = args[0] if args else None
        if not isinstance(tensor, self._torch.Tensor) or tensor.device.type != "cuda":
            return
        if name in _CHOOSING and tensor.is_floating_point():
            self._has_chosen = True
        elif name in _READING and (tensor.is_floating_point() or tensor.nbytes > LIMIT_BYTES):
            self._note(f"reads values back from the GPU ({name}): they were 0 there.")
        elif name in _SIZING and self._has_chosen:
            self._note(f"makes tensors whose size depends on values ({name}): all choices fell on the first.")

    def _note(self, what: str) -> None:
        module = _NUMBER.sub(".*", self._place())
        sentence = f"{module} {what}"
        if module and sentence not in self.notes:
            self.notes.append(sentence)


def seeing_functions(torch: Any, sightings: Sightings, doubts: Doubts) -> Any:
    """Return a context in which every function's call and results are seen."""

    class SeeingFunctions(torch.overrides.TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(func, "__name__", "")
            if name == _GETTER:  # of `.shape`, `.dtype`, ...: nothing is made
                return func(*args, **(kwargs or {}))
            doubts.called(name, args)
            result = func(*args, **(kwargs or {}))
            sightings.made(result, name)
            return result

    return SeeingFunctions()
