"""`Timeline`: a trace as a curve, in as many moments as a picture has room for."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass

from memsim.ledger import Phase
from memsim.step.blocks import replay_of
from memsim.step.peaks import totals_at_start
from memsim.step.trace import StepTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A stretch of events, shown by the one after which most was allocated."""

    first_event: int
    """Index of the first event of the stretch; it lasts until that of the next moment."""
    event_index: int
    """The event that is shown; the first of equals."""
    allocated_bytes: int
    """Bytes of live blocks after it."""
    by_category: Mapping[str, int]
    """The same per category; they add up to it where every block has a holder."""
    reserved_bytes: int
    """Most that the allocator held of the device in this stretch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A phase as a range of events."""

    step: int
    """Training step, from 1."""
    phase: Phase
    """The phase."""
    first_event: int
    """Index of its first event."""
    end_event: int
    """Index of the first event that is no longer in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A trace over its events."""

    num_events: int
    """Events of the trace."""
    moments: tuple[Moment, ...]
    """In order; together they cover every event."""
    stretches: tuple[Stretch, ...]
    """Every phase that has an event, in order."""

    @property
    def peak(self) -> Moment:
        """The moment with most allocated bytes, the first of equals; there must be one."""
        return max(self.moments, key=lambda moment: moment.allocated_bytes)

    @property
    def reserved_peak_bytes(self) -> int:
        """Most bytes that the allocator held of the device."""
        return max((moment.reserved_bytes for moment in self.moments), default=0)


def timeline_of(trace: StepTrace, num_moments: int) -> Timeline:
    """Return a trace in at most `num_moments` moments of nearly equally many events.

    Raises:
        MemsimError: the trace is not whole.
    """
    replay = replay_of(trace)
    num_events = len(trace.events)
    num = min(num_moments, num_events)
    totals: dict[str, int] = totals_at_start(trace)
    moments: list[Moment] = []
    for place in range(num):
        first, end = place * num_events // num, (place + 1) * num_events // num
        most, shown, categories, reserved = -1, first, {}, 0
        for index in range(first, end):
            event = trace.events[index]
            block = replay.apply(event)
            if block is not None and event.holder is not None and event.action != "free_completed":
                totals[event.holder.category.value] += block.nbytes if event.action == "alloc" else -block.nbytes
            if replay.allocated_bytes > most:
                most, shown, categories = replay.allocated_bytes, index, totals.copy()
            reserved = max(reserved, replay.reserved_bytes)
        moments.append(
            Moment(
                first_event=first,
                event_index=shown,
                allocated_bytes=most,
                by_category=dict(categories),
                reserved_bytes=reserved,
            )
        )
    return Timeline(num_events=num_events, moments=tuple(moments), stretches=_stretches(trace))


def _stretches(trace: StepTrace) -> tuple[Stretch, ...]:
    ends = (*(span.event_index for span in trace.spans[1:]), len(trace.events))
    return tuple(
        Stretch(step=span.step, phase=span.phase, first_event=span.event_index, end_event=end)
        for span, end in zip(trace.spans, ends, strict=False)  # no span has no end
        if end > span.event_index
    )


def running_bytes(trace: StepTrace) -> tuple[array[int], array[int]]:
    """Return the allocated and the reserved bytes after each event.

    Raises:
        MemsimError: the trace is not whole.
    """
    replay = replay_of(trace)
    allocated, reserved = array("q"), array("q")
    for event in trace.events:
        replay.apply(event)
        allocated.append(replay.allocated_bytes)
        reserved.append(replay.reserved_bytes)
    return allocated, reserved
