"""`torch.optim.Rprop`: torch/optim/rprop.py @2.13.0."""

from __future__ import annotations

from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like
from memsim.optimizers.torch_optim.forms import TORCH, step_entry

_ARGUMENTS = {
    "lr": 1e-2,
    "etas": (0.5, 1.2),
    "step_sizes": (1e-6, 50),
    "capturable": False,
    "foreach": Optional(bool),
    "maximize": False,
    "differentiable": False,
}


@register("torch.optim.Rprop", arguments=_ARGUMENTS, source="torch/optim/rprop.py:95-115", **TORCH)
def rprop(parameter: ParameterSpec, args: Arguments) -> Entries:
    """The previous gradient and a step size for every element."""
    return (step_entry(args), like("prev", parameter), like("step_size", parameter))
