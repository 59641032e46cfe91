"""`torch.optim.NAdam`: torch/optim/nadam.py @2.13.0."""

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
