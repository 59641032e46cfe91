"""`torch.optim.SGD`: torch/optim/sgd.py @2.13.0."""

from __future__ import annotations

from collections.abc import Sequence

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like
from memsim.optimizers.step import Tape, by_dtype, register_step
from memsim.optimizers.torch_optim.forms import TORCH, chosen_form
from memsim.optimizers.torch_optim.tape import decay_each, form_of, negate_and_decay, negate_each

_ARGUMENTS = {
    "lr": 1e-3,
    "momentum": 0.0,
    "dampening": 0.0,
    "weight_decay": 0.0,
    "nesterov": False,
    "maximize": False,
    "foreach": Optional(bool),
    "differentiable": False,
    "fused": Optional(bool),
}


@register("torch.optim.SGD", arguments=_ARGUMENTS, source="torch/optim/sgd.py:84-150", **TORCH)
def sgd(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Nothing without `momentum`; a copy of the gradient with it.

    Raises:
        UsageError: `nesterov` without momentum or with dampening, which the constructor refuses (sgd.py:63).
    """
    chosen_form(args, default="for-loop")
    if args["nesterov"] and (args["momentum"] <= 0 or args["dampening"] != 0):
        raise UsageError("torch.optim.SGD: nesterov=True needs momentum > 0 and dampening=0, e.g. momentum=0.9.")
    return (like("momentum_buffer", parameter),) if args["momentum"] != 0 else ()


@register_step("torch.optim.SGD", source="torch/optim/sgd.py:322-544")
def sgd_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """For-loop, foreach and fused; the fused kernel updates everything in place."""
    form = form_of(tape, args)
    if form == "for-loop":
        _single(tape, parameters, args)
    elif form == "foreach":
        _multi(tape, parameters, args)
    else:
        tape.create_state()


def _single(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    with tape.frame() as local:
        for p in parameters:
            negate_and_decay(local, p, args)
            tape.create_state(p)  # grad.detach().clone()
            if args["nesterov"]:
                local.new("grad", p)
            elif args["momentum"]:
                local.forget("grad")  # grad = buf


def _multi(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    with tape.frame() as local:
        for group in by_dtype(parameters):
            negate_each(local, group, args)
            decay_each(local, group, args)
            for p in group:
                tape.create_state(p)
            if args["momentum"] and not args["nesterov"]:
                local.forget("device_grads")  # device_grads = bufs
