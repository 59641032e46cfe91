"""What to change first where memory ran out."""

from __future__ import annotations

from memsim.ledger import Category, Phase
from memsim.step import OutOfMemory
from memsim.units import format_bytes

_BY_CATEGORY = {
    Category.PARAMETER: "Weights hold most: load them in bfloat16, quantise them (4 bits with LoRA), or take a smaller "
    "model.",
    Category.GRADIENT: "Gradients hold most: train fewer parameters (LoRA, frozen layers), or in bfloat16.",
    Category.OPTIMIZER_STATE: "Optimizer state holds most: an optimizer with less of it (adamw_bnb_8bit, adafactor; "
    "see 'memsim optimizers'), or fewer trained parameters (LoRA).",
    Category.ACTIVATION: "Activations hold most: a smaller batch or shorter sequences (with gradient accumulation for "
    "the same total), or activation checkpointing.",
    Category.INPUT: "Inputs hold most: move batches to the GPU one at a time.",
}
_ENOUGH = 0.15
"""Categories below this share of the memory are not worth a second piece of advice."""


def advice_for(oom: OutOfMemory, by_category: dict[str, int]) -> tuple[str, ...]:
    """Return at most three sentences, what helps most first.

    Args:
        oom: the allocation that failed.
        by_category: bytes that were held at that moment.
    """
    advice = []
    cached = oom.reserved_bytes - oom.allocated_bytes
    if cached + oom.free_bytes >= oom.asked_bytes:
        advice.append(
            f"{format_bytes(cached)} lay in the allocator's cache in pieces too small: "
            "try PYTORCH_ALLOC_CONF=expandable_segments:True."
        )
    if oom.phase is Phase.OPTIMIZER_STEP:
        advice.append(
            "It ran out inside the optimizer's step, whose foreach form makes copies of all gradients: "
            "fused=True (or foreach=False) needs none of them."
        )
    total = sum(by_category.values())
    for name, nbytes in sorted(by_category.items(), key=lambda item: -item[1]):
        text = _BY_CATEGORY.get(Category(name))
        if text is not None and nbytes >= _ENOUGH * total:
            advice.append(text if not any("hold" in said for said in advice) else text.replace("most:", "much:", 1))
    return tuple(advice[:3])
