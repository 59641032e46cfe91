"""The temporary storage of CUB's sorts and scans, which PyTorch uses where gradients are gathered by index.

The backward of an embedding sorts its token ids, marks where each id begins and adds up the rows of an id piece by
piece; `index_put_` with `accumulate` sorts too. The sizes are step functions of the number of ids.

Source: ATen/native/cuda/Embedding.cu (`embedding_dense_backward_cuda`, the threshold) and EmbeddingBackwardKernel.cu
@2.13; CCCL cub/device/dispatch/dispatch_radix_sort.cuh (`InvokeOnesweep`), cub/agent/single_pass_scan_operators.cuh
(`ScanTileState::AllocationSize`), cub/util_temporary_storage.cuh (`AliasTemporaries`). The items of a tile are those
that torch 2.13.0 built with CUDA 13.0 chooses, found from the storage that it asks for, for 2.5 x 10**8 ids on each
architecture: the sort of 64-bit pairs is that of cub/device/dispatch/tuning/tuning_radix_sort.cuh (384 threads with 10
items from compute capability 8.0 on, with 12 from 9.0 on, 256 with 11 before).
"""

from __future__ import annotations

SORTED_ABOVE = 3072
"""Ids above which the backward of an embedding sorts."""
ROWS_PER_THREAD = 10
"""`NROWS_PER_THREAD`: rows that one partial sum covers."""
SINGLE_TILE = 2304
"""Pairs of 64 bits that one block sorts (256 threads with 9), for which one byte is asked."""
DIGITS = 256
"""Values of the 8 bits that one pass sorts by."""
_ALIGNMENT = 256
"""Every part of a temporary storage begins at a multiple of it; one more, less a byte, is for the first."""
_PADDING_TILES = 32


def sort_bytes(num_items: int, passes: int, compute_capability: str) -> int:
    """Return the storage of sorting `num_items` pairs of 64-bit integers by `passes` digits of 8 bits."""
    if num_items <= SINGLE_TILE:
        return 1
    tiles = -(-num_items // _sort_tile(compute_capability))
    copies = 2 * _aligned(8 * num_items) if passes > 1 else 0
    return 8 * DIGITS * passes + 4 * DIGITS * tiles + copies + _ALIGNMENT + _ALIGNMENT - 1


def unique_bytes(num_items: int, compute_capability: str) -> int:
    """Return the storage of `unique_by_key` over `num_items` 64-bit keys."""
    return _tile_states(num_items, _unique_tile(compute_capability))


def scan_bytes(num_items: int) -> int:
    """Return the storage of `exclusive_sum` over `num_items` 64-bit integers."""
    return _tile_states(num_items, 896)


def passes_for(num_rows: int) -> int:
    """Return how many digits of 8 bits tell `num_rows` row numbers apart (`get_num_bits`)."""
    return -(-num_rows.bit_length() // 8)


def num_segments(num_ids: int, num_rows: int) -> int:
    """Return the partial sums that `num_ids` ids of `num_rows` rows are added up in, at most."""
    return num_ids // ROWS_PER_THREAD + min(num_ids, num_rows)


def _tile_states(num_items: int, tile: int) -> int:
    states = 16 * (-(-num_items // tile) + _PADDING_TILES)
    return _aligned(states) + _ALIGNMENT + _ALIGNMENT - 1


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _sort_tile(compute_capability: str) -> int:
    version = float(compute_capability)
    return 4608 if version >= 9 else 3840 if version >= 8 else 2816


def _unique_tile(compute_capability: str) -> int:
    if float(compute_capability) >= 9:
        return 4928
    return 1344 if compute_capability == "8.0" else 320
