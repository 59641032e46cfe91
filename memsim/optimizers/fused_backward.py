"""State of optimizers that update inside backward: LOMO and AdaLomo.

Read at lomo-optim 0.1.1: lomo_optim/lomo.py:30-75, lomo_optim/adalomo.py:76-95. Each parameter's hook applies the
gradients that exist and drops them, so that about one gradient lives at a time.
"""

from __future__ import annotations

from typing import Any

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, tensor

_FACTS: dict[str, Any] = {"package": "lomo-optim", "version": "0.1.1", "fuses_backward": True}


@register(
    "lomo_optim.Lomo",
    arguments={
        "lr": 1e-3,
        "clip_grad_norm": Optional(float),
        "clip_grad_value": Optional(float),
        "weight_decay": 0.0,
        "loss_scale_args": {},
    },
    source="lomo_optim/lomo.py:30-75",
    ignores="With clip_grad_norm, one norm (4 bytes) a parameter while the first of two backward passes runs.",
    **_FACTS,
)
def lomo(parameter: ParameterSpec, args: Arguments) -> Entries:  # noqa: ARG001
    """No state: plain SGD."""
    return ()


@register(
    "lomo_optim.AdaLomo",
    arguments={
        "lr": 1e-3,
        "loss_scale": 2**10,
        "eps": (1e-30, 1e-3),
        "clip_threshold": 1.0,
        "decay_rate": -0.8,
        "clip_grad_norm": Optional(float),
        "clip_grad_value": Optional(float),
        "weight_decay": 0.0,
    },
    source="lomo_optim/adalomo.py:76-95",
    ignores="The constructor makes state for frozen parameters too; only trainable ones are listed.",
    **_FACTS,
)
def adalomo(parameter: ParameterSpec, args: Arguments) -> Entries:  # noqa: ARG001
    """Float32 row and column means in dictionaries of the optimizer itself (`opt.exp_avg_sq_row[name]`).

    Raises:
        UsageError: a scalar or a tensor of three or more dimensions, which the class cannot update.
    """
    shape = parameter.tensor.shape
    if len(shape) == 1:
        return (tensor("opt.exp_avg_sq", shape, "float32"),)
    if len(shape) != 2:
        raise UsageError(f"{parameter.name} {shape}: AdaLomo updates vectors and matrices only; freeze it or use Lomo.")
    return (
        tensor("opt.exp_avg_sq_row", shape[:1], "float32"),
        tensor("opt.exp_avg_sq_col", shape[1:], "float32"),
    )
