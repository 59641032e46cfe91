"""`torch.optim.Adamax`: torch/optim/adamax.py @2.13.0."""

from __future__ import annotations

from collections.abc import Sequence

from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like
from memsim.optimizers.step import Tape, by_dtype
from memsim.optimizers.torch_optim.forms import TORCH, step_entry
from memsim.optimizers.torch_optim.tape import (
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
    "foreach": Optional(bool),
    "maximize": False,
    "differentiable": False,
    "capturable": False,
}


@register("torch.optim.Adamax", arguments=_ARGUMENTS, source="torch/optim/adamax.py:104-118", **TORCH)
def adamax(parameter: ParameterSpec, args: Arguments) -> Entries:
    """A moment and a running maximum in the parameter's dtype."""
    return (step_entry(args), like("exp_avg", parameter), like("exp_inf", parameter))


def _single(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    with tape.frame() as local:
        for p in parameters:
            local.forget("grad")
            negate_and_decay(local, p, args)
            local.brief(p, name="exp_inf")  # torch.maximum(..., grad.abs().add_(eps), out=exp_inf)
            if args["capturable"]:
                local.new("neg_bias_correction", *ONE_MINUS_POWER, parameter=p.name)
                local.new("denom", promoted(p))


def _multi(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    capturable = args["capturable"]
    with tape.frame() as local:
        for group in by_dtype(parameters):
            negate_each(local, group, args)
            count_steps(tape, local, on_device=capturable)
            decay_each(local, group, args)
            if not args["maximize"] and not args["weight_decay"]:
                local.new_each("device_grads", group)  # torch._foreach_abs; in place on gradients of its own
            if capturable:
                local.new_each("bias_corrections", scalars(group))
                local.new_each("denom", map(promoted, group))


register_forms("torch.optim.Adamax", source="torch/optim/adamax.py:226-400", single=_single, multi=_multi)
