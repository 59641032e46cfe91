"""`torch.optim.NAdam`: torch/optim/nadam.py @2.13.0."""

from __future__ import annotations

from collections.abc import Sequence

from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like
from memsim.optimizers.step import Frame, Tape, by_dtype
from memsim.optimizers.torch_optim.forms import TORCH, step_entry
from memsim.optimizers.torch_optim.tape import (
    F32,
    ONE_MINUS_POWER,
    count_steps,
    decay_each,
    negate_and_decay,
    negate_each,
    promoted,
    register_forms,
    scalars,
)

_ARGUMENTS = {
    "lr": 2e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.0,
    "momentum_decay": 4e-3,
    "decoupled_weight_decay": False,
    "foreach": Optional(bool),
    "maximize": False,
    "capturable": False,
    "differentiable": False,
}


@register("torch.optim.NAdam", arguments=_ARGUMENTS, source="torch/optim/nadam.py:125-149", **TORCH)
def nadam(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Adam's two moments, and the product of the momenta so far as a second scalar."""
    scalars = (step_entry(args), step_entry(args, "mu_product"))
    return (*scalars, like("exp_avg", parameter), like("exp_avg_sq", parameter))


def _single(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    with tape.frame() as local:
        for p in parameters:
            negate_and_decay(local, p, args, decay=False)
            local.forget("exp_avg")
            if args["capturable"]:
                local.new("bias_correction2", *ONE_MINUS_POWER, parameter=p.name)
            if args["weight_decay"] and not args["decoupled_weight_decay"]:
                local.new("grad", p)
            if args["capturable"]:
                _capturable_update(local, p)
            else:
                local.new("denom", p, p)  # exp_avg_sq.div(bias_correction2).sqrt()


def _capturable_update(local: Frame, p: ParameterSpec) -> None:
    wide = promoted(p)
    # beta1 * (1.0 - 0.5 * (0.96 ** (step * momentum_decay))), and the same of step + 1
    local.new("mu", F32, F32, F32, F32, F32, parameter=p.name)
    local.new("mu_next", F32, F32, F32, F32, F32, F32, parameter=p.name)
    local.new("denom", wide, wide)
    local.new("denom", wide)  # denom.add(eps)
    local.new("mu_product_next", F32, parameter=p.name)
    for name, first in (("grad", (F32, F32)), ("exp_avg", (F32,))):
        # grad * (-lr * (1.0 - mu) / (1.0 - mu_product)); exp_avg * (-lr * mu_next / (1.0 - mu_product_next))
        numerator = local.open(*first, parameter=p.name, name=name)
        denominator = local.open(F32, parameter=p.name, name=name)
        factor = local.open(F32, parameter=p.name, name=name)
        local.end(numerator, denominator)
        product = local.open(wide, name=name)
        local.end(factor)
        local.receive(name, product)


def _multi(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    with tape.frame() as local:
        for group in by_dtype(parameters):
            negate_each(local, group, args)
            count_steps(tape, local, on_device=args["capturable"])
            if not args["decoupled_weight_decay"]:
                decay_each(local, group, args)
            local.new_each("exp_avg_sq_sqrt", group)
            if args["capturable"]:
                _capturable_factors(local, group)


def _capturable_factors(local: Frame, group: Sequence[ParameterSpec]) -> None:
    each = scalars(group)
    local.new_each("exponent", each)
    local.new_each("mus", each)
    local.new_each("mu_nexts", each)
    local.forget("exponent")
    local.new_each("bias_correction_sqrt", each)
    local.forget("bias_correction_sqrt")
    local.new_each("denom", each)
    local.alias("step_size_grads", "mus")
    local.forget("denom")
    local.new_each("denom", each)
    local.alias("step_size_expavg", "mu_nexts")
    local.forget("denom")
    local.new_each("numerator", map(promoted, group))


register_forms("torch.optim.NAdam", source="torch/optim/nadam.py:281-600", single=_single, multi=_multi)
