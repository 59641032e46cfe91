"""State of optimizers that find their own learning rate: Prodigy, Prodigy with schedule-free, D-Adaptation.

Read at prodigyopt 1.1.2 (prodigyopt/prodigy.py:166-184), prodigy-plus-schedule-free 2.0.1
(prodigyplus/core_optimiser.py:169-242, prodigy_plus_schedulefree.py:232-240) and dadaptation 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, StateEntry, like, python_number, same_shape, tensor

_DADAPT: dict[str, Any] = {"package": "dadaptation", "version": "3.2"}
_ZEROS: dict[str, Any] = {"all_zero": Optional(str, tuple, list)}
"""Patterns of the parameters that hold only zeros at the first step, such as a new bias or `*lora_B*`: of these the
starting point is kept as one number."""


@register(
    "prodigyopt.Prodigy",
    arguments={
        "lr": 1.0,
        "betas": (0.9, 0.999),
        "beta3": Optional(float),
        "eps": 1e-8,
        "weight_decay": 0.0,
        "decouple": True,
        "use_bias_correction": False,
        "safeguard_warmup": False,
        "d0": 1e-6,
        "d_coef": 1.0,
        "growth_rate": math.inf,
        "fsdp_in_use": False,
        "slice_p": 1,
    },
    package="prodigyopt",
    version="1.1.2",
    source="prodigyopt/prodigy.py:166-184",
    by_name=True,
    own_arguments=_ZEROS,
    ignores="Parameters that hold only zeros at the first step, unless all_zero names them.",
)
def prodigy(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two moments (one if beta1 is 0), and every `slice_p`-th element of a running sum and of the starting point."""
    dtype = parameter.tensor.dtype
    sliced = (_sliced(parameter.tensor.numel, args["slice_p"]),)
    start: tuple[int, ...] = () if parameter.tensor.numel == 0 or _is_zero(parameter, args) else sliced
    first_moment = (like("exp_avg", parameter),) if args["betas"][0] > 0 else ()
    return (
        python_number("step"),
        tensor("s", sliced, dtype),
        tensor("p0", start, dtype),
        *first_moment,
        like("exp_avg_sq", parameter),
    )


