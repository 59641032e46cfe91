"""What the allocator held before the first event of a history, which is read backwards from what it held in the end.

Segments follow exactly. Of the blocks that were there at the start, those that are there in the end too are known; of
those that were freed in between only the request is. A block of the large pool may be up to 1 MiB larger than its
request, because so little is not split off; what stands behind it tells how much, except where a free block does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from memsim.allocator.state import BlockState, SegmentState
from memsim.block_sizes import SMALL_BYTES, SMALL_SEGMENT_BYTES
from memsim.errors import MemsimError
from memsim.snapshot_file.snapshot import DeviceHistory, LoggedEvent
from memsim.step import AllocatorSettings
from memsim.step.blocks import round_request


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The state before the first event."""

    segments: tuple[SegmentState, ...]
    """What the allocator held, by address."""
    num_uncertain: int
    """Blocks that may have been up to 1 MiB larger."""

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the blocks that were handed out."""
        return sum(b.nbytes for s in self.segments for b in s.blocks if b.state == "active_allocated")


class _Found(NamedTuple):
    """A block that was there at the start."""

    requested_bytes: int
    pending: bool
    nbytes: int | None
    """Its bytes, where the end tells them."""
    freed_at: int
    """Index of its free; one past the last event if it was not freed."""


def state_before(history: DeviceHistory, settings: AllocatorSettings) -> Start:
    """Return what the allocator held before the first event of a history.

    Raises:
        MemsimError: the events do not lead to the segments, so some are missing.
    """
    ranges = _Ranges(history.segments)
    for event in reversed(history.events):
        ranges.undo(event)
    found = _blocks_at_start(history)
    addresses = sorted(found)
    allocs = sorted((event.address, index) for index, event in enumerate(history.events) if event.action == "alloc")
    segments, num_uncertain, used = [], 0, 0
    for segment in ranges.segments():
        first = bisect_left(addresses, segment.address)
        inside = addresses[first : bisect_left(addresses, segment.address + segment.nbytes)]
        used += len(inside)
        tiles = _Tiles(segment, settings, allocs)
        for address, following in pairwise([*inside, segment.address + segment.nbytes]):
            tiles.place(address, following, found[address])
        segments.append(tiles.segment())
        num_uncertain += tiles.num_uncertain
    if used != len(found):
        raise _not_whole("a block lies in no segment")
    return Start(segments=tuple(segments), num_uncertain=num_uncertain)


def _not_whole(what: str) -> MemsimError:
    return MemsimError(
        f"the snapshot's history does not lead to its segments: {what}.\n"
        "Record it again without skip_actions, and write the file while recording is on."
    )


class _Ranges:
    """Segments without their blocks, while events are undone."""

    def __init__(self, segments: Sequence[SegmentState]) -> None:
        self._starts = [segment.address for segment in segments]
        self._of = {segment.address: replace(segment, blocks=()) for segment in segments}

    def segments(self) -> Iterator[SegmentState]:
        return (self._of[start] for start in self._starts)

    def undo(self, event: LoggedEvent) -> None:
        if event.action in {"segment_alloc", "segment_map"}:
            self._remove(event)
        elif event.action in {"segment_free", "segment_unmap"}:
            self._add(
                SegmentState(
                    address=event.address,
                    nbytes=event.nbytes,
                    stream=event.stream,
                    small=event.nbytes == SMALL_SEGMENT_BYTES,
                    expandable=event.action == "segment_unmap",
                    blocks=(),
                )
            )

    def _add(self, segment: SegmentState) -> None:
        place = bisect_left(self._starts, segment.address)
        after = self._of[self._starts[place]] if place < len(self._starts) else None
        before = self._of[self._starts[place - 1]] if place else None
        if after is not None and _touch(segment, after):
            segment = replace(segment, nbytes=segment.nbytes + after.nbytes)
            del self._of[self._starts.pop(place)]
        if before is not None and _touch(before, segment):
            segment = replace(before, nbytes=before.nbytes + segment.nbytes)
            del self._of[self._starts.pop(place - 1)]
            place -= 1
        self._starts.insert(place, segment.address)
        self._of[segment.address] = segment

    def _remove(self, event: LoggedEvent) -> None:
        place = bisect_right(self._starts, event.address) - 1
        whole = self._of[self._starts[place]] if place >= 0 else None
        end = event.address + event.nbytes
        if whole is None or end > whole.address + whole.nbytes:
            raise _not_whole(f"{event.action} of {event.nbytes:,} bytes at {event.address:#x}, which are not there")
        del self._of[self._starts.pop(place)]
        rest = whole.address + whole.nbytes - end
        if not whole.expandable and (rest or event.address != whole.address):
            raise _not_whole(f"the segment at {whole.address:#x} has another size than when it was made")
        for address, nbytes in ((whole.address, event.address - whole.address), (end, rest)):
            if nbytes:
                self._starts.insert(bisect_left(self._starts, address), address)
                self._of[address] = replace(whole, address=address, nbytes=nbytes)


def _touch(first: SegmentState, second: SegmentState) -> bool:
    both = first.expandable and second.expandable and first.stream == second.stream
    return both and first.address + first.nbytes == second.address


def _blocks_at_start(history: DeviceHistory) -> dict[int, _Found]:
    """Return what was there at the start by address: freed without an alloc before, or there in the end without one."""
    found: dict[int, _Found] = {}
    live: set[int] = set()
    pending: set[int] = set()
    for index, event in enumerate(history.events):
        address, action = event.address, event.action
        if action == "alloc":
            live.add(address)
        elif action in {"free_requested", "free_completed"}:
            known = live if action == "free_requested" else pending
            if address not in known:
                if address in found:
                    raise _not_whole(f"the block at {address:#x} is freed twice")
                found[address] = _Found(event.nbytes, action == "free_completed", None, index)
            known.discard(address)
            if action == "free_requested":
                pending.add(address)
    for block in _active(history.segments):
        waits = block.state == "active_pending_free"
        if block.address not in (pending if waits else live):
            if block.address in found:
                raise _not_whole(f"the block at {block.address:#x} is freed and still there")
            found[block.address] = _Found(block.requested_bytes, waits, block.nbytes, len(history.events))
    return found


def _active(segments: Sequence[SegmentState]) -> Iterator[BlockState]:
    return (block for segment in segments for block in segment.blocks if block.state != "inactive")


class _Tiles:
    """The blocks of one segment, put down by address."""

    def __init__(self, segment: SegmentState, settings: AllocatorSettings, allocs: Sequence[tuple[int, int]]) -> None:
        self._segment = segment
        self._settings = settings
        self._allocs = allocs
        self._blocks: list[BlockState] = []
        self._end = segment.address
        self.num_uncertain = 0

    def place(self, address: int, following: int, found: _Found) -> None:
        """Put down a block; `following` is where the next one, or the end of the segment, stands."""
        room = following - address
        nbytes = found.nbytes if found.nbytes is not None else self._size(address, room, found)
        if nbytes > room or address < self._end:
            raise _not_whole(f"the block at {address:#x} has no room")
        self._free_up_to(address)
        self._blocks.append(
            BlockState(
                address=address,
                nbytes=nbytes,
                requested_bytes=found.requested_bytes,
                state="active_pending_free" if found.pending else "active_allocated",
            )
        )
        self._end = address + nbytes

    def segment(self) -> SegmentState:
        """Return the segment, its blocks without gaps."""
        self._free_up_to(self._segment.address + self._segment.nbytes)
        return replace(self._segment, blocks=tuple(self._blocks))

    def _free_up_to(self, address: int) -> None:
        if address > self._end:
            self._blocks.append(BlockState(address=self._end, nbytes=address - self._end))
            self._end = address

    def _size(self, address: int, room: int, found: _Found) -> int:
        """Return the bytes of a block of which only the request is known."""
        rounded = round_request(found.requested_bytes, self._settings)
        limit = self._settings.max_split_bytes
        if self._segment.small or self._segment.expandable or rounded == room:
            return rounded
        if room - rounded <= SMALL_BYTES or (limit is not None and rounded >= limit):
            return room  # no block of the large pool is as small as what is left, so it belongs to this one
        beyond = self._first_alloc(address + rounded, found.freed_at)
        if beyond is None:
            self.num_uncertain += 1
            return rounded
        return beyond - address

    def _first_alloc(self, start: int, freed_at: int) -> int | None:
        """Return where the free block behind begins, if something was allocated at its beginning in time."""
        place = bisect_left(self._allocs, (start, -1))
        for address, index in self._allocs[place:]:
            if address > start + SMALL_BYTES:
                return None
            if index < freed_at:
                return address
        return None
