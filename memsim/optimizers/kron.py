"""State of PSGD Kron: a momentum and one factor of the preconditioner for each dimension.

Read at kron-torch 0.3.3 (kron_torch/kron.py:165-190, 253-330).
"""

from __future__ import annotations

from memsim.errors import UnknownNameError, UsageError
from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, dtype_name, python_number, tensor
from memsim.tensors import Shape

MEMORY_SAVE_MODES = ("smart_one_diag", "one_diag", "all_diag")


@register(
    "kron_torch.Kron",
    arguments={
        "lr": 3e-4,
        "b1": 0.9,
        "weight_decay": 0.0,
        "preconditioner_update_probability": None,
        "max_size_triangular": 8192,
        "min_ndim_triangular": 2,
        "memory_save_mode": Optional(str),
        "momentum_into_precond_update": True,
        "precond_lr": 0.1,
        "precond_init_scale": 1.0,
        "merge_dims": True,
        "mu_dtype": None,
        "precond_dtype": None,
    },
    package="kron-torch",
    version="0.3.3",
    source="kron_torch/kron.py:165-190, 253-330",
    ignores="Six numbers of the optimizer as 4-byte host tensors, and the einsum expressions (text) of each parameter.",
)
def kron(parameter: ParameterSpec, args: Arguments) -> Entries:
    """A momentum and, for each dimension of the merged gradient, a square factor or its diagonal, float32 by default.

    Raises:
        UsageError: a scalar or an empty tensor, with which the package fails.
        UnknownNameError: no such `memory_save_mode`.
    """
    spec = parameter.tensor
    if not spec.shape or spec.numel == 0:
        raise UsageError(f"{parameter.name} {spec.shape}: kron_torch fails for scalars and empty tensors; freeze it.")
    merged: Entries = ()
    shape = spec.shape
    if len(shape) > 2 and args["merge_dims"]:
        shape = _merged(shape)
        merged = (python_number("merged_shape[0]"), python_number("merged_shape[1]"))
    momentum = tensor("momentum_buffer", shape, dtype_name(args["mu_dtype"], spec.dtype))
    return (
        python_number("step"),
        *merged,
        momentum,
        *factors(shape, args, dtype_name(args["precond_dtype"], "float32")),
    )


def _merged(shape: Shape) -> Shape:
    """Return the matrix to which leading or trailing dimensions are merged, whichever is less wide for its height."""
    leading, trailing = 1, 1
    for size in shape[:-1]:
        leading *= size
    for size in shape[1:]:
        trailing *= size
    return (leading, shape[-1]) if shape[-1] - leading <= trailing - shape[0] else (shape[0], trailing)


def factors(shape: Shape, args: Arguments, dtype: str) -> Entries:
    """Return the preconditioner's factors, one for each dimension (kron.py:253-330)."""
    diagonal = _diagonal(shape, args["memory_save_mode"])
    few = len(shape) < args["min_ndim_triangular"]
    return tuple(
        tensor(
            f"Q[{i}]",
            (size,) if size == 1 or size > args["max_size_triangular"] or few or diagonal[i] else (size, size),
            dtype,
        )
        for i, size in enumerate(shape)
    )


def _diagonal(shape: Shape, mode: str | None) -> list[bool]:
    """Return for each dimension whether `memory_save_mode` makes its factor a diagonal; of equal sizes the last one."""
    largest = max(range(len(shape)), key=lambda i: (shape[i], i))
    if mode is None:
        return [False] * len(shape)
    if mode == "all_diag":
        return [True] * len(shape)
    if mode == "one_diag":
        return [i == largest for i in range(len(shape))]
    if mode == "smart_one_diag":
        alone = len(shape) > 1 and shape.count(max(shape)) == 1
        return [alone and i == largest for i in range(len(shape))]
    raise UnknownNameError("memory_save_mode", mode, MEMORY_SAVE_MODES, f"Allowed: {', '.join(MEMORY_SAVE_MODES)}.")
