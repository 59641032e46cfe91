"""`StepEvent`: what `step()` allocates or frees, and the peak of a list of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from memsim.tensors import Device, TensorSpec

StepCategory = Literal["temporary", "optimizer_state"]


class StepEvent(NamedTuple):
    """One allocation, or its end."""

    action: Literal["alloc", "free"]
    key: int
    """The same for an allocation and its free; nothing else in the list has it."""
    tensor: TensorSpec
    """What is allocated; `device="host"` is CPU memory, `device` the parameters' own device."""
    category: StepCategory
    """State outlives the step. A free without an allocation is of state from an earlier step, which LBFGS replaces."""
    parameter: str
    """The parameter that it belongs to; empty where there is none."""
    name: str
    """The state entry's name, the variable's in the optimizer's code, or the operation's."""


def peak_bytes(
    events: Iterable[StepEvent],
    *,
    device: Device | None = "device",
    category: StepCategory | None = None,
) -> int:
    """Return the most bytes alive at once above the start.

    Args:
        events: of one step.
        device: which memory to count; `None` counts all.
        category: what to count; `None` counts temporaries and created state together.
    """
    live = peak = 0
    for event in events:
        if device not in (None, event.tensor.device) or category not in (None, event.category):
            continue
        if event.action == "alloc":
            live += event.tensor.nbytes
            peak = max(peak, live)
        else:
            live -= event.tensor.nbytes
    return peak
