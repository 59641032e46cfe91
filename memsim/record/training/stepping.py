"""Backward and step as the optimizer at hand wants them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

LEARNING_RATE = 1e-3
"""Of optimizers that are told at every step; no byte depends on it."""
_SECOND_ORDER = frozenset(["AdaHessian", "Adahessian", "SophiaH"])
"""Classes that differentiate the gradients: they ask for `create_graph=True` in backward."""
_ASK_FOR_CLOSURE = frozenset(["AliG", "BSAM"])
"""Classes of pytorch_optimizer that raise NoClosureError although the argument has a default."""


def backward(optimizer: Any, loss: Any) -> None:
    """Run backward: plain, with a graph of the gradients, or with the update inside (LOMO)."""
    if updates_in_backward(optimizer):
        optimizer.fused_backward(loss, LEARNING_RATE)
    else:
        loss.backward(**backward_options(optimizer))


def backward_options(optimizer: Any) -> dict[str, Any]:
    """Return what `loss.backward` is given for this optimizer."""
    return {"create_graph": True} if type(optimizer).__name__ in _SECOND_ORDER else {}


def step(optimizer: Any, again: Callable[[], Any], *, through: Any = None) -> None:
    """Step an optimizer.

    Args:
        optimizer: what trains.
        again: runs forward and backward once more and returns the loss, for classes that ask for that.
        through: the optimizer as Accelerate wraps it; `None` where nothing does.
    """
    if updates_in_backward(optimizer):
        return
    closure = (again,) if _asks_for_closure(optimizer) else ()
    (optimizer if through is None else through).step(*closure)


def begin(optimizer: Any) -> None:
    """Tell an optimizer that training begins, where it wants to be told (schedule-free ones)."""
    if callable(getattr(optimizer, "train", None)):
        optimizer.train()


def updates_in_backward(optimizer: Any) -> bool:
    """Return whether the optimizer runs backward itself."""
    return hasattr(optimizer, "fused_backward")


def _asks_for_closure(optimizer: Any) -> bool:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    required = closure is not None and closure.default is inspect.Parameter.empty
    return required or type(optimizer).__name__ in _ASK_FOR_CLOSURE
