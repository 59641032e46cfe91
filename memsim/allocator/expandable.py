"""Expandable segments: addresses reserved once per stream and pool, into which pages are mapped as they are needed.

Rules: `ExpandableSegment`, `find_expandable_block`, `map_block`, `try_allocate_expandable_block` and `unmap_block` of
c10/cuda/CUDACachingAllocator.cpp @2.13.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memsim.allocator.blocks import ACTIVE, FREE, SIZE_SHIFT, UNMAPPED, Block, Shelf
from memsim.block_sizes import SMALL_SEGMENT_BYTES

if TYPE_CHECKING:
    from memsim.allocator.segments import SegmentSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Addresses for one stream of one pool."""

    address: int
    """Where they begin."""
    nbytes: int
    """How many there are; an eighth more than the device has memory."""
    page_bytes: int
    """The unit in which memory is mapped."""


def best_place(shelf: Shelf, block_bytes: int) -> int:
    """Return the place on the shelf of the best fit, or one past its end.

    A block that is followed by unmapped addresses counts as what it can grow to, so a larger one may fit better.
    """
    blocks = shelf.blocks
    place = bisect_left(shelf.keys, block_bytes << SIZE_SHIFT)
    while place + 1 < len(blocks) and _potential_bytes(blocks[place + 1]) < _potential_bytes(blocks[place]):
        place += 1
    return place


def _potential_bytes(block: Block) -> int:
    after = block.after
    return block.nbytes + (after.nbytes if after is not None and after.state == UNMAPPED else 0)


def obtain(source: SegmentSource, shelf: Shelf, block_bytes: int) -> Block | None:
    """Return a free block of at least `block_bytes`, made by mapping what is missing; `None` if the device is full.

    What was mapped before the device was full stays on the shelf.
    """
    block = _block_that_can_grow(shelf, block_bytes) or _reserve(source, shelf)
    if block.state == UNMAPPED and not _map(source, block, min(block.nbytes, block_bytes)):
        return None
    while block.nbytes < block_bytes:
        following = block.after
        assert following is not None
        if not _map(source, following, min(block_bytes - block.nbytes, following.nbytes)):
            return None
        block = following
    return block


def _block_that_can_grow(shelf: Shelf, block_bytes: int) -> Block | None:
    """Return the start of the lowest room of free and unmapped neighbours, at least one of them unmapped."""
    for unmapped in shelf.unmapped:
        before = unmapped.before
        start = before if before is not None and before.state == FREE else unmapped
        nbytes, block = 0, start
        while nbytes < block_bytes and block.state != ACTIVE:
            nbytes += block.nbytes
            if block.after is None:
                break
            block = block.after
        if nbytes >= block_bytes:
            return start
    return None


def _reserve(source: SegmentSource, shelf: Shelf) -> Block:
    page_bytes = SMALL_SEGMENT_BYTES if shelf.pool.small else source.config.large_segment_bytes
    total = source.total_bytes
    nbytes = -(-(total + total // 8) // page_bytes) * page_bytes
    reservation = Reservation(address=source.driver.reserve(nbytes), nbytes=nbytes, page_bytes=page_bytes)
    block = Block(reservation.address, nbytes, shelf, source.new_rank(), UNMAPPED)
    block.reservation = reservation
    shelf.put(block)
    return block


def _part(source: SegmentSource, whole: Block, address: int, nbytes: int, state: int) -> Block:
    part = Block(address, nbytes, whole.shelf, source.rank_of_part(whole), state)
    part.reservation = whole.reservation
    return part


def _map(source: SegmentSource, block: Block, nbytes: int) -> bool:
    """Put memory behind the first `nbytes` of an unmapped block, in whole pages; `False` if the device is full."""
    assert block.reservation is not None
    page_bytes, shelf = block.reservation.page_bytes, block.shelf
    mapped_bytes = -(-nbytes // page_bytes) * page_bytes
    if not source.driver.map_pages(mapped_bytes):
        return False
    address = block.address
    shelf.take_away(block)
    block.state = FREE
    if mapped_bytes < block.nbytes:
        rest = _part(source, block, address + mapped_bytes, block.nbytes - mapped_bytes, UNMAPPED)
        rest.link_after(block)
        shelf.put(rest)
        block.nbytes = mapped_bytes
    block.absorb_neighbours()
    shelf.put(block)
    source.mapped(shelf, address, mapped_bytes)
    return True


def unmap(source: SegmentSource, block: Block) -> None:
    """Give the whole pages inside a free block back; a reservation without any memory left is dropped."""
    reservation, shelf = block.reservation, block.shelf
    assert reservation is not None
    page_bytes = reservation.page_bytes
    offset = block.address - reservation.address
    address = reservation.address - (-offset // page_bytes) * page_bytes
    end = reservation.address + (offset + block.nbytes) // page_bytes * page_bytes
    if address >= end:
        return
    source.driver.unmap_pages(end - address)
    shelf.take_away(block)
    if address > block.address:
        left = _part(source, block, block.address, address - block.address, FREE)
        left.link_before(block)
        shelf.put(left)
    if end < block.address + block.nbytes:
        right = _part(source, block, end, block.address + block.nbytes - end, FREE)
        right.link_after(block)
        shelf.put(right)
    block.address, block.nbytes, block.state = address, end - address, UNMAPPED
    block.absorb_neighbours()
    shelf.put(block)
    source.unmapped(shelf, address, end - address)
    if not block.is_split:
        shelf.take_away(block)
        source.driver.unreserve(reservation.address, reservation.nbytes)
