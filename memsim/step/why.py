"""`why`: a sentence that says where the peak is and what makes it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from memsim.ledger import Category, Phase
from memsim.step.peaks import HeldTensor, folded_module
from memsim.units import format_bytes

_STATIC = {
    Category.PARAMETER: "parameters",
    Category.BUFFER: "buffers",
    Category.GRADIENT: "gradients",
    Category.OPTIMIZER_STATE: "optimizer state",
}
_MOMENTS = {
    Phase.LOAD: "while the model is loaded",
    Phase.FORWARD: "in the forward of step {step}",
    Phase.BACKWARD: "in the backward of step {step}",
    Phase.OPTIMIZER_STEP: "in the optimizer's step {step}",
    Phase.ZERO_GRAD: "while gradients are zeroed in step {step}",
    Phase.EVALUATION: "in the evaluation after step {step}",
    Phase.GENERATE: "while text is generated after step {step}",
    Phase.SAVE: "while a checkpoint is saved after step {step}",
}
_WORTH_NAMING = 0.1
"""Share of what is not static from which a kind of tensor is named."""
_MOST_NAMES = 3


def why(tensors: Sequence[HeldTensor], *, step: int, phase: Phase) -> str:
    """Return where the peak is, what lies there all the time, and the tensors that make it a peak.

    Args:
        tensors: everything that is alive at the peak.
        step: of the peak, from 1.
        phase: of the peak.
    """
    static: dict[Category, int] = defaultdict(int)
    moving: list[HeldTensor] = []
    for tensor in tensors:
        if tensor.holder.category in _STATIC:
            static[tensor.holder.category] += tensor.allocated_bytes
        else:
            moving.append(tensor)
    sentence = f"The peak is {_MOMENTS[phase].format(step=step)}: {_listed(static)}"
    total = sum(tensor.allocated_bytes for tensor in moving)
    if not total:
        return f"{sentence}."
    parts = "; ".join(_kinds(moving, total))
    return f"{sentence}, and {format_bytes(total)} of everything else{': ' + parts if parts else ''}."


def _listed(static: dict[Category, int]) -> str:
    ordered = sorted(static.items(), key=lambda item: -item[1])
    texts = [f"{format_bytes(nbytes)} of {_STATIC[category]}" for category, nbytes in ordered if nbytes]
    return ", ".join(texts) or "nothing is held all the time"


def _kinds(tensors: Sequence[HeldTensor], total: int) -> list[str]:
    """Return the kinds of tensors that take most, equal shape and dtype together."""
    kinds: dict[tuple[object, ...], list[HeldTensor]] = defaultdict(list)
    for tensor in tensors:
        kinds[_kind(tensor)].append(tensor)
    ordered = sorted(kinds.values(), key=lambda same: -sum(t.allocated_bytes for t in same))
    large = [same for same in ordered if sum(t.allocated_bytes for t in same) >= _WORTH_NAMING * total]
    return [_described(same) for same in large[:_MOST_NAMES]]


def _kind(tensor: HeldTensor) -> tuple[object, ...]:
    holder = tensor.holder
    if holder.name:  # a variable of an optimizer's step, one for each parameter
        return (holder.op, holder.name.partition(" of ")[0])
    return (holder.shape, holder.dtype, None if holder.shape is not None else tensor.requested_bytes)


def _described(same: Sequence[HeldTensor]) -> str:
    """Return `3 float32 tensors of [4, 4096, 32000], 6.3 GiB (lm_head, loss)`."""
    holder = same[0].holder
    plural = "s" if len(same) > 1 else ""
    total = format_bytes(sum(tensor.allocated_bytes for tensor in same))
    if holder.name:
        return f"{len(same)} tensor{plural} {holder.name.partition(' of ')[0]} of {holder.op}, {total}"
    what = f"{len(same)} {holder.dtype} tensor{plural} of {list(holder.shape)}" if holder.shape is not None else ""
    what = what or f"{len(same)} block{plural} of {format_bytes(same[0].requested_bytes)}"
    names = dict.fromkeys(filter(None, (_name(tensor) for tensor in same)))
    shown = ", ".join(list(names)[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
    return f"{what}, {total}{f' ({shown})' if shown else ''}"


def _name(tensor: HeldTensor) -> str:
    holder = tensor.holder
    if holder.category is Category.WORKSPACE:
        return "cuBLAS workspace"
    return " ".join(filter(None, (folded_module(holder.module), holder.op)))
