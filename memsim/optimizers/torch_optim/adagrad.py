"""`torch.optim.Adagrad`: torch/optim/adagrad.py @2.13.0."""

from __future__ import annotations

from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like
from memsim.optimizers.torch_optim.forms import TORCH, step_entry

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
