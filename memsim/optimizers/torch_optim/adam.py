"""`torch.optim.Adam` and `AdamW`: torch/optim/adam.py and adamw.py @2.13.0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, adam_moments, like
from memsim.optimizers.step import Frame, Tape, by_dtype
from memsim.optimizers.torch_optim.forms import TORCH, step_entry
from memsim.optimizers.torch_optim.tape import (
    F32,
    ONE_MINUS_POWER,
    QUOTIENT,
    count_steps,
    decay_each,
    negate_and_decay,
    negate_each,
    promoted,
    register_forms,
    scalars,
)

_ADAM: dict[str, Any] = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.0,
    "amsgrad": False,
    "foreach": Optional(bool),
    "maximize": False,
    "capturable": False,
    "differentiable": False,
    "fused": Optional(bool),
    "decoupled_weight_decay": False,
}
_ADAMW = {key: value for key, value in _ADAM.items() if key != "decoupled_weight_decay"} | {"weight_decay": 1e-2}


@register("torch.optim.Adam", arguments=_ADAM, source="torch/optim/adam.py:168-191", **TORCH)
@register("torch.optim.AdamW", arguments=_ADAMW, source="torch/optim/adamw.py:60, adam.py:168-191", **TORCH)
def adam(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two moments in the parameter's dtype, three with `amsgrad`."""
    return (step_entry(args), *(like(name, parameter) for name in adam_moments(args)))


def _couples_decay(args: Arguments) -> bool:
    """Return whether weight decay is added to the gradient: Adam's own way, never AdamW's."""
    return not args.get("decoupled_weight_decay", True)


def _single(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    with tape.frame() as local:
        for p in parameters:
            negate_and_decay(local, p, args, decay=_couples_decay(args))
            if args["capturable"]:
                _capturable_denom(local, p, args)
            else:
                local.new("denom", p, p)  # (exp_avg_sq.sqrt() / bias_correction2_sqrt).add_(eps)


def _capturable_denom(local: Frame, p: ParameterSpec, args: Arguments) -> None:
    local.new("bias_correction1", *ONE_MINUS_POWER, parameter=p.name)
    local.new("bias_correction2", *ONE_MINUS_POWER, parameter=p.name)
    local.new("step_size", *QUOTIENT, parameter=p.name)
    local.new("step_size_neg", F32, parameter=p.name)
    local.new("bias_correction2_sqrt", F32, parameter=p.name)
    if args["amsgrad"]:
        local.brief(p, name="max_exp_avg_sq")  # max_exp_avg_sqs[i].copy_(torch.maximum(...))
    # (exp_avg_sq.sqrt() / (bias_correction2_sqrt * step_size_neg)).add_(eps / step_size_neg)
    root = local.open(p, name="denom")
    factor = local.open(F32, parameter=p.name, name="denom")
    denom = local.open(promoted(p), name="denom")
    local.end(root, factor)
    local.brief(*QUOTIENT, parameter=p.name, name="denom")
    local.receive("denom", denom)


def _multi(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    capturable = args["capturable"]
    with tape.frame() as local:
        for group in by_dtype(parameters):
            negate_each(local, group, args)
            count_steps(tape, local, on_device=capturable)
            if _couples_decay(args):
                decay_each(local, group, args)
            local.forget("device_grads")
            if capturable:
                local.new_each("bias_correction1", scalars(group))
                local.new_each("bias_correction2", scalars(group))
                local.alias("step_size", "bias_correction1")
                local.alias("bias_correction2_sqrt", "bias_correction2")
            local.new_each("exp_avg_sq_sqrt", group)


for _name in ("Adam", "AdamW"):
    register_forms(f"torch.optim.{_name}", source="torch/optim/adam.py:347-900", single=_single, multi=_multi)
