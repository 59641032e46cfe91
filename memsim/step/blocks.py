"""Replay of a trace into segments and blocks: what every request really took.

The trace names the address of every block, so nothing is searched: only whether the free block at that address was
split has to be decided. Rules: `round_size`, `should_split`, `try_merge_blocks` of c10/cuda/CUDACachingAllocator.cpp
@2.13.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from memsim.allocator.state import BlockState, SegmentState
from memsim.block_sizes import MIN_BLOCK_BYTES, SMALL_BYTES, SMALL_SEGMENT_BYTES, round_size
from memsim.errors import MemsimError
from memsim.ledger import Phase
from memsim.step.trace import AllocatorSettings, Holder, StepTrace, TraceEvent


@dataclass(slots=True, kw_only=True)
class Block:
    """A range of a segment."""

    address: int
    """Where it begins."""
    nbytes: int
    """Its bytes."""
    requested_bytes: int = 0
    """What was asked for; 0 when it is free."""
    state: str = "inactive"
    """`active_allocated`, `active_pending_free` or `inactive`, PyTorch's words."""
    event: TraceEvent | None = None
    """The alloc that made it, or one that stands for it where it was there before the first event; `None` when it is
    free, or nobody knows whose it was."""


@dataclass(slots=True, kw_only=True)
class Segment:
    """Memory that the allocator got from the device in one piece; an expandable one grows."""

    address: int
    """Where it begins."""
    nbytes: int
    """Its bytes."""
    stream: int
    """The stream that it serves."""
    expandable: bool
    """Whether it was mapped, not allocated."""
    small: bool
    """Whether it belongs to the small pool, which alone takes memory in pieces of 2 MiB."""
    starts: list[int] = field(default_factory=list)
    """Addresses of its blocks, ascending."""
    blocks: dict[int, Block] = field(default_factory=dict)
    """Block by address; together they fill the segment."""

    def in_order(self) -> Iterator[Block]:
        """Yield the blocks by address."""
        return (self.blocks[start] for start in self.starts)


def round_request(nbytes: int, settings: AllocatorSettings) -> int:
    """Return the bytes of the block that a request for `nbytes` is rounded up to."""
    return round_size(nbytes, settings.roundup_power2_divisions)


class Replay(Protocol):
    """The books over a trace, kept by reading it event by event."""

    @property
    def allocated_bytes(self) -> int:
        """Bytes that live tensors take."""

    @property
    def requested_bytes(self) -> int:
        """Bytes that they asked for."""

    @property
    def reserved_bytes(self) -> int:
        """Bytes that the device gave away for them."""

    def apply(self, event: TraceEvent) -> Block | None:
        """Take one event; return the block of an alloc or free."""

    def live_blocks(self) -> Iterable[Block]:
        """Return every allocated block by address."""


def replay_of(trace: StepTrace) -> Replay:
    """Return the books for a trace: of blocks in segments, or of storages alone where it has no segments (a CPU)."""
    return block_replay_of(trace) if has_segments(trace) else StorageReplay()


def block_replay_of(trace: StepTrace) -> BlockReplay:
    """Return the books of blocks in segments before a trace's first event."""
    return BlockReplay(trace.settings, trace.start, trace.start_holders)


def has_segments(trace: StepTrace) -> bool:
    """Return whether a caching allocator made the trace."""
    return bool(trace.start) or any(event.action in {"segment_alloc", "segment_map"} for event in trace.events)


class StorageReplay:
    """The books of a device without a caching allocator: every storage takes what it asked for."""

    def __init__(self) -> None:
        self.allocated_bytes = 0
        self._blocks: dict[int, Block] = {}

    @property
    def requested_bytes(self) -> int:
        """The same as `allocated_bytes`."""
        return self.allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        """The same as `allocated_bytes`: nothing is kept."""
        return self.allocated_bytes

    def live_blocks(self) -> Iterator[Block]:
        """Yield every storage by address."""
        return (self._blocks[address] for address in sorted(self._blocks))

    def apply(self, event: TraceEvent) -> Block | None:
        """Take one event; return the block of an alloc or free.

        Raises:
            MemsimError: the event does not fit what came before it, so the trace is not whole.
        """
        if event.action == "alloc" and event.address not in self._blocks:
            block = Block(
                address=event.address,
                nbytes=event.nbytes,
                requested_bytes=event.nbytes,
                state="active_allocated",
                event=event,
            )
            self._blocks[event.address] = block
            self.allocated_bytes += block.nbytes
            return block
        if event.action == "oom":  # the first request of all: there is nothing yet
            return None
        freed = self._blocks.get(event.address)
        if event.action == "free_requested" and freed is not None:
            self.allocated_bytes -= freed.nbytes
            return freed
        if event.action == "free_completed" and freed is not None:
            return self._blocks.pop(event.address)
        raise MemsimError(
            f"the trace is not whole: {event.action} of {event.nbytes:,} bytes at {event.address:#x} fits no storage."
        )


