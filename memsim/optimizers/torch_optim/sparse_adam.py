"""`torch.optim.SparseAdam`: torch/optim/sparse_adam.py @2.13.0."""

from __future__ import annotations

from memsim.model import ParameterSpec
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like, python_number
from memsim.optimizers.step import register_unmodelled_step
from memsim.optimizers.torch_optim.forms import TORCH

_ARGUMENTS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "maximize": False}


@register("torch.optim.SparseAdam", arguments=_ARGUMENTS, source="torch/optim/sparse_adam.py:96-108", **TORCH)
def sparse_adam(parameter: ParameterSpec, _: Arguments) -> Entries:
    """Two dense moments, though the gradients are sparse, and a Python number."""
    return (python_number("step"), like("exp_avg", parameter), like("exp_avg_sq", parameter))


register_unmodelled_step("torch.optim.SparseAdam", "it depends on how many rows of the gradients are not zero")
