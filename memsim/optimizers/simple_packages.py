"""State of small packages whose optimizers keep nothing but tensors of the parameter's shape.

Each was read at the version that its entry names; the lines are those that create the state.
"""

from __future__ import annotations

from typing import Any

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional, Required
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, StateEntry, like, python_number, same_shape
from memsim.tensors import TensorSpec

_BETAS: dict[str, Any] = {"betas": (0.9, 0.99), "weight_decay": 0.0}
_LION: dict[str, Any] = {"package": "lion-pytorch", "version": "0.2.5"}
_ATAN2: dict[str, Any] = {"package": "adam-atan2-pytorch", "version": "0.4.1"}


@register(
    "grokadamw.GrokAdamW",
    arguments={
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 1e-2,
        "alpha_init": 0.98,
        "lamb": 2.0,
        "gamma": 0.1,
        "grokking_signal_fns": None,
        "grokking_signal_decay_rate": 0.1,
        "gradient_clipping": 1.0,
    },
    package="grokadamw",
    version="0.1.2",
    source="grokadamw/grokadamw.py:86-137",
)
def grokadamw(parameter: ParameterSpec, args: Arguments) -> Entries:  # noqa: ARG001
    """Three moments that live on the host and visit the device one parameter at a time.

    They are kept in `param_group["state"]`, not in `optimizer.state`.
    """
    spec = parameter.tensor
    moments = ("exp_avg", "exp_avg_sq", "grok_ema")
    return (
        python_number("group.state.step"),
        *(StateEntry(f"group.state.{name}", TensorSpec(spec.shape, spec.dtype, "host")) for name in moments),
    )


register(
    "lion_pytorch.Lion",
    arguments={"lr": 1e-4, **_BETAS, "use_triton": False, "decoupled_weight_decay": False},
    source="lion_pytorch/lion_pytorch.py:84",
    **_LION,
)(same_shape("exp_avg"))
register(
    "lion_pytorch.foreach.Lion",
    arguments={"lr": 1e-4, **_BETAS, "decoupled_weight_decay": False},
    source="lion_pytorch/foreach.py:71",
    **_LION,
)(same_shape("exp_avg"))
register(
    "lion_pytorch.cautious_lion.Lion",
    arguments={
        "lr": 1e-4,
        **_BETAS,
        "cautious_factor": 0.0,
        "cautious_wd": False,
        "decoupled_weight_decay": False,
    },
    source="lion_pytorch/cautious_lion.py:66",
    **_LION,
)(same_shape("exp_avg"))


@register(
    "adabelief_pytorch.AdaBelief",
    arguments={
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-16,
        "weight_decay": 0.0,
        "amsgrad": False,
        "weight_decouple": True,
        "fixed_decay": False,
        "rectify": True,
        "degenerated_to_sgd": True,
        "print_change_log": True,
    },
    package="adabelief-pytorch",
    version="0.2.1",
    source="adabelief_pytorch/AdaBelief.py:162-173",
)
def adabelief(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two moments, three with `amsgrad`; in float32 for float16 weights, which are made float32 for the step."""
    moments = ("exp_avg", "exp_avg_var") + (("max_exp_avg_var",) if args["amsgrad"] else ())
    dtype = "float32" if parameter.tensor.dtype == "float16" else parameter.tensor.dtype
    return (python_number("step"), *(like(name, parameter, dtype) for name in moments))


_ADAM_ATAN2: dict[str, Any] = {
    "lr": 1e-4,
    **_BETAS,
    "regen_reg_rate": 0.0,
    "decoupled_wd": False,
    "cautious_factor": 1.0,
    "a": 1.27,
    "b": 1.0,
}


@register(
    "adam_atan2_pytorch.AdamAtan2",
    arguments=_ADAM_ATAN2 | {"cautious_wd": False},
    source="adam_atan2_pytorch/adam_atan2.py:83-89",
    **_ATAN2,
)
def adam_atan2(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two moments, and the initial weights where they are regenerated towards."""
    return _atan2(parameter, args, "exp_avg", "exp_avg_sq")


@register(
    "adam_atan2_pytorch.AdoptAtan2",
    arguments=_ADAM_ATAN2 | {"decoupled_wd": True},
    source="adam_atan2_pytorch/adopt_atan2.py:89-95",
    **_ATAN2,
)
def adopt_atan2(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two moments, and the initial weights where they are regenerated towards."""
    return _atan2(parameter, args, "m", "v")


def _atan2(parameter: ParameterSpec, args: Arguments, *moments: str) -> Entries:
    initial = ("param_init",) if args["regen_reg_rate"] > 0.0 else ()
    return (python_number("steps"), *(like(name, parameter) for name in moments + initial))


@register(
    "ranger21.Ranger21",
    arguments={
        "lr": Required(float),
        "lookahead_active": True,
        "lookahead_mergetime": 5,
        "lookahead_blending_alpha": 0.5,
        "lookahead_load_at_validation": False,
        "use_madgrad": False,
        "use_adabelief": False,
        "softplus": True,
        "beta_softplus": 50,
        "using_gc": True,
        "using_normgc": True,
        "gc_conv_only": False,
        "normloss_active": True,
        "normloss_factor": 1e-4,
        "use_adaptive_gradient_clipping": True,
        "agc_clipping_value": 1e-2,
        "agc_eps": 1e-3,
        "betas": (0.9, 0.999),
        "momentum_type": "pnm",
        "pnm_momentum_factor": 1.0,
        "momentum": 0.9,
        "eps": 1e-8,
        "num_batches_per_epoch": Optional(int),
        "num_epochs": Optional(int),
        "use_cheb": False,
        "use_warmup": True,
        "num_warmup_iterations": Optional(int),
        "warmdown_active": True,
        "warmdown_start_pct": 0.72,
        "warmdown_min_lr": 3e-5,
        "weight_decay": 1e-4,
        "decay_type": "stable",
        "warmup_type": "linear",
        "warmup_pct_default": 0.22,
        "logging_active": True,
    },
    package="ranger21",
    version="0.1.0",
    source="ranger21/ranger21.py:608-641",
)
def ranger21(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Four moments of positive-negative momentum, and the lookahead weights unless they are switched off.

    Raises:
        UsageError: MADGRAD, AdaBelief or another momentum, with which version 0.1.0 cannot step or is not modelled.
    """
    if args["use_madgrad"] or args["use_adabelief"] or args["momentum_type"] != "pnm":
        raise UsageError(
            "Ranger21 is modelled with momentum_type='pnm' and without use_madgrad and use_adabelief: version 0.1.0 "
            "fails with most other combinations."
        )
    lookahead = ("lookahead_params",) if args["lookahead_active"] else ()
    names = ("grad_ma", "variance_ma", *lookahead, "neg_grad_ma", "max_variance_ma")
    return (python_number("step"), *(like(name, parameter) for name in names))
