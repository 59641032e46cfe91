"""`torch.optim.Adadelta`: torch/optim/adadelta.py @2.13.0."""

from __future__ import annotations

from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like
from memsim.optimizers.torch_optim.forms import TORCH, step_entry

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
