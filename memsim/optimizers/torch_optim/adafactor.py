"""`torch.optim.Adafactor`: torch/optim/_adafactor.py @2.13.0."""

from __future__ import annotations

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like, step_tensor, tensor
from memsim.optimizers.torch_optim.forms import TORCH

_ARGUMENTS = {
    "lr": 1e-2,
    "beta2_decay": -0.8,
    "eps": (None, 1e-3),
    "d": 1.0,
    "weight_decay": 0.0,
    "foreach": Optional(bool),
    "maximize": False,
}


@register("torch.optim.Adafactor", arguments=_ARGUMENTS, source="torch/optim/_adafactor.py:95-116", **TORCH)
def adafactor(parameter: ParameterSpec, _: Arguments) -> Entries:
    """A row and a column of the last two dimensions; the whole second moment for vectors. All in the gradient's dtype.

    Raises:
        UsageError: a parameter without elements, by whose number the step divides (_adafactor.py:390).
    """
    spec = parameter.tensor
    if not spec.numel:
        raise UsageError(
            f"torch.optim.Adafactor cannot step {parameter.name!r}, which has no elements (shape {spec.shape}):\n"
            "it divides by their number. Freeze it or leave it out."
        )
    step = step_tensor(on_device=False)
    if len(spec.shape) < 2:
        return (step, like("variance", parameter))
    row, col = (*spec.shape[:-1], 1), (*spec.shape[:-2], 1, spec.shape[-1])
    return (step, tensor("row_var", row, spec.dtype), tensor("col_var", col, spec.dtype))
