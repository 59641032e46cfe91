"""`CachingAllocator`: PyTorch's caching allocator of CUDA memory, as pure bookkeeping.

The names and rules are those of `DeviceCachingAllocator`, c10/cuda/CUDACachingAllocator.cpp @2.13. Private pools
(`MemPool`, CUDA graphs) are not modelled.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from memsim.allocator.blocks import ACTIVE, FREE, GRANULE_SHIFT, SIZE_SHIFT, Block, Shelf
from memsim.allocator.config import AllocatorConfig
from memsim.allocator.driver import FIRST_ADDRESS, GRANULE_BYTES, DeviceMemory, Driver
from memsim.allocator.expandable import best_place
from memsim.allocator.segments import SegmentSource, Sink, TieBreak
from memsim.allocator.start import adopt, states
from memsim.allocator.state import SegmentState
from memsim.allocator.statistics import AllocatorPeaks
from memsim.block_sizes import SMALL_BYTES, round_size
from memsim.errors import MemsimError, UsageError, shown
from memsim.units import format_bytes

MOST_BYTES = 2**60 - 1
"""A request above it fails at once (`CUDACachingAllocator::allocate`)."""
_NO_LIMIT = 2**64


class DeviceOutOfMemory(MemsimError):  # noqa: N818 - named after torch.OutOfMemoryError
    """A request that neither the cache nor the device can serve."""

    def __init__(self, *, asked_bytes: int, free_bytes: int, allocated_bytes: int, reserved_bytes: int) -> None:
        self.asked_bytes = asked_bytes
        self.free_bytes = free_bytes
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
        super().__init__(
            f"out of memory: {format_bytes(asked_bytes)} asked, {format_bytes(free_bytes)} free on the device; the "
            f"allocator holds {format_bytes(reserved_bytes)}, of which {format_bytes(allocated_bytes)} are allocated."
        )


class CachingAllocator:
    """The caching allocator of one device.

    Attributes:
        events_pending: Whether the work of other streams (`record_stream`) goes on: what they use is free at the next
            `malloc` if not, and only when memory runs out or the cache is emptied if so.
    """

    def __init__(
        self,
        config: AllocatorConfig,
        *,
        total_bytes: int,
        torch_version: str = "2.13",
        driver: Driver | None = None,
        segments: Iterable[SegmentState] = (),
        sink: Sink | None = None,
    ) -> None:
        """Start empty, or from `segments` and their blocks on a device of `total_bytes`.

        `torch_version` decides which of two equal free blocks is taken. `sink` is told every event.

        Raises:
            UsageError: `torch_version` is no version.
            MemsimError: `segments` is no state that can be taken up.
        """
        held = tuple(segments)
        if driver is None:
            driver = _device_holding(held, total_bytes)
        self.config = config
        self.events_pending = False
        self._source = SegmentSource(
            config, driver, total_bytes=total_bytes, tie_break=_tie_break(torch_version), sink=sink
        )
        self._small, self._large = self._source.small, self._source.large
        self._statistics = self._source.statistics
        self._split_bytes = self._statistics.inactive_split_bytes
        self._sink = sink
        self._divisions = config.roundup_power2_divisions
        self._max_split = config.max_split_bytes or _NO_LIMIT
        self._split_limit = _NO_LIMIT if config.expandable_segments else self._max_split
        self._fits_any = config.max_split_bytes is None and not config.expandable_segments and not self._source.collects
        self._renumbers = self._source.tie_break == "block"
        self._live = {block.address: block for block in adopt(held, self._source)}
        self._grew = bool(self._live)
        self._waiting: dict[int, list[Block]] = {}

    def malloc(self, nbytes: int, stream: int = 0) -> int:
        """Return the address of a block of at least `nbytes`; 0 for 0 bytes, which changes nothing.

        Raises:
            DeviceOutOfMemory: there is no such block.
            UsageError: `nbytes` is negative.
        """
        if not 0 < nbytes <= MOST_BYTES:
            return self._no_block(nbytes)
        if self._waiting and not self.events_pending:
            self._complete_events()
        rounded = round_size(nbytes, self._divisions) if self._divisions else (nbytes + 511) & -512
        pool = self._small if rounded <= SMALL_BYTES else self._large
        shelf = pool.shelves.get(stream) or pool.new_shelf(stream)
        place = bisect_left(shelf.keys, rounded << SIZE_SHIFT) if self._fits_any else self._search(shelf, rounded)
        if place == len(shelf.keys):
            place = self._place_of_new(shelf, rounded)
        block = shelf.blocks[place]
        if block.nbytes - rounded >= pool.min_rest_bytes and rounded < self._split_limit:
            block = self._split(shelf, place, rounded)
        else:
            block = self._take_whole(shelf, place)
        block.requested_bytes = nbytes
        count = pool.statistics
        count.num_allocs += 1
        count.allocated_up += block.nbytes
        count.requested_up += nbytes
        count.grew = self._grew = True
        if block.nbytes >= self._max_split:
            self._statistics.oversize_allocations.raise_by(1)
        self._live[block.address] = block
        if self._sink is not None:
            self._sink("alloc", block.address, nbytes, stream)
        return block.address

    def free(self, address: int) -> None:
        """Take back the block at `address`; 0 is passed over.

        Raises:
            MemsimError: no block that is allocated begins there.
        """
        block = self._live.pop(address, None)
        if block is None:
            self._check_no_block(address)
            return
        if self._grew:
            self._grew = False
            self._statistics.note_peaks()
        count = block.shelf.statistics
        count.num_frees += 1
        count.allocated_down += block.nbytes
        count.requested_down += block.requested_bytes
        if block.nbytes >= self._max_split:
            self._statistics.oversize_allocations.lower_by(1)
        if self._sink is not None:
            self._sink("free_requested", address, block.requested_bytes, block.shelf.stream)
        if block.streams is None:
            self._put_back(block)
        else:
            self._wait_for(block, block.streams)

    def record_stream(self, address: int, stream: int) -> None:
        """Say that another stream uses the block at `address`, which then outlives its `free`.

        Raises:
            MemsimError: no block that is allocated begins there.
        """
        block = self._live.get(address)
        if block is None:
            self._check_no_block(address)
        elif stream != block.shelf.stream:
            block.streams = (block.streams or set()) | {stream}

    def empty_cache(self) -> None:
        """Give every segment without a live block back to the device, after waiting for all streams."""
        self._statistics.num_sync_all_streams += 1
        self._complete_events()
        self._source.release_all_free()

    def reset_peak_memory_stats(self) -> None:
        """Let the peaks begin again at the current values."""
        self._statistics.reset_peaks()

    def memory_stats(self) -> dict[str, int]:
        """Return what `torch.cuda.memory_stats()` says, by its names."""
        counts = self._statistics.by_name(self.config.max_split_bytes)
        if self._source.tie_break != "address":  # both came with torch 2.12
            counts["num_oom_rejections"] = 0
        return dict(sorted(counts.items()))

    def segments(self) -> tuple[SegmentState, ...]:
        """Return the segments and their blocks by address, as `torch.cuda.memory_snapshot()` tells them."""
        waiting = {id(block): block for blocks in self._waiting.values() for block in blocks}
        free = [block for pool in (self._small, self._large) for block in pool.free_blocks()]
        return states([*self._live.values(), *waiting.values(), *free], live=self._live)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the blocks that are handed out."""
        return self._small.statistics.allocated_bytes + self._large.statistics.allocated_bytes

    @property
    def requested_bytes(self) -> int:
        """Bytes that were asked for, of blocks that are handed out or still used by another stream."""
        return self._small.statistics.requested_bytes + self._large.statistics.requested_bytes

    @property
    def active_bytes(self) -> int:
        """Bytes of the blocks that are handed out or still used by another stream."""
        return self._small.statistics.active_bytes + self._large.statistics.active_bytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes that the device gave."""
        return self._source.held_bytes

    @property
    def peaks(self) -> AllocatorPeaks:
        """The largest values since the start, or since `reset_peak_memory_stats`."""
        return self._statistics.peaks()

    def _split(self, shelf: Shelf, place: int, nbytes: int) -> Block:
        """Cut a block of `nbytes` off the start of the free one at `place`; the rest takes its new place."""
        keys, blocks = shelf.keys, shelf.blocks
        rest = blocks[place]
        block = Block(rest.address, nbytes, shelf, self._source.new_rank() if self._renumbers else rest.rank, ACTIVE)
        if rest.reservation is not None:
            block.reservation = rest.reservation
        elif rest.before is None and rest.after is None:
            self._statistics.change_split(shelf.statistics, 1, rest.nbytes - nbytes)
        else:
            shelf.statistics.inactive_split_bytes.current -= nbytes
            self._split_bytes.current -= nbytes
        before = rest.before
        if before is not None:
            block.before = before
            before.after = block
        block.after = rest
        rest.before = block
        rest.address += nbytes
        rest.nbytes -= nbytes
        rest.searches = shelf.pool.searches
        rest.key = key = (rest.nbytes << SIZE_SHIFT) + rest.rank + (rest.address >> GRANULE_SHIFT)
        new_place = bisect_left(keys, key, 0, place)
        if new_place == place:
            keys[place] = key
        else:
            del keys[place]
            keys.insert(new_place, key)
            blocks.insert(new_place, blocks.pop(place))
        return block

    def _take_whole(self, shelf: Shelf, place: int) -> Block:
        """Take the free block at `place` off the shelf."""
        del shelf.keys[place]
        block = shelf.blocks.pop(place)
        block.state = ACTIVE
        if block.reservation is None and (block.before is not None or block.after is not None):
            self._statistics.change_split(shelf.statistics, -1, -block.nbytes)
        return block

    def _put_back(self, block: Block) -> None:
        """Join a block with its free neighbours and put it on its shelf."""
        shelf = block.shelf
        if self._sink is not None:
            self._sink("free_completed", block.address, block.requested_bytes, shelf.stream)
        keys, blocks = shelf.keys, shelf.blocks
        num_parts, nbytes = 0, block.nbytes
        before, after = block.before, block.after
        if before is not None and before.state == FREE:
            place = bisect_left(keys, before.key)
            del keys[place], blocks[place]
            block.address = before.address
            block.nbytes += before.nbytes
            block.before = before = before.before
            if before is not None:
                before.after = block
            num_parts = 1
        if after is not None and after.state == FREE:
            place = bisect_left(keys, after.key)
            del keys[place], blocks[place]
            block.nbytes += after.nbytes
            block.after = after = after.after
            if after is not None:
                after.before = block
            num_parts += 1
        block.state = FREE
        block.searches = shelf.pool.searches
        block.key = key = (block.nbytes << SIZE_SHIFT) + block.rank + (block.address >> GRANULE_SHIFT)
        place = bisect_left(keys, key)
        keys.insert(place, key)
        blocks.insert(place, block)
        if block.reservation is None:
            if before is not None or after is not None:
                self._statistics.change_split(shelf.statistics, 1 - num_parts, nbytes)
            elif num_parts:
                self._statistics.change_split(shelf.statistics, -num_parts, nbytes - block.nbytes)

    def _search(self, shelf: Shelf, block_bytes: int) -> int:
        """Return the place of the free block that the settings allow, or one past the last (`get_free_block`)."""
        if self._source.collects:
            shelf.pool.searches += 1
        blocks = shelf.blocks
        if self.config.expandable_segments:
            place = best_place(shelf, block_bytes)
        else:
            place = bisect_left(shelf.keys, block_bytes << SIZE_SHIFT)
        if place < len(blocks):
            nbytes = blocks[place].nbytes
            most = block_bytes + self.config.max_non_split_rounding_bytes
            refused = nbytes >= self._max_split if block_bytes < self._max_split else nbytes >= most
            if refused:
                return len(blocks)
        return place

    def _place_of_new(self, shelf: Shelf, block_bytes: int) -> int:
        """Return the place of a free block made of memory from the device (`malloc`, from `alloc_block` on).

        Raises:
            DeviceOutOfMemory: there is none, also not after the cache was given back.
        """
        source = self._source
        if source.collects:
            source.collect_garbage()
        block = source.obtain(shelf, block_bytes)
        if block is None and source.release_oversize(shelf, block_bytes):
            block = source.obtain(shelf, block_bytes)
        if block is None:
            self.empty_cache()
            self._statistics.num_alloc_retries += 1
            block = source.obtain(shelf, block_bytes)
        if block is None:
            self._statistics.num_ooms += 1
            if self._sink is not None:
                self._sink("oom", 0, block_bytes, shelf.stream)
            raise self._out_of_memory(block_bytes)
        return bisect_left(shelf.keys, block.key)

    def _no_block(self, nbytes: int) -> int:
        if nbytes < 0:
            raise UsageError(f"cannot allocate {nbytes} bytes: give 0 or more.")
        if nbytes:
            raise self._out_of_memory(nbytes)
        return 0

    def _out_of_memory(self, asked_bytes: int) -> DeviceOutOfMemory:
        return DeviceOutOfMemory(
            asked_bytes=asked_bytes,
            free_bytes=self._source.driver.free_bytes,
            allocated_bytes=self.allocated_bytes,
            reserved_bytes=self.reserved_bytes,
        )

    def _check_no_block(self, address: int) -> None:
        if address:
            raise MemsimError(f"no allocated block begins at {shown(address)}: give an address that malloc returned.")

    def _wait_for(self, block: Block, streams: set[int]) -> None:
        """Record an event on every stream that uses a freed block (`insert_events`)."""
        self._statistics.tell_active()
        count = block.shelf.statistics
        count.num_pending += 1
        count.pending_bytes += block.nbytes
        count.pending_requested += block.requested_bytes
        block.num_events = len(streams)
        for stream in sorted(streams):
            self._waiting.setdefault(stream, []).append(block)
        block.streams = None

    def _complete_events(self) -> None:
        """Put back what waited for other streams, each stream's in the order of the frees (`process_events`)."""
        waiting, self._waiting = self._waiting, {}
        for blocks in waiting.values():
            for block in blocks:
                block.num_events -= 1
                if block.num_events == 0:
                    self._statistics.note_peaks()
                    count = block.shelf.statistics
                    count.num_pending -= 1
                    count.pending_bytes -= block.nbytes
                    count.pending_requested -= block.requested_bytes
                    self._put_back(block)


def _tie_break(torch_version: str) -> TieBreak:
    """Return what decides between free blocks of one size (pytorch pull requests 178362, 182929, 183591)."""
    match = re.match(r"(\d+)\.(\d+)", torch_version)
    if match is None:
        raise UsageError(f"{shown(torch_version)} is no version of torch: give one like '2.13'.")
    release = (int(match[1]), int(match[2]))
    if release < (2, 12):
        return "address"
    return "block" if release == (2, 12) else "memory"


def _device_holding(segments: Sequence[SegmentState], total_bytes: int) -> DeviceMemory:
    """Return a device that already gave `segments` away; new ones begin after them."""
    end = max((segment.address + segment.nbytes for segment in segments), default=FIRST_ADDRESS)
    first = -(-end // GRANULE_BYTES) * GRANULE_BYTES
    return DeviceMemory(total_bytes, outside_bytes=sum(segment.nbytes for segment in segments), first_address=first)
