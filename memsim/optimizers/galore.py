"""State of the low-rank optimizers GaLore, APOLLO and Fira.

Read at galore-torch 1.0 (galore_torch/adamw.py:82-142, adamw8bit.py:11-82, adafactor.py:165-267), apollo-torch 1.0.3
(apollo_torch/apollo.py:80-218, random_projector.py:60-174) and fira 1.0.2 (fira/fira_adamw.py:66-165). Parameters that
are not projected are kept as by the plain optimizer of the same package.
"""

from __future__ import annotations

from typing import Any

from memsim.errors import UnknownNameError, UsageError
from memsim.model import ParameterSpec
from memsim.optimizers.adafactor import ADAFACTOR
from memsim.optimizers.low_rank import GROUP_ARGUMENTS, checked_rank, chosen_side, is_projected, project
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, StateEntry, python_number, tensor
from memsim.tensors import TensorSpec

_GALORE: dict[str, Any] = {"package": "galore-torch", "version": "1.0"}
_COMMON: dict[str, Any] = {"by_name": True, "fuses_backward": "layerwise", "own_arguments": GROUP_ARGUMENTS}
_ADAMW: dict[str, Any] = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-6,
    "weight_decay": 0.0,
    "correct_bias": True,
    "no_deprecation_warning": False,
}
_LAYERWISE = "With layerwise, the dummy optimizer's own parameter (4 bytes on the host)."


def _moments(names: tuple[str, ...], spec: TensorSpec) -> Entries:
    return tuple(tensor(name, spec.shape, spec.dtype) for name in names)


