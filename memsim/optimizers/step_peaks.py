"""How much `step()` holds at its worst moment, worked out when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from memsim.optimizers.grouping import Assignment
from memsim.optimizers.step import group_step_events, step_source
from memsim.optimizers.step_event import peak_bytes


@dataclass(frozen=True)
class StepPeaks:
    """The peaks of one optimizer step over all parts of an assignment, one after the other."""

    parts: Assignment
    """Every optimizer with its parameters."""

    @cached_property
    def first_step_peak_bytes(self) -> int:
        """Most bytes on the device above what the step finds, when it creates the state."""
        return peak_bytes(group_step_events(self._trained(), first_step=True))

    @cached_property
    def later_step_peak_bytes(self) -> int:
        """Most bytes of temporaries on the device in every later step."""
        return peak_bytes(group_step_events(self._trained(), first_step=False))

    def unmodelled(self) -> Iterator[tuple[str, str]]:
        """Yield the name of every optimizer whose step is not known, and why."""
        for optimizer, parameters in self._trained():
            source = step_source(optimizer, parameters)
            if source.rule is None:
                yield optimizer.name, source.reason

    def _trained(self) -> Assignment:
        parts = ((optimizer, [p for p in parameters if p.requires_grad]) for optimizer, parameters in self.parts)
        return [(optimizer, parameters) for optimizer, parameters in parts if parameters]
