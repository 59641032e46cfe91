"""The optimizers of `pytorch_optimizer` that keep moments in fewer bits, in a subspace or behind a mask.

Read at pytorch_optimizer 4.1.0.
"""

from __future__ import annotations

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers.pytorch_optimizer.irregular import as_matrix, known
from memsim.optimizers.rules import Arguments, Entries, like, tensor

FLASH_GROUP_ELEMENTS = 32
"""Elements that share a scale (flash_adamw.py:23)."""


@known("FlashAdamW", "flash_adamw.py:36-66, 275-295")
def flash_adamw(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two 8-bit moments with a float16 scale for every 32 elements, and the bits that a 16-bit weight lacks.

    Without `quantize` the moments have the weight's dtype. `master_weight_bits` of 24 or 32 adds 8 or 16 error bits.
    """
    spec = parameter.tensor
    moments: Entries = (like("exp_avg", parameter), like("exp_avg_sq", parameter))
    if args["quantize"]:
        groups = (-(-spec.numel // FLASH_GROUP_ELEMENTS),)
        moments = tuple(
            entry
            for name, dtype in (("exp_avg", "int8"), ("exp_avg_sq", "uint8"))
            for entry in (
                like(f"{name}::quantized", parameter, dtype),
                tensor(f"{name}::scales", groups, "float16"),
            )
        )
    missing = (args["master_weight_bits"] or 0) // 8 - spec.itemsize
    if missing <= 0:
        return moments
    return (*moments, like("error_bits", parameter, "int8" if missing == 1 else "int16"))


@known("Alice", "racs.py:385-430")
def alice(parameter: ParameterSpec, args: Arguments) -> Entries:
    """A basis of at most `rank` columns, its covariance, two moments in that subspace, column sums and a norm."""
    rows, columns = as_matrix(parameter)
    rank, dtype = min(args["rank"], rows), parameter.tensor.dtype
    shapes = {
        "U": (rows, rank),
        "Q": (rank, rank),
        "m": (rank, columns),
        "v": (rank, columns),
        "p": (columns,),
        "phi": (),
    }
    return tuple(tensor(name, shape, dtype) for name, shape in shapes.items())


@known("SPAM", "spam.py:120-150, 231-300", "The mask of frozen matrices.")
def spam(parameter: ParameterSpec, args: Arguments) -> Entries:
    """A mask over a matrix and two moments of what it lets through, which is everything at a density of 1.

    Raises:
        UsageError: another density, with which chance decides how much the mask lets through.
    """
    if args["density"] != 1.0:
        raise UsageError(f"SPAM: with density={args['density']} the moments have a random size; use density=1.0.")
    spec = parameter.tensor
    if len(spec.shape) != 2:
        return (like("exp_avg", parameter), like("exp_avg_sq", parameter))
    flat = (spec.numel,)
    return (
        like("mask", parameter, "bool"),
        tensor("exp_avg", flat, spec.dtype),
        tensor("exp_avg_sq", flat, spec.dtype),
    )
