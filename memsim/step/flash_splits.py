"""In how many splits flash attention reads the keys: with few sequences and heads it does, to keep a device busy.

The splits' results are put together at the end, which takes memory in forward. How many there are goes up and down with
batch size and length, so that nothing recorded at two points tells about a point between them: this rule does.

Source: `set_params_splitkv` and `num_splits_heuristic`,
aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp @2.13. With dropout there are no splits.
"""

from __future__ import annotations

from memsim.step.reduction import Processors

QUERY_BLOCK = 64
MAX_SPLITS = 128
BLOCKS_PER_MULTIPROCESSOR = 2
ALMOST_FULL = 0.8
"""Share of the device from which on one split is enough."""
GOOD_ENOUGH = 0.85
"""Share of the best efficiency that the first split to reach it is taken for."""


def num_splits(batch_heads: int, length: int, head_size: int, processors: Processors) -> int:
    """Return the splits of the attention of a sequence to itself.

    Args:
        batch_heads: sequences times heads.
        length: tokens of each sequence.
        head_size: numbers of a head.
        processors: the device.
    """
    key_block = 256 if head_size <= 64 else 128 if head_size <= 128 else 64
    num_key_blocks = -(-length // key_block)
    blocks = batch_heads * -(-length // QUERY_BLOCK)
    places = processors.num_multiprocessors * BLOCKS_PER_MULTIPROCESSOR
    if blocks >= ALMOST_FULL * places:
        return 1
    eligible = [
        splits
        for splits in range(1, min(MAX_SPLITS, places, num_key_blocks) + 1)
        if splits == 1 or -(-num_key_blocks // splits) != -(-num_key_blocks // (splits - 1))
    ]
    efficiency = {splits: (blocks * splits / places) / -(-blocks * splits // places) for splits in eligible}
    best = max(efficiency.values())
    return next(splits for splits in eligible if efficiency[splits] >= GOOD_ENOUGH * best)
