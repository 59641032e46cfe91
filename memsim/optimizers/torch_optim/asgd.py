"""`torch.optim.ASGD`: torch/optim/asgd.py @2.13.0."""

from __future__ import annotations

from collections.abc import Sequence

from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like, step_tensor
from memsim.optimizers.step import Frame, Tape, by_dtype, register_step, scalar
from memsim.optimizers.torch_optim.forms import TORCH, chosen_form
from memsim.optimizers.torch_optim.tape import (
    F32,
    QUOTIENT,
    count_steps,
    form_of,
    negate_and_decay,
    negate_each,
    scalars,
)

_ARGUMENTS = {
    "lr": 1e-2,
    "lambd": 1e-4,
    "alpha": 0.75,
    "t0": 1e6,
    "weight_decay": 0.0,
    "foreach": Optional(bool),
    "maximize": False,
    "differentiable": False,
    "capturable": False,
}


@register("torch.optim.ASGD", arguments=_ARGUMENTS, source="torch/optim/asgd.py:100-117", **TORCH)
def asgd(parameter: ParameterSpec, args: Arguments) -> Entries:
    """The averaged parameter, and three scalars that live on the parameter's device whatever the arguments."""
    chosen_form(args, default="for-loop")
    scalars = (step_tensor(on_device=True, name=name) for name in ("step", "eta", "mu"))
    return (*scalars, like("ax", parameter))


@register_step("torch.optim.ASGD", source="torch/optim/asgd.py:197-420")
def asgd_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """For-loop and foreach.

    In for-loop form the average is a plain copy until step `t0`; with `t0` below 1 later steps really average, which
    takes a tensor more. The default is a million steps.
    """
    if tape.first_step:
        for p in parameters:
            _create_state(tape, p)
    if form_of(tape, args) == "foreach":
        _multi(tape, parameters, args)
    else:
        _single(tape, parameters, args)


def _create_state(tape: Tape, p: ParameterSpec) -> None:
    with tape.frame() as local:
        for name in ("step", "eta", "mu", "ax"):
            lr = local.open(F32, parameter=p.name, name="lr") if name == "eta" else None
            tape.create_state(p, name)
            if lr is not None:
                local.end(lr)  # torch.as_tensor(lr).clone()


def _single(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    averaging = args["capturable"] or (not tape.first_step and args["t0"] < 1)
    host = scalar(device="host")
    with tape.frame() as local:
        for p in parameters:
            local.forget("grad")
            negate_and_decay(local, p, args)
            if args["capturable"]:
                local.brief(F32, F32, parameter=p.name)  # param.mul_(1 - lambd * eta)
            if averaging:
                local.brief(p, name="ax")  # ax.add_(param.sub(ax).mul_(mu))
            if args["capturable"]:
                _capturable_scalars(local, p)
            else:
                local.new("new_eta", host, parameter=p.name)
                local.new("new_mu", host, parameter=p.name)


def _capturable_scalars(local: Frame, p: ParameterSpec) -> None:
    # eta.copy_(lr / ((1 + lambd * lr * step_t) ** alpha))
    power = local.open(F32, F32, F32, parameter=p.name, name="eta")
    quotient = local.open(*QUOTIENT, parameter=p.name, name="eta")
    local.end(power, quotient)
    # mu.copy_(1 / torch.maximum(step_t - t0, torch.ones_like(step_t)))
    difference = local.open(F32, parameter=p.name, name="mu")
    ones = local.open(F32, parameter=p.name, name="mu")
    maximum = local.open(F32, parameter=p.name, name="mu")
    local.end(difference, ones)
    quotient = local.open(*QUOTIENT, parameter=p.name, name="mu")
    local.end(maximum, quotient)


def _multi(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    with tape.frame() as local:
        for group in by_dtype(parameters):
            negate_each(local, group, args, name="grouped_grads")
            count_steps(tape, local, on_device=True)
            if args["weight_decay"] and args["maximize"]:
                local.alias("intermediate", "grouped_grads")
            else:
                local.new_each("intermediate", group)
            local.forget("intermediate")
            local.new_each("intermediate", group)
            local.forget("intermediate")
            if args["capturable"]:
                local.new_each("new_mus", scalars(group))
                local.forget("new_mus")
                local.new_each("new_etas", scalars(group))
            else:
                _new_scalars(tape, local, group)


def _new_scalars(tape: Tape, local: Frame, group: Sequence[ParameterSpec]) -> None:
    etas, mus = [], []
    for p in group:
        # torch.as_tensor(lr / ((1 + lambd * lr * step) ** alpha), device=device): step lives on the device
        power = local.open(F32, F32, F32, parameter=p.name, name="new_etas")
        etas.append(local.open(*QUOTIENT, parameter=p.name, name="new_etas"))
        local.end(power)
    local.receive("new_etas", *etas)
    for p in group:
        # torch.as_tensor(number, device=device) is made on the host and copied
        made = None if tape.on_cpu else local.open(scalar(device="host"), parameter=p.name, name="new_mus")
        mus.append(local.open(F32, parameter=p.name, name="new_mus"))
        if made is not None:
            local.end(made)
    local.receive("new_mus", *mus)
