"""`torch.optim.RAdam`: torch/optim/radam.py @2.13.0."""

from __future__ import annotations

from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like
from memsim.optimizers.torch_optim.forms import TORCH, step_entry

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
