"""A script through the caching allocator: what was held when, and by whom."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import cast

from memsim.allocator import AllocatorConfig, CachingAllocator, DeviceMemory, DeviceOutOfMemory
from memsim.ledger import Category, Phase
from memsim.simulation.script import EMPTY_CACHE, Request, Script
from memsim.step.held import Held, Peak, held
from memsim.step.peaks import HeldTensor, PhasePeak
from memsim.step.trace import (
    Action,
    AllocatorSettings,
    AllocatorStats,
    Holder,
    OutOfMemory,
    Span,
    StepTrace,
    TraceDevice,
    TraceEvent,
)
from memsim.step.why import why


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The memory of a script."""

    peak: Peak
    """The most memory; `device_bytes` is reserved memory, without the CUDA context."""
    held: Held
    """Whose it was: at the peak, or when memory ran out."""
    why: str
    """Where the peak is and what makes it, in a sentence."""
    phases: tuple[PhasePeak, ...]
    """Every phase of every step, in order."""
    oom: OutOfMemory | None
    """The request that failed; the script ends there."""
    num_retries: int
    """How often cached memory had to be given back before an allocation succeeded."""
    trace: StepTrace | None
    """Every event of the allocator; `None` where they were not asked for."""


def replay(
    script: Script,
    device: TraceDevice,
    settings: AllocatorConfig,
    *,
    context_bytes: int = 0,
    keep_events: bool = False,
) -> Simulation:
    """Make every request of a script to a fresh allocator, and say what was held.

    Args:
        script: a run.
        device: its memory, and the torch whose allocator it is.
        settings: of the allocator.
        context_bytes: what of the device's memory is taken from the start.
        keep_events: whether the result has every event.
    """
    return _Replay(script, device, settings, context_bytes, keep_events=keep_events).run()


_OF_BLOCKS = ("alloc", "free_requested", "free_completed", "oom")


@dataclass(slots=True)
class _Running:
    """A phase while it is replayed."""

    peak: int = -1
    by_category: dict[Category, int] = field(default_factory=dict)
    end: int = 0
    end_by_category: dict[Category, int] = field(default_factory=dict)
    reserved: int = 0


