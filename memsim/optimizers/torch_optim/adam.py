"""`torch.optim.Adam` and `AdamW`: torch/optim/adam.py and adamw.py @2.13.0."""

from __future__ import annotations

from typing import Any

from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like
from memsim.optimizers.torch_optim.forms import TORCH, step_entry

_ADAM: dict[str, Any] = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.0,
    "amsgrad": False,
    "foreach": Optional(bool),
    "maximize": False,
    "capturable": False,
    "differentiable": False,
    "fused": Optional(bool),
    "decoupled_weight_decay": False,
}
_ADAMW = {key: value for key, value in _ADAM.items() if key != "decoupled_weight_decay"} | {"weight_decay": 1e-2}


@register("torch.optim.Adam", arguments=_ADAM, source="torch/optim/adam.py:168-191", **TORCH)
@register("torch.optim.AdamW", arguments=_ADAMW, source="torch/optim/adamw.py:60, adam.py:168-191", **TORCH)
def adam(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two moments in the parameter's dtype, three with `amsgrad`."""
    moments = ("exp_avg", "exp_avg_sq") + (("max_exp_avg_sq",) if args["amsgrad"] else ())
    return (step_entry(args), *(like(name, parameter) for name in moments))
