"""`torch.optim.RMSprop`: torch/optim/rmsprop.py @2.13.0."""

from __future__ import annotations

from collections.abc import Sequence

from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like
from memsim.optimizers.step import Tape, by_dtype
from memsim.optimizers.torch_optim.forms import TORCH, step_entry
from memsim.optimizers.torch_optim.tape import count_steps, decay_each, negate_and_decay, negate_each, register_forms

_ARGUMENTS = {
    "lr": 1e-2,
    "alpha": 0.99,
    "eps": 1e-8,
    "weight_decay": 0.0,
    "momentum": 0.0,
    "centered": False,
    "capturable": False,
    "foreach": Optional(bool),
    "maximize": False,
    "differentiable": False,
}


@register("torch.optim.RMSprop", arguments=_ARGUMENTS, source="torch/optim/rmsprop.py:113-132", **TORCH)
def rmsprop(parameter: ParameterSpec, args: Arguments) -> Entries:
    """The running average of the squared gradient, and what `momentum` and `centered` add."""
    names = (
        "square_avg",
        *(("momentum_buffer",) if args["momentum"] > 0 else ()),
        *(("grad_avg",) if args["centered"] else ()),
    )
    return (step_entry(args), *(like(name, parameter) for name in names))


def _single(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    with tape.frame() as local:
        for p in parameters:
            local.forget("grad")
            negate_and_decay(local, p, args)
            local.new("avg", p)


def _multi(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    with tape.frame() as local:
        for group in by_dtype(parameters):
            negate_each(local, group, args)
            count_steps(tape, local, on_device=args["capturable"])
            decay_each(local, group, args)
            local.new_each("avg", group)


register_forms("torch.optim.RMSprop", source="torch/optim/rmsprop.py:265-460", single=_single, multi=_multi)
