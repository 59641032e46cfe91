"""The number that backward starts from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsim.errors import ModelError

LossFunction = Callable[[Any, Any], Any]
"""From a module's outputs and its batch to a loss."""


def call(model: Any, batch: Any) -> Any:
    """Return what a module makes of a batch: a mapping is its keyword arguments, a tuple or list its arguments."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, (list, tuple)) else model(batch)


def loss_of(outputs: Any, batch: Any, loss_function: LossFunction | None = None) -> Any:
    """Return the loss: the user's own function's, else the model's, else the mean of its first output in float32.

    Raises:
        ModelError: there is nothing that could be differentiated.
    """
    if loss_function is not None:
        return loss_function(outputs, batch)
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if loss is not None:
        return loss if loss.dim() == 0 else loss.mean()
    for tensor in _tensors(outputs):
        if tensor.is_floating_point():
            return tensor.float().mean()
    raise ModelError(f"a {type(outputs).__name__} holds no tensor to make a loss of: give a loss function in Python.")


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "is_floating_point"):
        yield value
