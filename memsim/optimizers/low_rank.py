"""What low-rank optimizers share: which parameters they project, and the projector's matrix.

`m` rows and `q` columns of a 2-D parameter, `r` the asked rank, `k = min(r, m, q)` the rank that a singular value
decomposition can give.

A projector multiplies the gradient from the right by a `(q, k)` matrix, which leaves `(m, k)`, or from the left by a
`(k, m)` one, which leaves `(k, q)`. GaLore cuts it out of `torch.linalg.svd(grad, full_matrices=False)`: the first `k`
rows of `Vh (min(m, q), q)` or columns of `U (m, min(m, q))`. For a float32 gradient that cut is a view, so the whole
factor stays allocated; for other dtypes `.type()` copies the cut (galore_torch 1.0, galore_projector.py:74-110).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from memsim.errors import UnknownNameError, UsageError
from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.rules import Arguments, Entries, StateEntry
from memsim.tensors import TensorSpec

Side = Literal["left", "right", "full"]

GROUP_ARGUMENTS: dict[str, Any] = {
    "rank": 128,
    "update_proj_gap": 200,
    "scale": 0.25,
    "proj_type": "std",
    "target_modules": Optional(str, tuple, list),
    "layerwise": False,
}
"""Keys of the parameter group that is projected (GaLore's README), and two of memsim's: `target_modules` names the
modules whose weights are in that group (`None`: every 2-D parameter is), `layerwise` gives each parameter an optimizer
of its own that steps inside backward."""


def is_projected(parameter: ParameterSpec, target_modules: str | Iterable[str] | None) -> bool:
    """Return whether the parameter belongs to the group with a rank, as `transformers.Trainer` chooses it.

    `None` is every 2-D parameter; `"all-linear"` the weights of all `torch.nn.Linear`; another string a regular
    expression that matches a Linear module's whole name; a list parts of such names, or such expressions
    (transformers 5.24.0, trainer_utils.py:1018-1054, trainer_optimizer.py:133-151).
    """
    if target_modules is None:
        return len(parameter.tensor.shape) == 2
    module, _, own_name = parameter.name.rpartition(".")
    if parameter.module_class != "Linear" or own_name != "weight":
        return False
    if isinstance(target_modules, str):
        return target_modules.replace("_", "-") == "all-linear" or bool(re.fullmatch(target_modules, module))
    return any(target in module or re.fullmatch(target, module) for target in target_modules)


@dataclass(frozen=True, slots=True)
class Projection:
    """How one gradient is projected."""

    matrices: Entries
    """The projector's entries of the state."""
    gradient: TensorSpec
    """The low-rank gradient, whose shape and dtype the moments take."""


def project(
    parameter: ParameterSpec, args: Arguments, *, dtype: str | None = None, keeps_factor: bool = True
) -> Projection:
    """Return the singular-value projection of a 2-D gradient.

    Args:
        parameter: a 2-D parameter.
        args: `rank` and `proj_type`.
        dtype: of the gradient that is projected, where it is not the parameter's.
        keeps_factor: whether a float32 cut is a view of its factor, as in galore_torch.

    Raises:
        UnknownNameError: no such `proj_type`.
        UsageError: a rank below 1, or a `proj_type` that the package cannot step with for this shape.
    """
    m, q = parameter.tensor.shape
    dtype = dtype or parameter.tensor.dtype
    k = min(checked_rank(args), m, q)
    side = chosen_side(args["proj_type"], m, q)
    if args["proj_type"] == "reverse_std" and k == m < q:
        # project_back takes an (m, k) gradient with m <= k for one that was projected from the left.
        raise UsageError(
            f"{parameter.name} ({m}, {q}): proj_type='reverse_std' fails for wide weights with rank >= {m}. "
            "Use proj_type='std' or a smaller rank."
        )
    full = min(m, q)
    right = _cut("projector.ortho_matrix", (k, q), (full, q), dtype, keeps_factor)
    left = _cut("projector.ortho_matrix", (m, k), (m, full), dtype, keeps_factor)
    if side == "right":
        return Projection((right,), TensorSpec((m, k), dtype))
    if side == "left":
        return Projection((left,), TensorSpec((k, q), dtype))
    both = (replace(left, name="projector.ortho_matrix[0]"), replace(right, name="projector.ortho_matrix[1]"))
    return Projection(both, TensorSpec((k, k), dtype))


def _cut(name: str, shape: tuple[int, int], factor: tuple[int, int], dtype: str, keeps_factor: bool) -> StateEntry:
    is_view = keeps_factor and dtype == "float32" and shape != factor
    return StateEntry(name, TensorSpec(shape, dtype), storage=TensorSpec(factor, dtype) if is_view else None)


def checked_rank(args: Arguments) -> int:
    """Return the rank.

    Raises:
        UsageError: it is below 1.
    """
    rank: int = args["rank"]
    if rank < 1:
        raise UsageError(f"rank={rank}: a low-rank projection needs a rank of at least 1.")
    return rank


def chosen_side(proj_type: str, m: int, q: int) -> Side:
    """Return the side from which a gradient of `m` rows and `q` columns is multiplied (galore_projector.py:14-45).

    Raises:
        UnknownNameError: no such `proj_type`.
    """
    tall = m >= q
    sides: dict[str, Side] = {
        "std": "right" if tall else "left",
        "reverse_std": "left" if tall else "right",
        "right": "right",
        "left": "left",
        "full": "full",
    }
    if proj_type not in sides:
        raise UnknownNameError("proj_type", proj_type, sides, f"Allowed: {', '.join(sides)}.")
    return sides[proj_type]
