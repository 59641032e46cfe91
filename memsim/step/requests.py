"""What the tensors of a trace take by category when each takes the block that its request is rounded up to.

That is independent of where the allocator puts them. A block can be larger: what would remain of a free block of the
large pool is not split off when it is 1 MiB or less (`should_split`, c10/cuda/CUDACachingAllocator.cpp @2.13).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memsim.ledger import Category, Phase
from memsim.step.blocks import has_segments, round_request
from memsim.step.trace import AllocatorSettings, StepTrace

Totals = Mapping[Category, int]
"""Bytes per category."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRequests:
    """The categories at two moments of a phase."""

    step: int
    """Training step, from 1."""
    phase: Phase
    """The phase."""
    peak: Totals
    """Bytes of each category when they were most together."""
    end: Totals
    """Bytes of each category when the phase ended."""


def block_bytes(nbytes: int, settings: AllocatorSettings | None) -> int:
    """Return what a tensor of `nbytes` takes: a block of the caching allocator, or itself where there is none.

    Args:
        nbytes: bytes of the tensor's storage; an empty one takes nothing.
        settings: of CUDA's caching allocator; `None` for the CPU.
    """
    return nbytes if settings is None or nbytes == 0 else round_request(nbytes, settings)


def settings_of(trace: StepTrace) -> AllocatorSettings | None:
    """Return what decides the size of a trace's blocks; `None` where its device has no caching allocator."""
    return trace.settings if has_segments(trace) else None


def requests_by_phase(trace: StepTrace) -> tuple[PhaseRequests, ...]:
    """Return every phase of every step, in the order in which they began."""
    books = _Books(settings_of(trace))
    for block in (block for segment in trace.start for block in segment.blocks):
        holder = trace.start_holders.get(block.address)
        if holder is not None and block.state == "active_allocated":
            books.take(block.address, holder.category, block.requested_bytes)
    spans = iter(trace.spans)
    span = next(spans, None)
    for index, event in enumerate(trace.events):
        while span is not None and span.event_index <= index:
            books.enter(span.step, span.phase)
            span = next(spans, None)
        books.enter(event.step, event.phase)
        if event.action == "alloc" and event.holder is not None:
            books.take(event.address, event.holder.category, event.nbytes)
            books.see()
        elif event.action == "free_requested":
            books.free(event.address)
    while span is not None:
        books.enter(span.step, span.phase)
        span = next(spans, None)
    return books.close()


class _Books:
    """Totals while a trace is read."""

    def __init__(self, settings: AllocatorSettings | None) -> None:
        self._settings = settings
        self._live: dict[int, tuple[Category, int]] = {}
        self._totals: dict[Category, int] = {}
        self._total = 0
        self._place: tuple[int, Phase] | None = None
        self._peak_bytes: dict[tuple[int, Phase], int] = {}
        self._peaks: dict[tuple[int, Phase], Totals] = {}
        self._ends: dict[tuple[int, Phase], Totals] = {}

    def enter(self, step: int, phase: Phase) -> None:
        """Go on in a phase, which may be the same."""
        if (step, phase) == self._place:
            return
        self._leave()
        self._place = (step, phase)
        self.see()

    def take(self, address: int, category: Category, nbytes: int) -> None:
        """Take a request."""
        block = block_bytes(nbytes, self._settings)
        self._live[address] = category, block
        self._totals[category] = self._totals.get(category, 0) + block
        self._total += block

    def free(self, address: int) -> None:
        """End a request; one from before the trace may be unknown here."""
        category, block = self._live.pop(address, (Category.TEMPORARY, 0))
        self._totals[category] = self._totals.get(category, 0) - block
        self._total -= block

    def close(self) -> tuple[PhaseRequests, ...]:
        """Return what was read."""
        self._leave()
        return tuple(
            PhaseRequests(step=place[0], phase=place[1], peak=self._peaks[place], end=self._ends[place])
            for place in self._peaks
        )

    def see(self) -> None:
        """Note the peak of the phase if this is one."""
        assert self._place is not None, "a request is made in a phase"
        if self._total > self._peak_bytes.get(self._place, -1):
            self._peak_bytes[self._place] = self._total
            self._peaks[self._place] = dict(self._totals)

    def _leave(self) -> None:
        if self._place is not None:
            self._ends[self._place] = dict(self._totals)
