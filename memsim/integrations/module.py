"""`verify` for any `torch.nn.Module`: real steps of the user's own objects against what was predicted of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from memsim.comparison import DEFAULT_TOLERANCE, Comparison
from memsim.errors import UsageError, shown
from memsim.integrations.own import MAX_STEPS, MeasuredSteps
from memsim.record.training.losses import LossFunction, call, loss_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRun:
    """How a module's own steps are run."""

    loss_fn: LossFunction | None = None
    """Loss from the module's outputs and the batch; `None`: the outputs' own `loss`, else the mean of the first one."""
    steps: int = 2
    """Optimizer steps."""
    device: Any = None
    """Where to; `None`: where the module is."""
    tolerance: float = DEFAULT_TOLERANCE
    """The largest difference that passes, as a fraction."""
    restore: bool = False
    """Whether weights, buffers and optimizer state are put back afterwards; a copy is kept on the CPU meanwhile."""

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or not 1 <= self.steps <= MAX_STEPS:
            raise UsageError(f"steps must be 1 to {MAX_STEPS}, not {shown(self.steps)}.")
        if self.loss_fn is not None and not callable(self.loss_fn):
            raise UsageError(f"loss_fn must be a function of outputs and batch, not {shown(self.loss_fn)}.")


def verify_module(model: Any, optimizer: Any, batch: Any, run: ModuleRun | None = None) -> Comparison:
    """Train a module for some steps and return what was measured beside what was predicted.

    The user's own objects are trained: their weights and optimizer state change unless `restore` is set. Memory that
    runs out is a result.

    Args:
        model: any `torch.nn.Module`, on the CPU or on the first CUDA device.
        optimizer: an optimizer over its parameters that memsim has a rule for.
        batch: its input: a mapping of keyword arguments, a tuple or list of arguments, or the one argument; on any
            device.
        run: loss, steps, device, tolerance.

    Raises:
        UnknownNameError: memsim has no rule for the optimizer.
        UsageError: another device than the optimizer's state is on, or one that cannot be watched.
        ModelError: nothing in the outputs can be differentiated.
    """
    import torch

    run = run or ModuleRun()
    if run.device is not None:
        _move(model, optimizer, torch.device(run.device))
    device = next((parameter.device for parameter in model.parameters()), None)
    steps = MeasuredSteps(model, optimizer, loop="plain")
    with _restored(model, optimizer) if run.restore else _kept():
        try:
            with steps:
                steps.prediction  # noqa: B018 -- an optimizer that is not known is told before anything runs
                for _ in range(run.steps):
                    placed = to_device(batch, device)
                    loss_of(call(model, placed), placed, run.loss_fn).backward()
                    optimizer.step()
                    optimizer.zero_grad()
        except torch.OutOfMemoryError:
            pass
    return steps.compare(tolerance=run.tolerance)


def to_device(value: Any, device: Any) -> Any:
    """Return a batch with every tensor on a device; containers are made anew."""
    if isinstance(value, Mapping):
        return {key: to_device(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_device(item, device) for item in value]
    return value.to(device) if hasattr(value, "to") else value


def _move(model: Any, optimizer: Any, device: Any) -> None:
    state = tensors_in(list(optimizer.state.values()))
    wrong = {
        str(t.device) for t in state if t.dim() and t.device.type != device.type
    }  # counts of steps stay on the CPU
    if wrong:
        raise UsageError(
            f"the optimizer's state is on {', '.join(sorted(wrong))} and cannot be moved to {device}: "
            "build a new optimizer after moving the model."
        )
    model.to(device)


@contextmanager
def _kept() -> Iterator[None]:
    yield


@contextmanager
def _restored(model: Any, optimizer: Any) -> Iterator[None]:
    """Put weights, buffers, gradients and optimizer state back at the end."""
    import torch

    owned = [*model.parameters(), *model.buffers()]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    state = {key: _same(entries) for key, entries in optimizer.state.items()}
    held = [*owned, *tensors_in([gradient for _, gradient in gradients]), *tensors_in(list(state.values()))]
    values = [(tensor, tensor.detach().to("cpu", copy=True)) for tensor in held]
    try:
        yield
    finally:
        optimizer.state.clear()
        optimizer.state.update(state)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for tensor, value in values:
                tensor.copy_(value)


def _same(value: Any) -> Any:
    """Return new containers of the same objects."""
    if isinstance(value, dict):
        return {key: _same(item) for key, item in value.items()}
    return [_same(item) for item in value] if isinstance(value, list) else value


def tensors_in(value: Any) -> Iterator[Any]:
    """Yield the tensors in nested mappings, lists and tuples."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "untyped_storage"):
        yield value
