"""Compares what a real `step()` allocates and frees with memsim's events, one by one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import optimizer_oracle as oracle
import torch  # noqa: TC002  (one import style)
from storage_tracker import StorageEvent, StorageTracker

from memsim.optimizers import resolve_optimizer
from memsim.optimizers.step import step_events
from memsim.optimizers.step_event import StepEvent, peak_bytes


def track_step(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.nn.Parameter],
    step: Callable[[], Any] | None = None,
) -> StorageTracker:
    """Run one real step with the gradients that are there, and return what was seen."""
    known = [*parameters.values(), *(p.grad for p in parameters.values() if p.grad is not None)]
    known += oracle.state_tensors(optimizer)
    with StorageTracker(known) as tracker:
        (step or optimizer.step)()
    return tracker


def visible(events: list[StepEvent], device: str) -> list[StorageEvent]:
    """Return memsim's events as the tracker would see them, with the parameters on `device`."""
    places = {"device": device, "host": "cpu"}
    return [StorageEvent(event.action, event.tensor.nbytes, places[event.tensor.device]) for event in events]


def assert_step_equals(
    rule_name: str,
    args: Mapping[str, Any],
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.nn.Parameter],
    *,
    num_steps: int = 2,
) -> None:
    """Assert that each allocation and free of the first and the last of `num_steps` real steps is an event."""
    resolved = resolve_optimizer(rule_name, args)
    device = next(iter(parameters.values())).device.type
    for number in range(1, num_steps + 1):
        oracle.fill_gradients(parameters.values())
        tracker = track_step(optimizer, parameters)
        if number in (1, num_steps):
            first, on_cpu = number == 1, device == "cpu"
            events = step_events(resolved, oracle.specs(parameters), first_step=first, on_cpu=on_cpu)
            assert_same_events(tracker, events, device)


def assert_same_events(tracker: StorageTracker, events: list[StepEvent], device: str = "cpu") -> None:
    """Assert equal events, then equal peaks."""
    predicted = visible(events, device)
    for index, (real, ours) in enumerate(zip(tracker.events, predicted, strict=False)):
        assert real == ours, f"event {index}: real {_text(tracker.events, index)}, memsim {_text(predicted, index)}"
    assert len(predicted) == len(tracker.events)
    assert peak_bytes(events, device=None) == tracker.peak_bytes


def _text(events: list[StorageEvent], index: int) -> str:
    around = events[max(0, index - 4) : index + 5]
    return " ".join(f"{'+' if e.action == 'alloc' else '-'}{e.nbytes}@{e.device}" for e in around)


def allow_capturable_everywhere(monkeypatch: Any) -> None:
    """Let `capturable=True` run without an accelerator: PyTorch checks the device only to keep users from a mistake."""
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.optim.") and hasattr(module, "_get_capturable_supported_devices"):
            monkeypatch.setattr(module, "_get_capturable_supported_devices", lambda *_, **__: ["cpu", "meta"])
