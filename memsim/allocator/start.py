"""From a state of segments and blocks to linked blocks, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from memsim.allocator.blocks import ACTIVE, FREE, UNMAPPED, Block
from memsim.allocator.segments import SegmentSource
from memsim.allocator.state import BlockState, SegmentState
from memsim.errors import MemsimError


def adopt(segments: Sequence[SegmentState], source: SegmentSource) -> Iterator[Block]:
    """Put the free blocks of `segments` on their shelves and yield the allocated ones.

    Which segment is older is not known: they are numbered in the order given.

    Raises:
        MemsimError: a segment cannot be taken up.
    """
    for segment in segments:
        _check(segment)
        pool = source.small if segment.small else source.large
        shelf = pool.shelves.get(segment.stream) or pool.new_shelf(segment.stream)
        source.held_bytes += segment.nbytes
        source.statistics.segment_came(pool.statistics, segment.nbytes, oversize=source.is_oversize(segment.nbytes))
        rank = source.new_rank()
        blocks = [Block(state.address, state.nbytes, shelf, rank, FREE) for state in segment.blocks]
        for block, following in pairwise(blocks):
            block.after, following.before = following, block
        for block, state in zip(blocks, segment.blocks, strict=True):
            if state.state == "inactive":
                shelf.put(block)
                if block.is_split:
                    source.statistics.change_split(pool.statistics, 1, block.nbytes)
                continue
            block.state, block.requested_bytes = ACTIVE, state.requested_bytes
            pool.statistics.num_allocs += 1
            pool.statistics.allocated_up += block.nbytes
            pool.statistics.requested_up += block.requested_bytes
            pool.statistics.grew = True
            yield block


def _check(segment: SegmentState) -> None:
    if segment.expandable:
        raise MemsimError("the allocator cannot start from expandable segments: how far they can grow is not known.")
    end = segment.address
    for block in segment.blocks:
        if block.address != end or block.nbytes <= 0 or block.state == "active_pending_free":
            break
        end += block.nbytes
    if end != segment.address + segment.nbytes:
        raise MemsimError(
            f"the allocator cannot start from the segment at {segment.address:#x}: its blocks must fill it, "
            "each allocated or free."
        )


def states(blocks: Iterable[Block], *, live: Mapping[int, Block]) -> tuple[SegmentState, ...]:
    """Return the segments that `blocks`, all that are not unmapped, make up; `live` are the allocated ones."""
    heads = (block for block in blocks if block.before is None or block.before.state == UNMAPPED)
    return tuple(_segment(head, live) for head in sorted(heads, key=lambda block: block.address))


def _segment(head: Block, live: Mapping[int, Block]) -> SegmentState:
    found = []
    block: Block | None = head
    while block is not None and block.state != UNMAPPED:
        active = block.state == ACTIVE
        allocated = live.get(block.address) is block
        found.append(
            BlockState(
                address=block.address,
                nbytes=block.nbytes,
                requested_bytes=block.requested_bytes if active else 0,
                state="active_allocated" if allocated else "active_pending_free" if active else "inactive",
            )
        )
        block = block.after
    return SegmentState(
        address=head.address,
        nbytes=sum(state.nbytes for state in found),
        stream=head.shelf.stream,
        small=head.shelf.pool.small,
        expandable=head.reservation is not None,
        blocks=tuple(found),
    )