class _Replay:
    """The run so far."""

    def __init__(
        self,
        script: Script,
        device: TraceDevice,
        settings: AllocatorConfig,
        context_bytes: int,
        *,
        keep_events: bool,
    ) -> None:
        self.script = script
        self.device = device
        self.events: list[TraceEvent] | None = [] if keep_events else None
        self.allocator = CachingAllocator(
            settings,
            total_bytes=device.total_bytes,
            torch_version=device.torch_version,
            driver=DeviceMemory(device.total_bytes, outside_bytes=context_bytes),
            sink=self._note if keep_events else None,
        )
        self.span = script.spans[0]
        self.spans: list[Span] = []
        """The phases so far, as indices into `events`."""
        self.holder: Holder | None = None
        self.addresses = [0] * script.num_keys
        self.blocks = [0] * script.num_keys
        """Bytes of every block that was handed out."""
        self.holders: list[Holder | None] = [None] * script.num_keys
        self.totals: dict[Category, int] = defaultdict(int)
        self.running: dict[tuple[int, Phase], _Running] = defaultdict(_Running)
        self.peak, self.peak_index = 0, -1
        self.oom: OutOfMemory | None = None

    def run(self) -> Simulation:
        requests, spans = self.script.requests, self.script.spans
        ends = [*(span.event_index for span in spans[1:]), len(requests)]
        done = 0
        for span, end in zip(spans, ends, strict=True):
            done = self._phase(span, end)
            if self.oom is not None:
                break
        return self._result(done)

    def _phase(self, span: Span, end: int) -> int:
        """Make the requests of one phase; return how many requests were made in all."""
        self.span = span
        if self.events is not None:
            self.spans.append(replace(span, event_index=len(self.events)))
        state = self.running[span.step, span.phase]
        allocator, totals, requests = self.allocator, self.totals, self.script.requests
        blocks, addresses, holders = self.blocks, self.addresses, self.holders
        self._look(state)
        index = span.event_index
        for index in range(span.event_index, end):
            key, nbytes, holder = requests[index]
            before = allocator.allocated_bytes
            if nbytes:
                holders[key] = self.holder = holder
                try:
                    addresses[key] = allocator.malloc(nbytes)
                except DeviceOutOfMemory as error:
                    self.oom = self._out_of_memory(error)
                    break
                allocated = allocator.allocated_bytes
                blocks[key] = allocated - before
                totals[_category(holder)] += allocated - before
                if allocated > state.peak:
                    state.peak, state.by_category = allocated, totals.copy()
                    if allocated > self.peak:
                        self.peak, self.peak_index = allocated, index
                state.reserved = max(state.reserved, allocator.reserved_bytes)
            elif key == EMPTY_CACHE:
                allocator.empty_cache()
            else:
                self.holder = holders[key]
                allocator.free(addresses[key])
                totals[_category(self.holder)] -= blocks[key]
        else:
            index = end
        state.end, state.end_by_category = allocator.allocated_bytes, totals.copy()
        return index

    def _note(self, action: str, address: int, nbytes: int, stream: int) -> None:
        """Take an event of the allocator; those of blocks have the holder of the request that is being made."""
        assert self.events is not None, "events are only told where they are kept"
        holder = self.holder if action in _OF_BLOCKS else None
        self.events.append(
            TraceEvent(
                action=cast("Action", action),
                address=address,
                nbytes=nbytes,
                stream=stream,
                step=self.span.step,
                phase=self.span.phase,
                holder=holder,
            )
        )

    def _out_of_memory(self, error: DeviceOutOfMemory) -> OutOfMemory:
        return OutOfMemory(
            asked_bytes=error.asked_bytes,
            total_bytes=self.device.total_bytes,
            free_bytes=error.free_bytes,
            allocated_bytes=error.allocated_bytes,
            reserved_bytes=error.reserved_bytes,
            step=self.span.step,
            phase=self.span.phase,
            module=self.holder.module if self.holder is not None else "",
            line="",
            library_line="",
        )

    def _look(self, state: _Running) -> None:
        """Begin a phase with what is there already."""
        state.reserved = max(state.reserved, self.allocator.reserved_bytes)
        if self.allocator.allocated_bytes > state.peak:
            state.peak, state.by_category = self.allocator.allocated_bytes, self.totals.copy()

    def _result(self, done: int) -> Simulation:
        peaks = self.allocator.peaks
        moment = done - 1 if self.oom is not None else self.peak_index
        step, phase = self._span_of(self.peak_index)
        tensors = self._held_at(moment)
        return Simulation(
            peak=Peak(
                step=step,
                phase=phase,
                requested_bytes=peaks.requested_bytes,
                allocated_bytes=peaks.allocated_bytes,
                reserved_bytes=peaks.reserved_bytes,
                device_bytes=peaks.reserved_bytes,
                by_category=_sorted(self.running[step, phase].by_category),
            ),
            held=held(tensors, "peak" if self.oom is None else "out_of_memory"),
            why=why(tensors, step=step, phase=phase),
            phases=tuple(_phase_peak(step, phase, state) for (step, phase), state in self.running.items()),
            oom=self.oom,
            num_retries=self.allocator.memory_stats()["num_alloc_retries"],
            trace=self._trace() if self.events is not None else None,
        )

    def _trace(self) -> StepTrace:
        allocator, peaks, config = self.allocator, self.allocator.peaks, self.allocator.config
        stats = allocator.memory_stats()
        return StepTrace(
            device=self.device,
            settings=AllocatorSettings(
                max_split_bytes=config.max_split_bytes, roundup_power2_divisions=config.roundup_power2_divisions
            ),
            stats=AllocatorStats(
                peak_requested_bytes=peaks.requested_bytes,
                peak_allocated_bytes=peaks.allocated_bytes,
                peak_reserved_bytes=peaks.reserved_bytes,
                allocated_bytes=allocator.allocated_bytes,
                reserved_bytes=allocator.reserved_bytes,
                num_alloc_retries=stats["num_alloc_retries"],
                num_ooms=stats["num_ooms"],
            ),
            spans=tuple(self.spans),
            events=tuple(self.events or ()),
        )

    def _span_of(self, index: int) -> tuple[int, Phase]:
        span = next((s for s in reversed(self.script.spans) if s.event_index <= index), self.script.spans[0])
        return span.step, span.phase

    def _held_at(self, index: int) -> list[HeldTensor]:
        """Return everything that is alive after a request, largest first."""
        alive: dict[int, Request] = {}
        for request in self.script.requests[: index + 1]:
            if request.nbytes:
                alive[request.key] = request
            elif request.key != EMPTY_CACHE:
                del alive[request.key]
        tensors = [
            HeldTensor(allocated_bytes=self.blocks[r.key], requested_bytes=r.nbytes, holder=r.holder)
            for r in alive.values()
            if r.holder is not None
        ]
        return sorted(tensors, key=lambda tensor: -tensor.allocated_bytes)


def _category(holder: Holder | None) -> Category:
    return holder.category if holder is not None else Category.TEMPORARY


def _phase_peak(step: int, phase: Phase, state: _Running) -> PhasePeak:
    return PhasePeak(
        step=step,
        phase=phase,
        peak_allocated_bytes=state.peak,
        end_allocated_bytes=state.end,
        peak_reserved_bytes=state.reserved,
        by_category=_sorted(state.by_category),
        end_by_category=_sorted(state.end_by_category),
    )


def _sorted(totals: dict[Category, int]) -> dict[str, int]:
    ordered = sorted(totals.items(), key=lambda item: -item[1])
    return {category.value: nbytes for category, nbytes in ordered if nbytes}