@register(
    "galore_torch.GaLoreAdamW",
    arguments=_ADAMW,
    source="galore_torch/adamw.py:82-142, galore_projector.py",
    ignores=_LAYERWISE,
    **_GALORE,
    **_COMMON,
)
def galore_adamw(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two moments in the dtype and shape of the (projected) gradient."""
    step = python_number("step")
    if not is_projected(parameter, args["target_modules"]):
        return (step, *_moments(("exp_avg", "exp_avg_sq"), parameter.tensor))
    projection = project(parameter, args)
    return (step, *projection.matrices, *_moments(("exp_avg", "exp_avg_sq"), projection.gradient))


@register(
    "galore_torch.GaLoreAdafactor",
    arguments=ADAFACTOR,  # a copy of transformers' class
    source="galore_torch/adafactor.py:165-267, galore_projector.py",
    ignores=_LAYERWISE,
    **_GALORE,
    **_COMMON,
)
def galore_adafactor(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Adafactor's row and column means of the (projected) gradient, in float32 whatever the weight's dtype.

    The gradient is made float32 before it is projected, so the projector is a view of its factor for every dtype.
    """
    matrices: Entries = ()
    gradient = parameter.tensor.with_dtype("float32")
    if is_projected(parameter, args["target_modules"]):
        projection = project(parameter, args, dtype="float32")
        matrices, gradient = projection.matrices, projection.gradient
    first_moment = _moments(("exp_avg",), gradient) if args["beta1"] is not None else ()
    shape = gradient.shape
    second_moment: Entries
    if len(shape) >= 2:
        second_moment = (
            tensor("exp_avg_sq_row", shape[:-1], "float32"),
            tensor("exp_avg_sq_col", shape[:-2] + shape[-1:], "float32"),
        )
    else:
        second_moment = _moments(("exp_avg_sq",), gradient)
    rms = tensor("RMS", (), "float32")
    return (python_number("step"), *matrices, *first_moment, *second_moment, rms)


@register(
    "galore_torch.GaLoreAdamW8bit",
    arguments={
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 1e-2,
        "amsgrad": False,
        "optim_bits": 32,
        "args": None,
        "min_8bit_size": 4096,
        "percentile_clipping": 100,
        "block_wise": True,
        "is_paged": False,
    },
    source="galore_torch/adamw8bit.py:11-82, bitsandbytes/optim/optimizer.py:492-532 @0.50.2",
    ignores=_LAYERWISE + " With layerwise, the pair of maps (2,048 bytes on the host) of parameters kept in 32 bits.",
    **_GALORE,
    **_COMMON,
)
def galore_adamw_8bit(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two 8-bit moments of the (projected) gradient by bitsandbytes' rule for its number of elements.

    `optim_bits` is ignored: the class passes 8. It also passes `percentile_clipping` where bitsandbytes >= 0.50 has
    `max_unorm`, so that every parameter gains a norm of 4 bytes. Embeddings are quantized too, Trainer or not.

    Raises:
        UsageError: paged state, which memsim has not read for this class.
    """
    if args["is_paged"]:
        raise UsageError("GaLoreAdamW8bit: is_paged=True is not modelled; leave it False.")
    matrices: Entries = ()
    gradient = parameter.tensor
    if is_projected(parameter, args["target_modules"]):
        projection = project(parameter, args)
        matrices, gradient = projection.matrices, projection.gradient
    norm = (tensor("unorm_vec", (1,), "float32"),) if args["percentile_clipping"] > 0 else ()
    owner = parameter.name if args["layerwise"] else ""
    moments = _eight_bit_moments(gradient, args["min_8bit_size"], owner)
    return (python_number("step"), *matrices, *moments, *norm)


def _eight_bit_moments(gradient: TensorSpec, min_8bit_size: int, owner: str) -> Entries:
    """Return two moments; `owner` names the optimizer whose pair of maps they share."""
    if gradient.numel < min_8bit_size:
        return _moments(("state1", "state2"), gradient.with_dtype("float32"))
    blocks = -(-gradient.numel // 256)
    entries = []
    for index, table in ((1, "dynamic"), (2, "udynamic")):
        entries += [
            tensor(f"state{index}", gradient.shape, "uint8"),
            StateEntry(f"qmap{index}", TensorSpec((256,), "float32"), shared=f"{owner}{table}"),
            tensor(f"absmax{index}", (blocks,), "float32"),
        ]
    return tuple(entries)


@register(
    "apollo_torch.APOLLOAdamW",
    arguments={
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-6,
        "weight_decay": 0.0,
        "correct_bias": True,
        "scale_front": False,
        "disable_nl": False,
        "no_deprecation_warning": True,
    },
    package="apollo-torch",
    version="1.0.3",
    source="apollo_torch/apollo.py:80-218, random_projector.py:60-174, svd_projector.py",
    by_name=True,
    fuses_backward="layerwise",
    own_arguments={**GROUP_ARGUMENTS, "scale": 1.0, "proj": "random", "scale_type": "channel"},
    ignores=_LAYERWISE,
)
def apollo_adamw(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two low-rank moments, a projector and the last norm of the scaled gradient.

    A random projector is not clipped to the weight's rank: a `(3, 5)` weight at rank 128 has moments of `(128, 5)`.

    Raises:
        UnknownNameError: `proj` is neither `random` nor `svd`.
        UsageError: a `proj_type` with which the package fails for this shape.
    """
    numbers = (python_number("seed"), python_number("step"))
    if not is_projected(parameter, args["target_modules"]):
        return (*numbers, *_moments(("exp_avg", "exp_avg_sq"), parameter.tensor))
    _refuse_crossed_sides(parameter, args)
    if args["proj"] == "svd":
        projection = project(parameter, args)
        matrices, gradient = projection.matrices, projection.gradient
    elif args["proj"] == "random":
        matrices, gradient = _random_projection(parameter.tensor, args)
    else:
        raise UnknownNameError("proj", args["proj"], ("random", "svd"), "Allowed: random, svd.")
    limiter = () if args["disable_nl"] else (tensor("scaled_grad", (), parameter.tensor.dtype),)
    return (*numbers, *matrices, *_moments(("exp_avg", "exp_avg_sq"), gradient), *limiter)


def _random_projection(spec: TensorSpec, args: Arguments) -> tuple[Entries, TensorSpec]:
    """Return APOLLO's random matrix, of the asked rank and with a seed of its own, and the projected gradient."""
    m, q = spec.shape
    rank = checked_rank(args)
    if chosen_side(args["proj_type"], m, q) == "right":
        matrix, gradient = (rank, q), (m, rank)
    else:
        matrix, gradient = (m, rank), (rank, q)
    return (tensor("projector.ortho_matrix", matrix, spec.dtype),), TensorSpec(gradient, spec.dtype)


def _refuse_crossed_sides(parameter: ParameterSpec, args: Arguments) -> None:
    """Refuse what apollo_torch fails with: channels are scaled along the side that `std` would keep (apollo.py:139)."""
    m, q = parameter.tensor.shape
    side = chosen_side(args["proj_type"], m, q)
    if side == "full" or (args["scale_type"] == "channel" and side != chosen_side("std", m, q)):
        raise UsageError(
            f"{parameter.name} ({m}, {q}): apollo_torch cannot step with proj_type={args['proj_type']!r} for this "
            "shape. Use proj_type='std'."
        )


@register(
    "fira.FiraAdamW",
    arguments=_ADAMW,
    package="fira",
    version="1.0.2",
    source="fira/fira_adamw.py:66-165, gradient_projection.py",
    by_name=True,
    own_arguments={
        **{key: value for key, value in GROUP_ARGUMENTS.items() if key not in {"scale", "layerwise"}},
        "alpha": 1.0,
    },
)
def fira_adamw(parameter: ParameterSpec, args: Arguments) -> Entries:
    """GaLore's state and the last norm of the scaled residual gradient."""
    step = python_number("step")
    if not is_projected(parameter, args["target_modules"]):
        return (step, *_moments(("exp_avg", "exp_avg_sq"), parameter.tensor))
    projection = project(parameter, args)
    moments = _moments(("exp_avg", "exp_avg_sq"), projection.gradient)
    return (step, *projection.matrices, *moments, tensor("scaling_grad", (), parameter.tensor.dtype))
