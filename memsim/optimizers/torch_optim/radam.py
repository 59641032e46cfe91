"""`torch.optim.RAdam`: torch/optim/radam.py @2.13.0."""

from __future__ import annotations

from collections.abc import Sequence

from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like
from memsim.optimizers.step import Frame, Tape, by_dtype, scalar
from memsim.optimizers.step_event import StepEvent
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
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.0,
    "decoupled_weight_decay": False,
    "foreach": Optional(bool),
    "maximize": False,
    "capturable": False,
    "differentiable": False,
}


@register("torch.optim.RAdam", arguments=_ARGUMENTS, source="torch/optim/radam.py:103-120", **TORCH)
def radam(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Adam's two moments."""
    return (step_entry(args), like("exp_avg", parameter), like("exp_avg_sq", parameter))


def _single(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    beta2 = args["betas"][1]
    rectified = not tape.first_step and 2 / (1 - beta2) - 1 > 5
    # bias_correction2 and rho_t are used by inner functions.
    with tape.frame("grad", "bias_correction1", "bias_corrected_exp_avg", "update") as local:
        for p in parameters:
            negate_and_decay(local, p, args, decay=not args["decoupled_weight_decay"])
            if args["capturable"]:
                _capturable_update(tape, local, p)
                continue
            local.new("bias_corrected_exp_avg", p)
            scaled = local.open(p, name="update")  # bias_corrected_exp_avg * lr
            if rectified:
                adaptive = _adaptive_lr(tape, p)
                product = local.open(p, name="update")
                local.end(scaled, adaptive)
                scaled = local.open(p, name="update")  # ... * _compute_rect()
                local.end(product)
            local.end(scaled)


def _adaptive_lr(tape: Tape, p: ParameterSpec) -> StepEvent:
    """`number / exp_avg_sq.sqrt().add_(eps)`."""
    with tape.frame() as local:
        local.new("exp_avg_sq_sqrt", p)
        return local.open(p, p, name="adaptive_lr")


def _capturable_update(tape: Tape, local: Frame, p: ParameterSpec) -> None:
    wide, one = promoted(p), p.name
    local.new("bias_correction1", *ONE_MINUS_POWER, parameter=one)
    local.new("bias_correction2", *ONE_MINUS_POWER, parameter=one)
    local.new("bias_corrected_exp_avg", wide)
    # rho_inf - 2 * step * (beta2**step) / bias_correction2
    twice, power = local.open(F32, parameter=one), local.open(F32, parameter=one)
    product = local.open(F32, parameter=one)
    local.end(twice, power)
    quotient = local.open(F32, parameter=one)
    local.end(product)
    rho_t = local.open(F32, parameter=one, name="rho_t")
    local.end(quotient)
    local.receive("rho_t", rho_t)
    # torch.where(rho_t > 5.0, _compute_rect() * _compute_adaptive_lr(), 1.0)
    condition = local.open(scalar("bool"), parameter=one)
    rect = _capturable_rect(tape, one)
    adaptive = _capturable_adaptive_lr(tape, p)
    rectified = local.open(wide, name="update")
    local.end(rect, adaptive)
    otherwise = local.open(scalar(wide.tensor.dtype), parameter=one)
    update = local.open(wide, name="update")
    local.end(otherwise, condition, rectified)
    local.receive("update", update)
    local.brief(wide, wide)  # bias_corrected_exp_avg * lr * update


def _capturable_rect(tape: Tape, parameter: str) -> StepEvent:
    """`((rho_t - 4) * (rho_t - 2) * rho_inf / (number * rho_t)) ** 0.5`."""
    with tape.frame() as local:
        minus_4, minus_2 = local.open(F32, parameter=parameter), local.open(F32, parameter=parameter)
        product = local.open(F32, parameter=parameter)
        local.end(minus_4, minus_2)
        numerator = local.open(F32, parameter=parameter)
        local.end(product)
        denominator = local.open(F32, parameter=parameter)
        quotient = local.open(F32, parameter=parameter)
        local.end(numerator, denominator)
        rect = local.open(F32, parameter=parameter, name="rect")
        local.end(quotient)
        return rect


def _capturable_adaptive_lr(tape: Tape, p: ParameterSpec) -> StepEvent:
    """`bias_correction2**0.5 / exp_avg_sq.sqrt().add_(eps)`."""
    with tape.frame() as local:
        local.new("exp_avg_sq_sqrt", p)
        root = local.open(F32, parameter=p.name)
        adaptive = local.open(promoted(p), name="adaptive_lr")
        local.end(root)
        return adaptive


def _multi(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    with tape.frame() as local:
        for group in by_dtype(parameters):
            count_steps(tape, local, on_device=args["capturable"])
            negate_each(local, group, args)
            if args["capturable"]:
                local.new_each("bias_correction1", scalars(group))
                local.new_each("bias_correction2", scalars(group))
                local.alias("rho_t_list", "bias_correction2")
            if not args["decoupled_weight_decay"]:
                decay_each(local, group, args)
            local.forget("device_grads")
            if args["capturable"]:
                _capturable_factors(local, group)
            local.new_each("buffer", group)


def _capturable_factors(local: Frame, group: Sequence[ParameterSpec]) -> None:
    each = scalars(group)
    local.new_each("num", each)
    local.new_each("sub2", each)
    local.forget("sub2")
    local.new_each("denom", each)
    local.forget("denom")
    _where_each(local, "rect", group, numbers=1)
    local.forget("num", "rho_t_list")
    _where_each(local, "unrect_step_size", group, numbers=2)
    local.new_each("bias_correction1", each)
    local.new_each("bias_correction2", each)
    local.forget("rect", "bias_correction1")


def _where_each(local: Frame, name: str, group: Sequence[ParameterSpec], *, numbers: int) -> None:
    """`name = [torch.where(condition, ..., ...) for ... in ...]` of scalars, with `numbers` plain numbers."""
    chosen = []
    for p in group:
        condition = local.open(scalar("bool"), parameter=p.name, name=name)
        choices = [local.open(F32, parameter=p.name, name=name) for _ in range(numbers)]
        chosen.append(local.open(F32, parameter=p.name, name=name))
        local.end(*reversed(choices), condition)
    local.receive(name, *chosen)


register_forms(
    "torch.optim.RAdam",
    source="torch/optim/radam.py:256-570",
    single=_single,
    multi=_multi,
    ignores="Later steps are those after the fifth, when the update is rectified (`rho_t > 5`, radam.py:340); "
    "steps 2 to 5 hold less.",
)
