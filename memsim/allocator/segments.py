"""Segments: getting them from the device and giving them back, within a limit and in PyTorch's order.

Rules: `alloc_block`, `release_block`, `release_cached_blocks`, `release_available_cached_blocks` and
`garbage_collect_cached_blocks` of c10/cuda/CUDACachingAllocator.cpp @2.13.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Literal

from memsim.allocator.blocks import FREE, RANK_SHIFT, SIZE_SHIFT, Block, Pool, Shelf
from memsim.allocator.config import AllocatorConfig
from memsim.allocator.driver import Driver
from memsim.allocator.expandable import obtain, unmap
from memsim.allocator.statistics import Statistics
from memsim.block_sizes import segment_bytes

TieBreak = Literal["address", "block", "memory"]
"""What decides between free blocks of one size: nothing but their address; a number that each block object got when it
was made; the number of the memory that they are cut from."""

Sink = Callable[[str, int, int, int], None]
"""Takes every event: PyTorch's word for what happened, address, bytes, handle of the stream."""


class SegmentSource:
    """Where segments come from and go to."""

    def __init__(
        self, config: AllocatorConfig, driver: Driver, *, total_bytes: int, tie_break: TieBreak, sink: Sink | None
    ) -> None:
        self.config = config
        self.driver = driver
        self.total_bytes = total_bytes
        self.limit_bytes: int | None = None
        """Most bytes that may be held; `None`: all that the device has."""
        if config.per_process_memory_fraction < 1:
            self.limit_bytes = int(config.per_process_memory_fraction * total_bytes)
        self.collects = self.limit_bytes is not None and config.garbage_collection_threshold > 0
        """Whether old free segments are given back before a new one is asked for."""
        self.held_bytes = 0
        """What the device gave."""
        self.small = Pool(small=True, expandable=config.expandable_segments)
        self.large = Pool(small=False, expandable=config.expandable_segments)
        self.statistics = Statistics(self.small.statistics, self.large.statistics)
        self.sink = sink
        self.tie_break = tie_break
        self._num_ranks = 0

    def new_rank(self) -> int:
        """Return the creation number of new memory, shifted to its place in a key."""
        if self.tie_break == "address":
            return 0
        self._num_ranks += 1
        return self._num_ranks << RANK_SHIFT

    def rank_of_part(self, block: Block) -> int:
        """Return the creation number of a part cut from `block`."""
        return self.new_rank() if self.tie_break == "block" else block.rank

    def obtain(self, shelf: Shelf, block_bytes: int) -> Block | None:
        """Return a new free block of at least `block_bytes` on the shelf; `None`: the device or the limit is full."""
        nbytes = segment_bytes(block_bytes, self.config.large_segment_bytes)
        if self.limit_bytes is not None and self.held_bytes + nbytes > self.limit_bytes:
            return None
        if self.config.expandable_segments:
            return obtain(self, shelf, block_bytes)
        address = self.driver.malloc(nbytes)
        if address is None:
            return None
        self.held_bytes += nbytes
        self.statistics.segment_came(shelf.statistics, nbytes, oversize=self.is_oversize(nbytes))
        if self.sink is not None:
            self.sink("segment_alloc", address, nbytes, shelf.stream)
        block = Block(address, nbytes, shelf, self.new_rank(), FREE)
        shelf.put(block)
        return block

    def mapped(self, shelf: Shelf, address: int, nbytes: int) -> None:
        """Count pages that were mapped."""
        self.held_bytes += nbytes
        self.statistics.memory_came(shelf.statistics, nbytes)
        if self.sink is not None:
            self.sink("segment_map", address, nbytes, shelf.stream)

    def unmapped(self, shelf: Shelf, address: int, nbytes: int) -> None:
        """Count pages that were given back."""
        self.held_bytes -= nbytes
        self.statistics.memory_went(shelf.statistics, nbytes)
        if self.sink is not None:
            self.sink("segment_unmap", address, nbytes, shelf.stream)

    def release(self, block: Block) -> None:
        """Give the segment of a free block that fills it back to the device."""
        shelf = block.shelf
        shelf.take_away(block)
        self.driver.free(block.address, block.nbytes)
        self.held_bytes -= block.nbytes
        self.statistics.segment_went(shelf.statistics, block.nbytes, oversize=self.is_oversize(block.nbytes))
        if self.sink is not None:
            self.sink("segment_free", block.address, block.nbytes, shelf.stream)

    def release_all_free(self) -> None:
        """Give back every segment without a live block, and of expandable ones every whole free page."""
        for pool in (self.large, self.small):
            blocks = pool.free_blocks()
            for block in blocks:
                if block.reservation is None and not block.is_split:
                    self.release(block)
            for block in blocks:
                if block.reservation is not None:
                    unmap(self, block)

    def release_oversize(self, shelf: Shelf, block_bytes: int) -> bool:
        """Give back segments that are not to be split, as few as make room; return whether they do."""
        limit = self.config.max_split_bytes
        if limit is None:
            return False
        wanted = max(block_bytes, limit)
        place = bisect_left(shelf.keys, wanted << SIZE_SHIFT)
        if place < len(shelf.blocks) and shelf.blocks[place].reservation is None:
            self.release(shelf.blocks[place])
            return True
        candidates = [block for block in reversed(shelf.blocks[:place]) if block.nbytes >= limit]
        released = 0
        for block in candidates:
            if released >= wanted:
                break
            if block.reservation is None:
                released += block.nbytes
                self.release(block)
        return released >= wanted

    def collect_garbage(self) -> None:
        """Give back large segments that were free for at least the average time, until the threshold is kept."""
        assert self.limit_bytes is not None
        threshold = int(self.config.garbage_collection_threshold * self.limit_bytes)
        blocks = [block for block in self.large.free_blocks() if not block.is_split and block.reservation is None]
        while self.held_bytes > threshold and blocks:
            ages = [self.large.searches - block.searches for block in blocks]
            total = sum(ages)
            old = [block for block, age in zip(blocks, ages, strict=True) if age * len(blocks) >= total]
            blocks = [block for block, age in zip(blocks, ages, strict=True) if age * len(blocks) < total]
            for block in old:
                self.release(block)

    def is_oversize(self, nbytes: int) -> bool:
        """Return whether blocks of this size are not to be split."""
        limit = self.config.max_split_bytes
        return limit is not None and nbytes >= limit
