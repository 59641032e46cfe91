"""State of `optimi` (torch-optimi): moments, and a Kahan compensation for 16-bit weights.

Read at torch-optimi 0.3.3: `_init_state` of each class (optimi/adam.py:95-109, adan.py:104-120, lion.py:89-99,
radam.py:96-110, ranger.py:102-117, sgd.py:99-125, stableadamw.py:115-134).

With `kahan_sum` left to the class, weights in float16 or bfloat16 get a compensation buffer and float32 weights a
`None`. Where the Triton form of `step()` is asked for, a buffer of one element stands in for `None`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional, Required
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, ParameterRule, StateEntry, like, python_number, tensor
from memsim.tensors import TensorSpec

_LOW_PRECISION = frozenset({"float16", "bfloat16"})
_STEP = "The step counter of each parameter group (4 bytes, int32 on the host)."
_GROUP = " With gradient_release, the reference to the group that each parameter's state holds."


def _register(
    name: str, lines: str, arguments: dict[str, Any], ignores: str = _STEP + _GROUP
) -> Callable[[ParameterRule], ParameterRule]:
    common = {
        "lr": Required(float),
        "decouple_lr": False,
        "max_lr": Optional(float),
        "kahan_sum": Optional(bool),
        "foreach": Optional(bool),
        "triton": Optional(bool),
        "gradient_release": False,
    }
    return register(
        f"optimi.{name}",
        arguments=common | arguments,
        package="torch-optimi",
        version="0.3.3",
        source=f"optimi/{lines}",
        fuses_backward="gradient_release",
        ignores=ignores,
    )


_BETAS: dict[str, Any] = {"betas": (0.9, 0.99), "weight_decay": 0.0, "eps": 1e-6}


@_register("Adam", "adam.py:95-109", _BETAS | {"decouple_wd": False})
@_register("AdamW", "adamw.py, adam.py:95-109", _BETAS | {"weight_decay": 1e-2})
@_register("RAdam", "radam.py:96-110", _BETAS | {"decouple_wd": False})
def adam(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two moments and the compensation."""
    moments = (like("exp_avg", parameter), like("exp_avg_sq", parameter))
    return (*moments, *_kahan(parameter, args), *_released_step(args))


@_register(
    "Adan",
    "adan.py:104-120",
    {
        "betas": (0.98, 0.92, 0.99),
        "weight_decay": 0.02,
        "eps": 1e-6,
        "adam_wd": False,
        "kahan_sum": False,
    },
)
def adan(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Three moments and the previous gradient; compensated only if asked."""
    names = ("exp_avg", "exp_avg_diff", "exp_avg_sq", "prev_grad")
    return (*(like(name, parameter) for name in names), *_kahan(parameter, args), *_released_step(args))


@_register("Lion", "lion.py:89-99", {"betas": (0.9, 0.99), "weight_decay": 0.0}, _GROUP.strip())
def lion(parameter: ParameterSpec, args: Arguments) -> Entries:
    """One moment and the compensation."""
    return (like("exp_avg", parameter), *_kahan(parameter, args, stand_in=parameter.tensor.dtype))


@_register("Ranger", "ranger.py:102-117", _BETAS | {"k": 6, "alpha": 0.5, "decouple_wd": True})
def ranger(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two moments, the lookahead weights and the compensation."""
    moments = (like("exp_avg", parameter), like("exp_avg_sq", parameter), like("la_param", parameter))
    return (*moments, *_kahan(parameter, args), *_released_step(args))


@_register(
    "SGD",
    "sgd.py:99-125",
    {"momentum": 0.0, "weight_decay": 0.0, "dampening": False, "decouple_wd": False, "torch_init": False},
    _GROUP.strip(),
)
def sgd(parameter: ParameterSpec, args: Arguments) -> Entries:
    """A momentum if one is asked for, and the compensation even without."""
    if args["momentum"] != 0 or (args["dampening"] and args["torch_init"]):
        momentum = like("exp_avg", parameter)
    elif args["triton"]:
        momentum = tensor("exp_avg", (1,), parameter.tensor.dtype)
    else:
        momentum = python_number("exp_avg", "none")
    return (momentum, *_kahan(parameter, args))


@_register(
    "StableAdamW",
    "stableadamw.py:115-134",
    _BETAS | {"weight_decay": 1e-2},
    _STEP
    + _GROUP
    + " On CUDA with triton installed, triton=None means True, which adds 4 bytes a parameter, and 1 more to those "
    "without compensation: say triton=True for that.",
)
def stable_adamw(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two moments, the squared epsilon as a tensor, the compensation, and with Triton a mean square."""
    moments = (like("exp_avg", parameter), like("exp_avg_sq", parameter))
    eps_sq = tensor("eps_sq", (), parameter.tensor.dtype)
    mean_square = (tensor("mean_square", (1,), "float32"),) if args["triton"] else ()
    return (*moments, eps_sq, *_kahan(parameter, args), *mean_square, *_released_step(args))


def _kahan(parameter: ParameterSpec, args: Arguments, *, stand_in: str = "uint8") -> Entries:
    """Return the compensation: a buffer, a stand-in of one element for the Triton kernel, or `None`."""
    wanted = args["kahan_sum"] or args["kahan_sum"] is None
    if wanted and parameter.tensor.dtype in _LOW_PRECISION:
        return (like("kahan_comp", parameter),)
    if args["triton"]:
        return (tensor("kahan_comp", (1,), stand_in),)
    return (python_number("kahan_comp", "none"),)


def _released_step(args: Arguments) -> Entries:
    """Return the step counter that each parameter needs when it steps on its own."""
    return (StateEntry("step", TensorSpec((), "int32", "host")),) if args["gradient_release"] else ()
