"""Sizes of the caching allocator: from a request to a block, from a block to a segment.

The constants are those of c10/core/AllocatorConfig.h @2.13; older versions have them in
c10/cuda/CUDACachingAllocator.cpp, with the same values.
"""

from __future__ import annotations

from collections.abc import Sequence

from memsim.units import KIB, MIB

MIN_BLOCK_BYTES = 512
"""Every block is a multiple of it; a block of the small pool is split when this much remains."""
SMALL_BYTES = 1024 * KIB
"""Blocks up to here live in the small pool; one of the large pool is only split when more than this remains."""
SMALL_SEGMENT_BYTES = 2 * MIB
"""Bytes of every segment of the small pool, and of a page of its expandable segments."""
LARGE_SEGMENT_BYTES = 20 * MIB
"""Bytes of a segment for blocks of more than 1 MiB and less than 10, and of a page of expandable segments."""
MIN_LARGE_BYTES = 10 * MIB
"""From here on a block gets a segment of its own size."""
ROUND_LARGE_BYTES = 2 * MIB
"""A segment of its own is a multiple of it."""
NUM_DIVISIONS = 16
"""Intervals of `roundup_power2_divisions`: up to 2 MiB, 2 to 4 MiB, ... 32 GiB and more."""

_FIRST_INTERVAL = MIB.bit_length()


def round_size(nbytes: int, divisions: Sequence[int] = ()) -> int:
    """Return the bytes of the block that a request for `nbytes` is rounded up to.

    `divisions` are the 16 of `roundup_power2_divisions`, or empty. Source: `round_size`,
    c10/cuda/CUDACachingAllocator.cpp @2.13.
    """
    if nbytes < MIN_BLOCK_BYTES:
        return MIN_BLOCK_BYTES
    interval = min(max(nbytes.bit_length() - _FIRST_INTERVAL, 0), NUM_DIVISIONS - 1)
    division = divisions[interval] if divisions else 0
    if division > 1 and nbytes > MIN_BLOCK_BYTES * division:
        power = 1 << (nbytes.bit_length() - 1)
        step = power // division
        if nbytes == power:
            return nbytes
        return -(-nbytes // step) * step if step else 2 * power
    return -(-nbytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES


def segment_bytes(block_bytes: int, large_segment_bytes: int = LARGE_SEGMENT_BYTES) -> int:
    """Return the bytes that are asked of the device for a block of `block_bytes` that no free block holds.

    Source: `get_allocation_size`, c10/cuda/CUDACachingAllocator.cpp @2.13.
    """
    if block_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if block_bytes < MIN_LARGE_BYTES:
        return large_segment_bytes
    return -(-block_bytes // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES
