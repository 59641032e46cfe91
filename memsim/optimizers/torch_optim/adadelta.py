"""`torch.optim.Adadelta`: torch/optim/adadelta.py @2.13.0."""

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
    "lr": 1.0,
    "rho": 0.9,
    "eps": 1e-6,
    "weight_decay": 0.0,
    "foreach": Optional(bool),
    "capturable": False,
    "maximize": False,
    "differentiable": False,
}


@register("torch.optim.Adadelta", arguments=_ARGUMENTS, source="torch/optim/adadelta.py:105-121", **TORCH)
def adadelta(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Running averages of the squared gradient and of the squared update."""
    return (step_entry(args), like("square_avg", parameter), like("acc_delta", parameter))


def _single(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    with tape.frame() as local:
        for p in parameters:
            local.forget("grad")
            negate_and_decay(local, p, args)
            local.new("std", p)
            local.new("delta", p)


def _multi(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    with tape.frame() as local:
        for group in by_dtype(parameters):
            local.forget("device_grads")
            count_steps(tape, local, on_device=args["capturable"])
            negate_each(local, group, args)
            decay_each(local, group, args)
            local.new_each("std", group)
            local.new_each("deltas", group)


register_forms("torch.optim.Adadelta", source="torch/optim/adadelta.py:245-410", single=_single, multi=_multi)
