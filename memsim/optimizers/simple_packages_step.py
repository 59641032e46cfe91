"""Temporaries of the small packages of simple_packages.py, read at the same versions.

Each goes over its groups inside one `step()`, whose last tensors live into the next parameter and the next group.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from memsim.model import ParameterSpec
from memsim.optimizers.gradients import clip_grad_norm_events
from memsim.optimizers.rules import Arguments
from memsim.optimizers.shape_tensor import ShapeTensor, StateTensors, weight
from memsim.optimizers.step import Tape, register_step
from memsim.tensors import Device


@register_step("grokadamw.GrokAdamW", source="grokadamw/grokadamw.py:87-135")
def grokadamw_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """Copies of three moments on the device, one parameter at a time; new ones on the host take the old ones' place."""
    there: Device = "host" if tape.on_cpu else "device"
    exp_avg = exp_avg_sq = grok_ema = grok_grad = None
    for p in parameters:
        state = StateTensors(tape, p).create()
        first, second, ema = (f"group.state.{name}" for name in ("exp_avg", "exp_avg_sq", "grok_ema"))
        exp_avg, exp_avg_sq = state[first].to(device=there), state[second].to(device=there)
        grok_ema = state[ema].to(device=there)
        if args["gradient_clipping"] > 0:
            tape.replay(clip_grad_norm_events([p], on_cpu=tape.on_cpu))
        grok_grad = weight(tape, p) + args["lamb"] * grok_ema
        exp_avg_sq.sqrt()
        state[first] = exp_avg.to(device="host")
        state[second] = exp_avg_sq.to(device="host")
        state[ema] = grok_ema.to(device="host")
    del exp_avg, exp_avg_sq, grok_ema, grok_grad


@register_step(
    "adabelief_pytorch.AdaBelief",
    source="adabelief_pytorch/AdaBelief.py:128-244",
    refused_dtypes={
        "float16": "AdaBelief replaces float16 weights and gradients by float32 ones inside step(), and back: what the "
        "model's own storages do then is not modelled (use bfloat16 or float32 weights)"
    },
    ignores="With rectify, a later step is one whose variance is rectified: with the default betas, from the sixth on.",
)
def adabelief_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """One parameter after the other."""
    v = tape.variables
    for p in parameters:
        state = StateTensors(tape, p).create()
        v.grad_residual = weight(tape, p) - state["exp_avg"]
        if args["amsgrad"]:
            v.denom = state["max_exp_avg_var"].sqrt() / 1.0
        else:
            v.denom = state["exp_avg_var"].sqrt() / 1.0
        if args["rectify"] and not tape.first_step:
            v.denom = state["exp_avg_var"].sqrt()


@register_step("adam_atan2_pytorch.AdamAtan2", source="adam_atan2_pytorch/adam_atan2.py:59-139")
def adam_atan2_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """One parameter after the other."""
    v = tape.variables
    for p in parameters:
        grad, state = weight(tape, p), StateTensors(tape, p).create()
        grad.mul(grad)
        v.den = state["exp_avg_sq"].mul(1.0)
        v.update = state["exp_avg"].mul(1.0)
        if args["cautious_factor"] < 1.0:
            v.align_mask = (v.update * grad) > 0
            v.scale = _where(v.align_mask, grad)
            v.scale.div(v.scale.mean().clamp())
        if args["weight_decay"] > 0.0:
            _decay(v, grad, args)


@register_step(
    "adam_atan2_pytorch.AdoptAtan2",
    source="adam_atan2_pytorch/adopt_atan2.py:55-136",
    ignores="A later step is one that makes no state; the first one updates nothing.",
)
def adopt_atan2_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """One parameter after the other."""
    v = tape.variables
    for p in parameters:
        grad, state = weight(tape, p), StateTensors(tape, p).create()
        if tape.first_step:
            continue
        v.scale = None
        if args["cautious_factor"] < 1.0:
            v.align_mask = (state["m"] * grad) > 0
            v.scale = _where(v.align_mask, grad)
            v.scale.mean().clamp()
        v.grad_sq = grad * grad
        v.update = grad.atan2(args["b"] * state["v"].sqrt())
        state["m"].mul(1.0 if v.scale is None else v.scale)


@register_step("lion_pytorch.cautious_lion.Lion", source="lion_pytorch/cautious_lion.py:42-97")
def cautious_lion_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """One parameter after the other."""
    v = tape.variables
    for p in parameters:
        grad, state = weight(tape, p), StateTensors(tape, p).create()
        v.update = state["exp_avg"].clone().add(grad)
        if args["cautious_factor"] < 1.0:
            v.align_mask = (v.update * grad) > 0
            v.scale = _where(v.align_mask, grad)
            v.scale.mean().clamp()
        if args["weight_decay"] > 0.0:
            _decay(v, grad, args)


def _where(mask: ShapeTensor, grad: ShapeTensor) -> ShapeTensor:
    """`torch.where(mask, torch.ones_like(grad), number)`, which makes a tensor of the number."""
    ones = grad.like()
    number = ones.make("number", ())
    chosen = ones.make("where", mask.shape)
    del number
    return chosen


def _decay(v: SimpleNamespace, p: ShapeTensor, args: Arguments) -> None:
    """`p.mul_(1 - lr * wd * wd_mask)`, where the mask may be the number 1."""
    v.wd_mask = (v.update * p > 0).float() if args["cautious_wd"] else None
    if v.wd_mask is not None:
        v.wd_mask.mul(args["lr"]).sub(1.0)
