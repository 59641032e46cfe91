"""Where a trace peaks, and whose memory that was."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from memsim.ledger import Category, Phase
from memsim.step.blocks import Block, Replay, replay_of
from memsim.step.trace import Holder, Span, StepTrace

OUTSIDE = "(outside of any module)"
"""Where memory belongs that no module's `forward` made and no module owns."""

BACKWARD = "(backward)"
"""Where memory belongs that autograd's own threads made: they have no Python code, so no line and no module."""

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeak:
    """The memory of one phase of one step."""

    step: int
    """Training step, from 1."""
    phase: Phase
    """The phase."""
    peak_allocated_bytes: int
    """Most that live tensors took, rounded to blocks."""
    end_allocated_bytes: int
    """The same when the phase ended."""
    peak_reserved_bytes: int
    """Most that the allocator held of the device."""
    by_category: dict[str, int]
    """Allocated bytes per category at the phase's peak; they add up to it."""
    end_by_category: dict[str, int] = field(default_factory=dict)
    """The same when the phase ended; empty in a result that was saved without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTensor:
    """One block that was alive at the peak."""

    allocated_bytes: int
    """Bytes of its block."""
    requested_bytes: int
    """Bytes of the tensor."""
    holder: Holder
    """What it was for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleMemory:
    """What modules of one kind held at the peak."""

    module: str
    """Path with the numbers of equal layers as `*`."""
    num_modules: int
    """How many modules that stands for."""
    allocated_bytes: int
    """Bytes of their parameters, gradients, state and of what their `forward` made."""
    by_category: dict[str, int]
    """The same per category."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """A trace, replayed."""

    peak_requested_bytes: int
    """Most bytes that tensors asked for at once."""
    peak_allocated_bytes: int
    """Most bytes of blocks at once."""
    peak_reserved_bytes: int
    """Most bytes of segments at once."""
    step: int
    """Step of the peak of allocated bytes."""
    phase: Phase
    """Phase of the peak of allocated bytes."""
    event_index: int
    """Index of the event that made it; -1 if nothing was allocated."""
    phases: tuple[PhasePeak, ...]
    """Every phase of every step, in the order in which they began."""
    held: tuple[HeldTensor, ...]
    """Everything alive at the peak, largest first."""


@dataclass(slots=True)
class _Running:
    """A phase while it is replayed."""

    peak: int = -1
    end: int = 0
    reserved: int = 0
    by_category: dict[str, int] | None = None
    end_by_category: dict[str, int] | None = None


def occupancy(trace: StepTrace) -> Occupancy:
    """Replay a trace and return its peaks.

    Raises:
        MemsimError: the trace is not whole.
    """
    replay = replay_of(trace)
    running: dict[tuple[int, Phase], _Running] = defaultdict(_Running)
    totals = totals_at_start(trace)
    peak_requested, peak_reserved = replay.requested_bytes, replay.reserved_bytes
    peak, peak_index = replay.allocated_bytes, -1
    begun = 0
    before = _Running()
    for index, event in enumerate(trace.events):
        while begun < len(trace.spans) and trace.spans[begun].event_index <= index:
            _begin(running, trace.spans[begun], replay, totals)
            begun += 1
        state = running[event.step, event.phase]
        if state is not before:
            before.end_by_category, before = dict(totals), state
        block = replay.apply(event)
        if block is not None and event.holder is not None and event.action != "free_completed":
            sign = 1 if event.action == "alloc" else -1
            totals[event.holder.category.value] += sign * block.nbytes
        allocated = replay.allocated_bytes
        if allocated > peak:
            peak, peak_index = allocated, index
        peak_requested = max(peak_requested, replay.requested_bytes)
        peak_reserved = max(peak_reserved, replay.reserved_bytes)
        state.end = allocated
        state.reserved = max(state.reserved, replay.reserved_bytes)
        if allocated > state.peak:
            state.peak, state.by_category = allocated, dict(totals)
    before.end_by_category = dict(totals)
    for span in trace.spans[begun:]:
        _begin(running, span, replay, totals)
    at_peak = trace.events[peak_index] if peak_index >= 0 else None
    return Occupancy(
        peak_requested_bytes=peak_requested,
        peak_allocated_bytes=peak,
        peak_reserved_bytes=peak_reserved,
        step=at_peak.step if at_peak else 1,
        phase=at_peak.phase if at_peak else Phase.LOAD,
        event_index=peak_index,
        phases=tuple(_phase_peak(step, phase, state) for (step, phase), state in running.items()),
        held=held_at(trace, peak_index),
    )


def totals_at_start(trace: StepTrace) -> defaultdict[str, int]:
    """Return the allocated bytes of each category before the first event."""
    return defaultdict(int, by_category(held_at(trace, -1)))


def _begin(running: dict[tuple[int, Phase], _Running], span: Span, replay: Replay, totals: dict[str, int]) -> None:
    """Start a phase with what is there already."""
    state = running[span.step, span.phase]
    state.end_by_category = dict(totals)
    state.end, state.reserved = replay.allocated_bytes, max(state.reserved, replay.reserved_bytes)
    if replay.allocated_bytes > state.peak:
        state.peak, state.by_category = replay.allocated_bytes, dict(totals)


def _phase_peak(step: int, phase: Phase, state: _Running) -> PhasePeak:
    return PhasePeak(
        step=step,
        phase=phase,
        peak_allocated_bytes=state.peak,
        end_allocated_bytes=state.end,
        peak_reserved_bytes=state.reserved,
        by_category=_largest_first(state.by_category or {}),
        end_by_category=_largest_first(state.end_by_category or {}),
    )


def _largest_first(totals: Mapping[str, int]) -> dict[str, int]:
    return {name: nbytes for name, nbytes in sorted(totals.items(), key=lambda item: -item[1]) if nbytes}


def held_at(trace: StepTrace, event_index: int) -> tuple[HeldTensor, ...]:
    """Return everything that is alive after an event, or with -1 before the first, largest first."""
    replay = replay_of(trace)
    for event in trace.events[: event_index + 1]:
        replay.apply(event)
    tensors = [tensor for block in replay.live_blocks() if (tensor := _held_tensor(block)) is not None]
    return tuple(sorted(tensors, key=lambda tensor: -tensor.allocated_bytes))


def _held_tensor(block: Block) -> HeldTensor | None:
    if block.event is None or block.event.holder is None:
        return None
    return HeldTensor(allocated_bytes=block.nbytes, requested_bytes=block.requested_bytes, holder=block.event.holder)


def by_category(held: Iterable[HeldTensor]) -> dict[str, int]:
    """Return the allocated bytes of each category, largest first."""
    totals: Counter[str] = Counter()
    for tensor in held:
        totals[tensor.holder.category.value] += tensor.allocated_bytes
    return dict(totals.most_common())


def by_module(held: Iterable[HeldTensor]) -> tuple[ModuleMemory, ...]:
    """Return what each kind of module holds, equal layers folded into one, the largest first.

    A path is cut one name after its first number: `h.3.mlp.0` counts for `h.*.mlp`.
    """
    modules: dict[str, set[str]] = defaultdict(set)
    categories: dict[str, Counter[str]] = defaultdict(Counter)
    for tensor in held:
        path = _cut(tensor.holder.module) or _nowhere(tensor.holder)
        folded = folded_module(path)
        modules[folded].add(path)
        categories[folded][tensor.holder.category.value] += tensor.allocated_bytes
    rows = [
        ModuleMemory(
            module=folded,
            num_modules=len(modules[folded]),
            allocated_bytes=sum(counts.values()),
            by_category=dict(counts.most_common()),
        )
        for folded, counts in categories.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.allocated_bytes, row.module)))


def folded_module(path: str) -> str:
    """Return a module's path with the numbers of equal layers as `*`."""
    return _NUMBER.sub("*", path)


def _nowhere(holder: Holder) -> str:
    unknown = holder.category is Category.TEMPORARY and not holder.library_line
    return BACKWARD if unknown else OUTSIDE


def _cut(path: str) -> str:
    parts = path.split(".")
    first = next((index for index, part in enumerate(parts) if part.isdigit()), None)
    return path if first is None else ".".join(parts[: first + 2])
