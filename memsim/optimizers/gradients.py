"""What happens to the gradients before `step()`: clipping their norm and undoing the loss scale, as events.

Both are optional parts of a training step. What they hand on (the total norm, `found_inf`) is not freed here: the
caller, or `GradScaler.update()`, lets go of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from memsim.model import ParameterSpec
from memsim.optimizers.step import Frame, Tape, by_dtype, scalar
from memsim.optimizers.step_event import StepEvent
from memsim.tensors import TensorSpec

CHUNK = 65536
"""Elements that one block of a multi-tensor kernel reduces (`kChunkSize`, ATen/native/cuda/MultiTensorApply.cuh:18)."""

_OPMATH = {"float16": "float32", "bfloat16": "float32"}
_FAST_NORMS = (1.0, 2.0, float("inf"))


def clip_grad_norm_events(
    parameters: Sequence[ParameterSpec], *, norm_type: float = 2.0, foreach: bool = True, on_cpu: bool = False
) -> list[StepEvent]:
    """Return every allocation and free of `torch.nn.utils.clip_grad_norm_`, in order.

    The gradients are scaled in place. In foreach form (PyTorch's choice on an accelerator and on the CPU) the CUDA
    kernel keeps a partial sum for every chunk of the largest tensor, times the number of tensors: 146 MB for a model of
    405 billion parameters.

    Source: torch/nn/utils/clip_grad.py:49-235 @2.13.0; ATen/native/cuda/ForeachReduceOp.cu, foreach_tensor_norm_cuda.

    Args:
        parameters: those that have a gradient.
        norm_type: of the norm.
        foreach: whether the foreach form runs.
        on_cpu: what a CPU would do instead of an accelerator.
    """
    if not parameters:
        return []
    tape = Tape()
    dtype = max((p.tensor for p in parameters), key=lambda tensor: tensor.itemsize).dtype
    with tape.frame() as local:
        kernel = foreach and not on_cpu and norm_type in _FAST_NORMS
        for group in by_dtype(parameters):
            for norm in _cuda_norms(local, group) if kernel else _norms(local, group):
                local.append("norms", norm)
        stacked = local.open(TensorSpec((len(parameters),), dtype), name="norms")
        local.open(scalar(dtype), name="total_norm")  # handed on
        local.end(stacked)
    with tape.frame() as local:
        total = local.open(scalar(dtype), name="clip_coef")  # max_norm / (total_norm + 1e-6)
        local.new("clip_coef", scalar(dtype), scalar(dtype))
        local.end(total)
        local.new("clip_coef_clamped", scalar(dtype))
    return tape.events


def _norms(local: Frame, group: Sequence[ParameterSpec]) -> list[StepEvent]:
    return [local.open(scalar(p.tensor.dtype), parameter=p.name, name="norms") for p in group]


def _cuda_norms(local: Frame, group: Sequence[ParameterSpec]) -> list[StepEvent]:
    dtype = group[0].tensor.dtype
    chunks = max(-(-p.tensor.numel // CHUNK) for p in group)
    partial = local.open(TensorSpec((len(group) * chunks,), _OPMATH.get(dtype, dtype)), name="output_per_tensor")
    # A tensor without elements takes no part, but a result is made for it all the same, and a zero besides.
    filled = _norms(local, [p for p in group if p.tensor.numel])
    empty = [p for p in group if not p.tensor.numel]
    unused = _norms(local, empty)
    zeros = iter(_norms(local, empty))
    results = iter(filled)
    norms = [next(results if p.tensor.numel else zeros) for p in group]
    local.end(*unused, partial)
    return norms


def unscale_events(parameters: Sequence[ParameterSpec]) -> list[StepEvent]:
    """Return every allocation and free of `torch.amp.GradScaler.unscale_`, in order; gradients change in place.

    What says whether a gradient was infinite is handed on, and dies in `GradScaler.update`.

    Source: torch/amp/grad_scaler.py:246-345 @2.13.0.
    """
    # scale.double().reciprocal().float()
    return _scaled(parameters, "inv_scale", scalar("float64"), scalar("float64"), scalar("float32"))


def check_inf_events(parameters: Sequence[ParameterSpec]) -> list[StepEvent]:
    """Return the same of `GradScaler.step` with a fused optimizer, whose kernel scales gradients back by itself.

    Source: `_check_inf_per_device`, torch/amp/grad_scaler.py @2.13.0.
    """
    return _scaled(parameters, "dummy_inv_scale", scalar("float32"))


def _scaled(parameters: Sequence[ParameterSpec], name: str, *made: TensorSpec) -> list[StepEvent]:
    if not parameters:
        return []
    tape = Tape()
    with tape.frame() as local:
        local.new(name, *made)
        local.new("found_inf", scalar("float32"))
        # The gradients' device gets copies of both (_MultiDeviceReplicator); found_inf's is handed on.
        local.open(scalar("float32"), name="found_inf_per_device")
        local.brief(scalar("float32"), name="inv_scale")
    return tape.events
