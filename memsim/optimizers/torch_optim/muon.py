"""`torch.optim.Muon`: torch/optim/_muon.py @2.13.0."""

from __future__ import annotations

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like
from memsim.optimizers.torch_optim.forms import TORCH

_ARGUMENTS = {
    "lr": 1e-3,
    "weight_decay": 0.1,
    "momentum": 0.95,
    "nesterov": True,
    "ns_coefficients": (3.4445, -4.775, 2.0315),
    "eps": 1e-7,
    "ns_steps": 5,
    "adjust_lr_fn": Optional(str),
}


@register("torch.optim.Muon", arguments=_ARGUMENTS, source="torch/optim/_muon.py:129-160", **TORCH)
def muon(parameter: ParameterSpec, _: Arguments) -> Entries:
    """One momentum buffer and no step.

    Raises:
        UsageError: a parameter that is not a matrix, which the constructor refuses (_muon.py:129-133).
    """
    shape = parameter.tensor.shape
    if len(shape) != 2:
        raise UsageError(
            f"torch.optim.Muon takes 2-D parameters only; {parameter.name!r} has shape {shape}.\n"
            "Train the others with another optimizer (the Muon + AdamW split), or freeze them."
        )
    return (like("momentum_buffer", parameter),)
