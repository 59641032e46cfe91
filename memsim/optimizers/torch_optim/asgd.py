"""`torch.optim.ASGD`: torch/optim/asgd.py @2.13.0."""

from __future__ import annotations

from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like, step_tensor
from memsim.optimizers.torch_optim.forms import TORCH, chosen_form

_ARGUMENTS = {
    "lr": 1e-2,
    "lambd": 1e-4,
    "alpha": 0.75,
    "t0": 1e6,
    "weight_decay": 0.0,
    "foreach": Optional(bool),
    "maximize": False,
    "differentiable": False,
    "capturable": False,
}


@register("torch.optim.ASGD", arguments=_ARGUMENTS, source="torch/optim/asgd.py:100-117", **TORCH)
def asgd(parameter: ParameterSpec, args: Arguments) -> Entries:
    """The averaged parameter, and three scalars that live on the parameter's device whatever the arguments."""
    chosen_form(args, default="for-loop")
    scalars = (step_tensor(on_device=True, name=name) for name in ("step", "eta", "mu"))
    return (*scalars, like("ax", parameter))
