"""What to change first where memory ran out."""

from __future__ import annotations

from memsim.ledger import Category, Phase
from memsim.step import OutOfMemory
from memsim.units import format_bytes

_BY_CATEGORY = {
    Category.PARAMETER: "of weights: load them in bfloat16, quantise them (4 bits with LoRA), or take a smaller model.",
    Category.GRADIENT: "of gradients: train fewer parameters (LoRA, frozen layers), or in bfloat16.",
    Category.OPTIMIZER_STATE: "of optimizer state: an optimizer with less of it (adamw_bnb_8bit, adafactor; see "
    "'memsim optimizers'), or fewer trained parameters (LoRA).",
    Category.ACTIVATION: "of activations: a smaller batch or shorter sequences (gradient accumulation for the same "
    "total), or activation checkpointing.",
    Category.INPUT: "of inputs: a smaller batch; where several are held, move them to the GPU one at a time.",
}
_ENOUGH = 0.15
"""Categories below this share of the memory are not worth a piece of advice."""
_MOST_ADVICE = 3


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
    total = sum(by_category.values())
    temporary = by_category.get(Category.TEMPORARY.value, 0)
    if oom.phase is Phase.OPTIMIZER_STEP and temporary >= _ENOUGH * total:
        advice.append(
            f"{format_bytes(temporary)} of temporaries in the optimizer's step: its foreach form copies all gradients, "
            "fused=True (or foreach=False) does not."
        )
    for name, nbytes in sorted(by_category.items(), key=lambda item: -item[1]):
        text = _BY_CATEGORY.get(Category(name))
        if text is not None and nbytes >= _ENOUGH * total:
            advice.append(f"{format_bytes(nbytes)} {text}")
    return tuple(advice[:_MOST_ADVICE])