class BlockReplay:
    """The allocator's books, kept by reading a trace event by event.

    Args:
        settings: which decide the size of a block.
        start: what was held before the first event.
        holders: whose its blocks were, by address, as far as it is known.
    """

    def __init__(
        self,
        settings: AllocatorSettings,
        start: Iterable[SegmentState] = (),
        holders: Mapping[int, Holder] | None = None,
    ) -> None:
        self.settings = settings
        self.allocated_bytes = 0
        self.requested_bytes = 0
        self.reserved_bytes = 0
        self._segments: dict[int, Segment] = {}
        self._starts: list[int] = []
        for state in start:
            self._take_up(state, holders or {})

    def _take_up(self, state: SegmentState, holders: Mapping[int, Holder]) -> None:
        blocks = [
            Block(
                address=b.address,
                nbytes=b.nbytes,
                requested_bytes=b.requested_bytes,
                state=b.state,
                event=_alloc_before(b, state.stream, holders.get(b.address)),
            )
            for b in state.blocks
        ]
        self._add(
            Segment(
                address=state.address,
                nbytes=state.nbytes,
                stream=state.stream,
                small=state.small,
                expandable=state.expandable,
                starts=[block.address for block in blocks],
                blocks={block.address: block for block in blocks},
            )
        )
        self.reserved_bytes += state.nbytes
        self.requested_bytes += sum(block.requested_bytes for block in blocks)
        self.allocated_bytes += sum(block.nbytes for block in blocks if block.state == "active_allocated")

    def segments(self) -> Iterator[Segment]:
        """Yield the segments by address."""
        return (self._segments[start] for start in self._starts)

    def live_blocks(self) -> Iterator[Block]:
        """Yield every allocated block by address."""
        for segment in self.segments():
            yield from (block for block in segment.in_order() if block.state == "active_allocated")

    def apply(self, event: TraceEvent) -> Block | None:
        """Take one event; return the block of an alloc or free.

        Raises:
            MemsimError: the event does not fit what came before it, so the trace is not whole.
        """
        try:
            if event.action == "alloc":
                return self._alloc(event)
            if event.action == "free_requested":
                return self._free_requested(event)
            if event.action == "free_completed":
                return self._free_completed(event)
            if event.action in {"segment_alloc", "segment_map"}:
                self._grow(event)
            elif event.action in {"segment_free", "segment_unmap"}:
                self._shrink(event)
        except (KeyError, IndexError) as error:
            raise MemsimError(
                f"the trace is not whole: {event.action} of {event.nbytes:,} bytes at {event.address:#x} "
                "fits no segment or block before it."
            ) from error
        return None

    def _segment_at(self, address: int) -> Segment:
        segment = self._segments[self._starts[bisect_right(self._starts, address) - 1]]
        if not segment.address <= address < segment.address + segment.nbytes:
            raise KeyError(address)
        return segment

    def _alloc(self, event: TraceEvent) -> Block:
        segment = self._segment_at(event.address)
        block = segment.blocks[event.address]
        if block.state != "inactive":
            raise KeyError(event.address)
        rounded = round_request(event.nbytes, self.settings)
        if self._splits(segment, block.nbytes, rounded):
            rest = Block(address=block.address + rounded, nbytes=block.nbytes - rounded)
            block.nbytes = rounded
            segment.blocks[rest.address] = rest
            insort(segment.starts, rest.address)
        block.requested_bytes, block.state, block.event = event.nbytes, "active_allocated", event
        self.allocated_bytes += block.nbytes
        self.requested_bytes += event.nbytes
        return block

    def _splits(self, segment: Segment, nbytes: int, rounded: int) -> bool:
        remaining = nbytes - rounded
        if segment.small or segment.expandable:
            return remaining >= MIN_BLOCK_BYTES
        limit = self.settings.max_split_bytes
        return (limit is None or rounded < limit) and remaining > SMALL_BYTES

    def _free_requested(self, event: TraceEvent) -> Block:
        block = self._segment_at(event.address).blocks[event.address]
        if block.state != "active_allocated":
            raise KeyError(event.address)
        block.state = "active_pending_free"
        self.allocated_bytes -= block.nbytes
        return block

    def _free_completed(self, event: TraceEvent) -> Block:
        segment = self._segment_at(event.address)
        block = segment.blocks[event.address]
        if block.state != "active_pending_free":
            raise KeyError(event.address)
        self.requested_bytes -= block.requested_bytes
        freed = Block(
            address=block.address, nbytes=block.nbytes, requested_bytes=block.requested_bytes, event=block.event
        )
        block.requested_bytes, block.state, block.event = 0, "inactive", None
        self._merge(segment, block)
        return freed

    @staticmethod
    def _merge(segment: Segment, block: Block) -> None:
        place = bisect_right(segment.starts, block.address) - 1
        if place + 1 < len(segment.starts):
            following = segment.blocks[segment.starts[place + 1]]
            if following.state == "inactive":
                block.nbytes += following.nbytes
                del segment.blocks[following.address], segment.starts[place + 1]
        if place > 0:
            before = segment.blocks[segment.starts[place - 1]]
            if before.state == "inactive":
                before.nbytes += block.nbytes
                del segment.blocks[block.address], segment.starts[place]

    def _grow(self, event: TraceEvent) -> None:
        self.reserved_bytes += event.nbytes
        expandable = event.action == "segment_map"
        segment = Segment(
            address=event.address,
            nbytes=event.nbytes,
            stream=event.stream,
            expandable=expandable,
            small=event.nbytes == SMALL_SEGMENT_BYTES,
        )
        segment.blocks[event.address] = Block(address=event.address, nbytes=event.nbytes)
        segment.starts.append(event.address)
        self._add(segment)
        if expandable:
            place = bisect_right(self._starts, event.address) - 1
            self._join(place, place + 1)
            self._join(place - 1, place)

    def _add(self, segment: Segment) -> None:
        self._segments[segment.address] = segment
        insort(self._starts, segment.address)

    def _join(self, left: int, right: int) -> None:
        """Make one of two expandable segments that touch: their mapped ranges are one range to the allocator."""
        if left < 0 or right >= len(self._starts):
            return
        first, second = self._segments[self._starts[left]], self._segments[self._starts[right]]
        touching = first.address + first.nbytes == second.address and first.stream == second.stream
        if not (touching and first.expandable and second.expandable):
            return
        del self._segments[second.address], self._starts[right]
        first.nbytes += second.nbytes
        first.blocks.update(second.blocks)
        last = first.blocks[first.starts[-1]]
        first.starts.extend(second.starts)
        if last.state == "inactive" and first.blocks[second.address].state == "inactive":
            last.nbytes += first.blocks.pop(second.address).nbytes
            first.starts.remove(second.address)

    def _shrink(self, event: TraceEvent) -> None:
        segment = self._segment_at(event.address)
        end = event.address + event.nbytes
        block = segment.blocks[segment.starts[bisect_right(segment.starts, event.address) - 1]]
        if block.state != "inactive" or end > block.address + block.nbytes:
            raise KeyError(event.address)
        self.reserved_bytes -= event.nbytes
        del self._segments[segment.address], self._starts[bisect_right(self._starts, segment.address) - 1]
        self._cut(segment, block, event.address, end)

    def _cut(self, segment: Segment, block: Block, start: int, end: int) -> None:
        """Put back what is left of `segment` before `start` and after `end`, a range inside its free `block`."""
        segment_end, block_end = segment.address + segment.nbytes, block.address + block.nbytes
        del segment.blocks[block.address]
        pieces = [b for b in segment.blocks.values() if b.address < start]
        if start > block.address:
            pieces.append(Block(address=block.address, nbytes=start - block.address))
        rest = [Block(address=end, nbytes=block_end - end)] if block_end > end else []
        rest += [b for b in segment.blocks.values() if b.address >= end]
        for begin, stop, blocks in ((segment.address, start, pieces), (end, segment_end, rest)):
            if stop > begin:
                self._add(
                    Segment(
                        address=begin,
                        nbytes=stop - begin,
                        stream=segment.stream,
                        expandable=segment.expandable,
                        small=segment.small,
                        starts=sorted(b.address for b in blocks),
                        blocks={b.address: b for b in blocks},
                    )
                )


def _alloc_before(block: BlockState, stream: int, holder: Holder | None) -> TraceEvent | None:
    """Return an alloc that stands for the one before the first event; `None` where nobody knows whose it was."""
    if holder is None:
        return None
    return TraceEvent(
        action="alloc",
        address=block.address,
        nbytes=block.requested_bytes,
        stream=stream,
        step=1,
        phase=Phase.LOAD,
        holder=holder,
    )
