"""`torch.optim.SGD`: torch/optim/sgd.py @2.13.0."""

from __future__ import annotations

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like
from memsim.optimizers.torch_optim.forms import TORCH, chosen_form

_ARGUMENTS = {
    "lr": 1e-3,
    "momentum": 0.0,
    "dampening": 0.0,
    "weight_decay": 0.0,
    "nesterov": False,
    "maximize": False,
    "foreach": Optional(bool),
    "differentiable": False,
    "fused": Optional(bool),
}


@register("torch.optim.SGD", arguments=_ARGUMENTS, source="torch/optim/sgd.py:84-150", **TORCH)
def sgd(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Nothing without `momentum`; a copy of the gradient with it.

    Raises:
        UsageError: `nesterov` without momentum or with dampening, which the constructor refuses (sgd.py:63).
    """
    chosen_form(args, default="for-loop")
    if args["nesterov"] and (args["momentum"] <= 0 or args["dampening"] != 0):
        raise UsageError("torch.optim.SGD: nesterov=True needs momentum > 0 and dampening=0, e.g. momentum=0.9.")
    return (like("momentum_buffer", parameter),) if args["momentum"] != 0 else ()
