"""`torch.optim.Adamax`: torch/optim/adamax.py @2.13.0."""

from __future__ import annotations

from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like
from memsim.optimizers.torch_optim.forms import TORCH, step_entry

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
