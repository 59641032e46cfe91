"""From a memory snapshot to a `StepTrace`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from memsim.errors import MemsimError
from memsim.snapshot_file.holders import holders
from memsim.snapshot_file.phases import Moment, moments, tells_phases
from memsim.snapshot_file.snapshot import DeviceHistory, LoggedEvent, Snapshot
from memsim.snapshot_file.start import Start, state_before
from memsim.step import AllocatorSettings, AllocatorStats, Span, StepTrace, TraceDevice, TraceEvent
from memsim.step.blocks import BlockReplay
from memsim.step.trace import Action
from memsim.units import format_bytes

_ACTIONS: dict[str, Action] = {action: action for action in get_args(Action)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTrace:
    """What a snapshot tells of one device."""

    trace: StepTrace
    """Its history; `start` is what was there when it began, nothing if it is complete."""
    notes: tuple[str, ...]
    """What cannot be known from it, in sentences."""


def trace_of_snapshot(
    snapshot: Snapshot, *, device: int | None = None, gpu: TraceDevice | None = None
) -> SnapshotTrace:
    """Return the history of one device of a snapshot as a trace.

    Phases and steps are told by `moments`, holders by `holders`. `gpu` says what the file does not: on which GPU and
    with which torch it was written. The trace's `stats` are what its replay gives: peaks since the history began.

    Raises:
        UsageError: there is no such device, or there are several and none is named.
        MemsimError: the file holds no history, or one that does not lead to its segments.
    """
    history = snapshot.device(device)
    if not history.events:
        raise MemsimError(
            f"the snapshot holds no history of device {history.index}, only what was there in the end.\n"
            "Record one: torch.cuda.memory._record_memory_history() before the step, _dump_snapshot() after it."
        )
    start = state_before(history, snapshot.settings)
    events = tuple(_logged(history.events, moments(history.events, snapshot.annotations)))
    stats = _replayed(start, events, history, snapshot.settings)
    trace = StepTrace(
        device=gpu or TraceDevice(name="", total_bytes=0, compute_capability="", torch_version=""),
        settings=snapshot.settings,
        stats=stats,
        spans=tuple(_spans(events)),
        events=events,
        start=start.segments,
    )
    return SnapshotTrace(trace=trace, notes=tuple(_notes(snapshot, history, start)))


def _logged(events: Sequence[LoggedEvent], places: Sequence[Moment]) -> Iterator[TraceEvent]:
    for event, place, holder in zip(events, places, holders(events, places), strict=True):
        action = _ACTIONS.get(event.action)
        if action is not None:
            yield TraceEvent(
                action=action,
                address=event.address,
                nbytes=event.nbytes,
                stream=event.stream,
                step=place.step,
                phase=place.phase,
                holder=holder,
            )


def _replayed(
    start: Start, events: Iterable[TraceEvent], history: DeviceHistory, settings: AllocatorSettings
) -> AllocatorStats:
    """Return the totals of a history; its replay must end in the file's segments."""
    replay = BlockReplay(settings, start.segments)
    requested, allocated, reserved = replay.requested_bytes, replay.allocated_bytes, replay.reserved_bytes
    for event in events:
        replay.apply(event)
        requested = max(requested, replay.requested_bytes)
        allocated = max(allocated, replay.allocated_bytes)
        reserved = max(reserved, replay.reserved_bytes)
    mine = {(b.address, b.nbytes, b.state) for s in replay.segments() for b in s.in_order() if b.state != "inactive"}
    theirs = {(b.address, b.nbytes, b.state) for s in history.segments for b in s.blocks if b.state != "inactive"}
    if mine != theirs or replay.reserved_bytes != sum(segment.nbytes for segment in history.segments):
        raise MemsimError(
            f"the snapshot's history does not lead to its segments: {len(mine ^ theirs)} blocks differ in the end.\n"
            "Record it again without skip_actions, and write the file while recording is on."
        )
    return AllocatorStats(
        peak_requested_bytes=requested,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        allocated_bytes=replay.allocated_bytes,
        reserved_bytes=replay.reserved_bytes,
        num_alloc_retries=0,
        num_ooms=sum(event.action == "oom" for event in history.events),
    )


def _spans(events: Iterable[TraceEvent]) -> Iterator[Span]:
    before = None
    for index, event in enumerate(events):
        if (event.step, event.phase) != before:
            before = (event.step, event.phase)
            yield Span(step=event.step, phase=event.phase, event_index=index)


def _notes(snapshot: Snapshot, history: DeviceHistory, start: Start) -> Iterator[str]:
    if start.segments:
        yield (
            f"The history begins when {format_bytes(start.allocated_bytes)} were allocated; whose they were, and what "
            "was there before, is not in the file."
        )
    if start.num_uncertain:
        yield (
            f"{start.num_uncertain} blocks of that time may have been up to 1 MiB larger than counted, because PyTorch "
            "does not split off so little."
        )
    if not tells_phases(history.events):
        yield "The history was recorded without stacks, so forward and backward cannot be told apart."
    else:
        yield "Phases and categories are read off the code that ran and the time that blocks lived."
    others = [str(device.index) for device in snapshot.devices if not device.is_empty and device is not history]
    if others:
        yield f"The file also holds device {', '.join(others)}."