def _sliced(numel: int, slice_p: int) -> int:
    """Return the length of `tensor.flatten()[::slice_p]`.

    Raises:
        UsageError: a step below 1.
    """
    if slice_p < 1:
        raise UsageError(f"slice_p={slice_p}: Prodigy takes every slice_p-th element, so it is at least 1.")
    return -(-numel // slice_p)


def _is_zero(parameter: ParameterSpec, args: Arguments) -> bool:
    patterns: str | Sequence[str] = args["all_zero"] or ()
    names = (patterns,) if isinstance(patterns, str) else patterns
    return any(fnmatchcase(parameter.name, pattern) for pattern in names)


@register(
    "prodigyplus.ProdigyPlusScheduleFree",
    arguments={
        "lr": 1.0,
        "betas": (0.9, 0.99),
        "beta3": Optional(float),
        "weight_decay": 0.0,
        "weight_decay_by_lr": True,
        "d0": 1e-6,
        "d_coef": 1.0,
        "d_limiter": True,
        "prodigy_steps": 0,
        "schedulefree_c": 0.0,
        "eps": 1e-8,
        "split_groups": True,
        "split_groups_mean": False,
        "factored": True,
        "factored_fp32": True,
        "use_bias_correction": False,
        "use_stableadamw": True,
        "use_schedulefree": True,
        "use_speed": False,
        "stochastic_rounding": True,
        "fused_back_pass": False,
        "use_cautious": False,
        "use_grams": False,
        "use_adopt": False,
        "use_orthograd": False,
        "use_focus": False,
    },
    package="prodigy-plus-schedule-free",
    version="2.0.1",
    source="prodigyplus/core_optimiser.py:169-242, prodigy_plus_schedulefree.py:232-240",
    by_name=True,
    fuses_backward="fused_back_pass",
    own_arguments=_ZEROS,
    ignores="Two running sums of each group (4 bytes each). Parameters that hold only zeros, unless all_zero names "
    "them. With prodigy_steps, that `s` and `p0` are dropped after so many steps.",
)
def prodigy_plus(parameter: ParameterSpec, args: Arguments) -> Entries:
    """A second moment, factored over the two largest dimensions; Prodigy's sums in 16 bits of every 11th element."""
    dtype = parameter.tensor.dtype
    short = "bfloat16" if dtype == "float32" else dtype
    sliced = (_sliced(parameter.tensor.numel, 11),)
    start: tuple[int, ...] = () if parameter.tensor.numel == 0 or _is_zero(parameter, args) else sliced
    sums: Entries = (tensor("s", sliced, short),)
    if args["use_speed"]:
        speed = ("exp_avg_x0_dot", "max_x0_minus_l1_norm", "max_x0_minus_l2_norm")
        sums = tuple(python_number(name, "float") for name in speed)
    last = "z" if args["use_schedulefree"] else "exp_avg"
    return (*_second_moment(parameter, args), tensor("p0", start, short), like(last, parameter), *sums)


def _second_moment(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Return the factored second moment where a dimension has at least 32 elements, else the whole one."""
    shape = parameter.tensor.shape
    factored = args["factored"] and not args["use_focus"]
    if not factored or len(shape) < 2 or max(shape) < 32:
        return (like("exp_avg_sq", parameter),)
    column, row = sorted(range(len(shape)), key=lambda i: (shape[i], i))[-2:]
    dtype = "float32" if args["factored_fp32"] else parameter.tensor.dtype
    return (
        tensor("exp_avg_sq_row", (*shape[:row], 1, *shape[row + 1 :]), dtype),
        tensor("exp_avg_sq_col", (*shape[:column], 1, *shape[column + 1 :]), dtype),
        python_number("exp_avg_sq_metadata[0]"),
        python_number("exp_avg_sq_metadata[1]"),
    )


_D: dict[str, Any] = {"lr": 1.0, "d0": 1e-6, "growth_rate": math.inf, "log_every": 0, "weight_decay": 0.0}

register(
    "dadaptation.DAdaptAdam",
    arguments=_D
    | {
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "decouple": False,
        "use_bias_correction": False,
        "fsdp_in_use": False,
    },
    source="dadaptation/dadapt_adam.py:170-176",
    **_DADAPT,
)(same_shape("s", "exp_avg", "exp_avg_sq", numbers=("step",)))
register(
    "dadaptation.DAdaptSGD",
    arguments=_D | {"momentum": 0.0, "fsdp_in_use": False},
    source="dadaptation/dadapt_sgd.py:137-140",
    **_DADAPT,
)(same_shape("z", "s", "x0"))
register(
    "dadaptation.DAdaptAdan",
    arguments=_D | {"betas": (0.98, 0.92, 0.99), "eps": 1e-8, "weight_decay": 0.02, "no_prox": False},
    source="dadaptation/dadapt_adan.py:156-168",
    **_DADAPT,
)(same_shape("s", "exp_avg", "exp_avg_diff", "exp_avg_sq", "pre_grad", numbers=("step",)))
register(
    "dadaptation.DAdaptLion",
    arguments={key: value for key, value in _D.items() if key != "growth_rate"}
    | {"betas": (0.9, 0.99), "fsdp_in_use": False},
    source="dadaptation/dadapt_lion.py:105-106",
    **_DADAPT,
)(same_shape("exp_avg", "s"))


@register(
    "dadaptation.DAdaptAdaGrad",
    arguments=_D | {"momentum": 0.0, "eps": 1e-6},
    source="dadaptation/dadapt_adagrad.py:122-130",
    ignores="The weighted sum that sparse gradients add.",
    **_DADAPT,
)
def dadapt_adagrad(parameter: ParameterSpec, args: Arguments) -> tuple[StateEntry, ...]:  # noqa: ARG001
    """Three sums of the parameter's shape."""
    return tuple(like(name, parameter) for name in ("alphak", "sk", "x0"))
