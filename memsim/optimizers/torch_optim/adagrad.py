"""`torch.optim.Adagrad`: torch/optim/adagrad.py @2.13.0."""

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
    "lr_decay": 0.0,
    "weight_decay": 0.0,
    "initial_accumulator_value": 0.0,
    "eps": 1e-10,
    "foreach": Optional(bool),
    "maximize": False,
    "differentiable": False,
    "fused": Optional(bool),
}


@register(
    "torch.optim.Adagrad",
    arguments=_ARGUMENTS,
    source="torch/optim/adagrad.py:78-104",
    created="constructor",
    **TORCH,
)
def adagrad(parameter: ParameterSpec, args: Arguments) -> Entries:
    """The sum of the squared gradients, made by the constructor."""
    return (step_entry(args), like("sum", parameter))


def _single(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    with tape.frame() as local:
        for p in parameters:
            local.forget("grad")
            negate_and_decay(local, p, args)
            local.new("std", p)


def _multi(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    with tape.frame() as local:
        for group in by_dtype(parameters):
            negate_each(local, group, args)
            count_steps(tape, local, on_device=False)
            decay_each(local, group, args)
            local.new_each("std", group)
            if args["weight_decay"] or args["maximize"]:
                local.alias("numerator", "device_grads")
            else:
                local.new_each("numerator", group)


register_forms(
    "torch.optim.Adagrad",
    source="torch/optim/adagrad.py:364-626",
    single=_single,
    multi=_multi,
    ignores="Sparse gradients.",
)
