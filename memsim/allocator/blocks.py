"""Blocks and where the free ones wait: a pool for small and one for large blocks, in each one shelf per stream."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from memsim.allocator.statistics import PoolStatistics
from memsim.block_sizes import MIN_BLOCK_BYTES, SMALL_BYTES

if TYPE_CHECKING:
    from memsim.allocator.expandable import Reservation

ACTIVE = 0
"""State of a block that is allocated, or freed while another stream may still use it."""
FREE = 1
"""State of a block that can be handed out."""
UNMAPPED = 2
"""State of reserved addresses without memory."""

SIZE_SHIFT = 100
"""A shelf sorts by one integer: the block's bytes, then 45 bits of creation number, then 55 bits of address."""
RANK_SHIFT = 55
GRANULE_SHIFT = 9
"""Addresses count in units of 512 bytes there."""


class Block:
    """A range of a segment, linked to its neighbours in it."""

    __slots__ = (
        "address",
        "after",
        "before",
        "key",
        "nbytes",
        "num_events",
        "rank",
        "requested_bytes",
        "reservation",
        "searches",
        "shelf",
        "state",
        "streams",
    )

    def __init__(self, address: int, nbytes: int, shelf: Shelf, rank: int, state: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self.shelf = shelf
        self.rank = rank
        """Creation number, shifted: decides between free blocks of one size."""
        self.state = state
        self.before: Block | None = None
        self.after: Block | None = None
        self.streams: set[int] | None = None
        """Other streams that use it."""
        self.reservation: Reservation | None = None
        """Where its addresses come from, if it belongs to an expandable segment."""
        self.key: int
        """Its place on the shelf, set when it is put there."""
        self.searches: int
        """The pool's number of searches at that time."""
        self.requested_bytes: int
        """What was asked for, set when it is handed out."""
        self.num_events: int
        """Events of other streams that have to pass before it is free, set when it is freed."""

    @property
    def is_split(self) -> bool:
        """Whether it is only a part of its segment."""
        return self.before is not None or self.after is not None

    def link_before(self, following: Block) -> None:
        """Take a place between `following` and what stood before it."""
        self.before, self.after = following.before, following
        if self.before is not None:
            self.before.after = self
        following.before = self

    def link_after(self, leading: Block) -> None:
        """Take a place between `leading` and what stood after it."""
        self.before, self.after = leading, leading.after
        if self.after is not None:
            self.after.before = self
        leading.after = self

    def absorb_neighbours(self) -> None:
        """Join the neighbours that are in the same state, which stand on the shelf; itself it must not stand there."""
        before, after = self.before, self.after
        if before is not None and before.state == self.state:
            self.shelf.take_away(before)
            self.address = before.address
            self.nbytes += before.nbytes
            self.before = before.before
            if self.before is not None:
                self.before.after = self
        if after is not None and after.state == self.state:
            self.shelf.take_away(after)
            self.nbytes += after.nbytes
            self.after = after.after
            if self.after is not None:
                self.after.before = self


class Shelf:
    """The free blocks of one pool that one stream may use, the smallest first."""

    __slots__ = ("blocks", "keys", "pool", "statistics", "stream", "unmapped")

    def __init__(self, pool: Pool, stream: int) -> None:
        self.pool = pool
        self.statistics = pool.statistics
        self.stream = stream
        self.keys: list[int] = []
        """Sorted; `blocks` stands in the same order."""
        self.blocks: list[Block] = []
        self.unmapped: list[Block] = []
        """Reserved addresses without memory, by address."""

    def put(self, block: Block) -> None:
        """Put a block in its place, free or unmapped."""
        if block.state == UNMAPPED:
            self.unmapped.insert(bisect_left(self.unmapped, block.address, key=_address), block)
            return
        block.key = key = (block.nbytes << SIZE_SHIFT) + block.rank + (block.address >> GRANULE_SHIFT)
        block.searches = self.pool.searches
        place = bisect_left(self.keys, key)
        self.keys.insert(place, key)
        self.blocks.insert(place, block)

    def take_away(self, block: Block) -> None:
        """Take a block from its place."""
        if block.state == UNMAPPED:
            del self.unmapped[bisect_left(self.unmapped, block.address, key=_address)]
            return
        place = bisect_left(self.keys, block.key)
        del self.keys[place], self.blocks[place]


class Pool:
    """Small or large blocks."""

    __slots__ = ("min_rest_bytes", "searches", "shelves", "small", "statistics")

    def __init__(self, *, small: bool, expandable: bool) -> None:
        self.small = small
        self.min_rest_bytes = MIN_BLOCK_BYTES if small or expandable else SMALL_BYTES + MIN_BLOCK_BYTES
        """A block is split when at least this remains (`should_split`)."""
        self.searches = 0
        """Number of searches, counted for the garbage collection."""
        self.shelves: dict[int, Shelf] = {}
        """Shelf by the handle of its stream."""
        self.statistics = PoolStatistics()

    def new_shelf(self, stream: int) -> Shelf:
        """Return the shelf of a stream that had none."""
        shelf = self.shelves[stream] = Shelf(self, stream)
        return shelf

    def free_blocks(self) -> list[Block]:
        """Return the free blocks in the order of PyTorch's set of them: by stream, then by size."""
        return [block for stream in sorted(self.shelves) for block in self.shelves[stream].blocks]


def _address(block: Block) -> int:
    return block.address
