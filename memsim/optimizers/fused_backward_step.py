"""Temporaries of LOMO and AdaLomo, read at the version of fused_backward.py.

There is no `step()`: these are the events of the hooks that update each parameter inside backward, a call each.
"""

from __future__ import annotations

from collections.abc import Sequence

from memsim.model import ParameterSpec
from memsim.optimizers.low_rank_step import approx_sq_grad, larger, rms
from memsim.optimizers.rules import Arguments
from memsim.optimizers.shape_tensor import ShapeTensor, StateTensors, weight
from memsim.optimizers.step import Tape, register_step

_IGNORES = (
    "With clip_grad_norm, the norms of the first of two backward passes. That a float32 gradient lives on until its "
    "update is done."
)
_SCALER = " With a float16 loss, the float32 copy of each gradient that is looked through for infinities."


@register_step("lomo_optim.Lomo", source="lomo_optim/lomo.py:80-133", ignores=_IGNORES + _SCALER)
def lomo_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:  # noqa: ARG001
    """The gradient and the weight in float32."""
    for p in parameters:
        _sgd(weight(tape, p))


def _sgd(p: ShapeTensor) -> None:
    grad_fp32 = p.float()
    p_fp32 = p.float()
    del grad_fp32, p_fp32


@register_step("lomo_optim.AdaLomo", source="lomo_optim/adalomo.py:125-209", ignores=_IGNORES)
def adalomo_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """The same, and Adafactor's update; the weights' root mean square is assumed to be above `eps[1]` (0.001)."""
    for p in parameters:
        _factored(weight(tape, p), StateTensors(tape, p), args)


def _factored(p: ShapeTensor, state: StateTensors, args: Arguments) -> None:
    grad_fp32 = p.float()
    update = (grad_fp32**2) + args["eps"][0]
    if len(p.shape) > 1:
        update.mean(dim=-1)
        update.mean(dim=-2)
        update = approx_sq_grad(state["opt.exp_avg_sq_row"], state["opt.exp_avg_sq_col"])
    else:
        update = state["opt.exp_avg_sq"].rsqrt()
    (rms(update) / args["clip_threshold"]).clamp_()
    p_fp32 = p.float()
    p_rms = rms(p_fp32)
    larger(p_rms, args["eps"][1])
    lr = args["lr"] * p_rms
    if args["weight_decay"] > 0.0:
        p_fp32.mul_(1.0 - lr * args["weight_decay"])
    p_fp32.add_(-lr)
    del grad_fp32, update, p_fp32, p_rms, lr
