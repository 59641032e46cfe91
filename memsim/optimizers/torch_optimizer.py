"""State of the optimizers of `torch_optimizer` (jettify's package of 2021), version 0.3.0.

Read at torch_optimizer 0.3.0, `step` of each class; Ranger and its kin come from pytorch-ranger 0.1.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Opaque
from memsim.optimizers.entry_table import table_rule
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like, python_number, tensor

_FACTS: dict[str, Any] = {"package": "torch-optimizer", "version": "0.3.0"}

# One class a paragraph reads better than one argument a line.
# fmt: off
_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "A2GradExp": {"lr": None, "beta": 10.0, "lips": 10.0, "rho": 0.5},
    "A2GradInc": {"lr": None, "beta": 10.0, "lips": 10.0},
    "A2GradUni": {"lr": None, "beta": 10.0, "lips": 10.0},
    "AccSGD": {"lr": 0.001, "kappa": 1000.0, "xi": 10.0, "small_const": 0.7, "weight_decay": 0.0},
    "AdaBelief": {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-08, "weight_decay": 0.0, "amsgrad": False,
        "weight_decouple": False, "fixed_decay": False, "rectify": False},
    "AdaBound": {"lr": 0.001, "betas": (0.9, 0.999), "final_lr": 0.1, "gamma": 0.001, "eps": 1e-08,
        "weight_decay": 0.0, "amsbound": False},
    "AdaMod": {"lr": 0.001, "betas": (0.9, 0.999), "beta3": 0.999, "eps": 1e-08, "weight_decay": 0.0},
    "Adafactor": {"lr": None, "eps2": (1e-30, 0.001), "clip_threshold": 1.0, "decay_rate": -0.8, "beta1": None,
        "weight_decay": 0.0, "scale_parameter": True, "relative_step": True, "warmup_init": False},
    "Adahessian": {"lr": 0.15, "betas": (0.9, 0.999), "eps": 0.0001, "weight_decay": 0.0, "hessian_power": 0.5,
        "seed": None},
    "AdamP": {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-08, "weight_decay": 0.0, "delta": 0.1, "wd_ratio": 0.1,
        "nesterov": False},
    "AggMo": {"lr": 0.001, "betas": Opaque(tuple, list), "weight_decay": 0.0},
    "Apollo": {"lr": 0.01, "beta": 0.9, "eps": 0.0001, "warmup": 0, "init_lr": 0.01, "weight_decay": 0.0},
    "DiffGrad": {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-08, "weight_decay": 0.0},
    "LARS": {"lr": 0.01, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False,
        "trust_coefficient": 0.01, "eps": 1e-08},
    "Lamb": {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-06, "weight_decay": 0.0, "clamp_value": 10.0,
        "adam": False, "debias": False},
    "MADGRAD": {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.0, "eps": 1e-06},
    "NovoGrad": {"lr": 0.001, "betas": (0.95, 0), "eps": 1e-08, "weight_decay": 0.0, "grad_averaging": False,
        "amsgrad": False},
    "PID": {"lr": 0.001, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "integral": 5.0, "derivative": 10.0},
    "QHAdam": {"lr": 0.001, "betas": (0.9, 0.999), "nus": (1.0, 1.0), "weight_decay": 0.0,
        "decouple_weight_decay": False, "eps": 1e-08},
    "QHM": {"lr": 0.001, "momentum": 0.0, "nu": 0.7, "weight_decay": 0.0, "weight_decay_type": "grad"},
    "RAdam": {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-08, "weight_decay": 0.0},
    "Ranger": {"lr": 0.001, "alpha": 0.5, "k": 6, "N_sma_threshhold": 5, "betas": (0.95, 0.999), "eps": 1e-05,
        "weight_decay": 0.0},
    "RangerQH": {"lr": 0.001, "betas": (0.9, 0.999), "nus": (0.7, 1.0), "weight_decay": 0.0, "k": 6, "alpha": 0.5,
        "decouple_weight_decay": False, "eps": 1e-08},
    "RangerVA": {"lr": 0.001, "alpha": 0.5, "k": 6, "n_sma_threshhold": 5, "betas": (0.95, 0.999), "eps": 1e-05,
        "weight_decay": 0.0, "amsgrad": True, "transformer": "softplus", "smooth": 50, "grad_transformer": "square"},
    "SGDP": {"lr": 0.001, "momentum": 0.0, "dampening": 0.0, "eps": 1e-08, "weight_decay": 0.0, "delta": 0.1,
        "wd_ratio": 0.1, "nesterov": False},
    "SGDW": {"lr": 0.001, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False},
    "SWATS": {"lr": 0.001, "betas": (0.9, 0.999), "eps": 0.001, "weight_decay": 0.0, "amsgrad": False,
        "nesterov": False},
    "Shampoo": {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "epsilon": 0.0001, "update_freq": 1},
    "Yogi": {"lr": 0.01, "betas": (0.9, 0.999), "eps": 0.001, "initial_accumulator": 1e-06, "weight_decay": 0.0},
}

# Class: file and line, its keys, and the keys that an argument adds (see entry_table).
_TABLE: Mapping[str, tuple[str, str] | tuple[str, str, Mapping[str, str]]] = {
    "A2GradExp": ("torch_optimizer/a2grad.py:269-276", "step:int alpha_k:float v_k:float avg_grad x_k v_kk:float"),
    "A2GradInc": ("torch_optimizer/a2grad.py:169-174", "step:int alpha_k:float v_k:float avg_grad x_k"),
    "A2GradUni": ("torch_optimizer/a2grad.py:75-80", "step:int alpha_k:float v_k:float avg_grad x_k"),
    "AccSGD": ("torch_optimizer/accsgd.py:89-92", "momentum_buffer"),
    "AdaBelief": ("torch_optimizer/adabelief.py:127-145", "rho_inf:float step:int exp_avg exp_avg_var",
        {"amsgrad": "max_exp_avg_var", "rectify": "rho_t:float"}),
    "AdaBound": ("torch_optimizer/adabound.py:120-136", "step:int exp_avg exp_avg_sq", {"amsbound": "max_exp_avg_sq"}),
    "AdaMod": ("torch_optimizer/adamod.py:100-115", "step:int exp_avg exp_avg_sq exp_avg_lr"),
    "Adahessian": ("torch_optimizer/adahessian.py:164-181", "step:int exp_avg exp_hessian_diag_sq"),
    "AdamP": ("torch_optimizer/adamp.py:140-150", "step:int exp_avg exp_avg_sq"),
    "Apollo": ("torch_optimizer/apollo.py:100-115", "step:int exp_avg_grad approx_hessian update"),
    "DiffGrad": ("torch_optimizer/diffgrad.py:95-110", "step:int exp_avg exp_avg_sq previous_grad"),
    "LARS": ("torch_optimizer/lars.py:150-158", "", {"momentum": "momentum_buffer"}),
    "Lamb": ("torch_optimizer/lamb.py:107-152",
        "step:int exp_avg exp_avg_sq weight_norm:() adam_norm:() trust_ratio:()"),
    "NovoGrad": ("torch_optimizer/novograd.py:112-127", "step:int exp_avg exp_avg_sq:()f32",
        {"amsgrad": "max_exp_avg_sq:()f32"}),
    "PID": ("torch_optimizer/pid.py:93-119", "", {"momentum": "i_buffer grad_buffer d_buffer"}),
    "QHAdam": ("torch_optimizer/qhadam.py:117-124", "beta1_weight:float beta2_weight:float exp_avg exp_avg_sq"),
    "QHM": ("torch_optimizer/qhm.py:99-112", "momentum_buffer"),
    "RAdam": ("torch_optimizer/radam.py:121-132", "step:int exp_avg:f32 exp_avg_sq:f32"),
    "Ranger": ("pytorch_ranger/ranger.py:154-161", "step:int exp_avg:f32 exp_avg_sq:f32 slow_buffer"),
    "RangerQH": ("pytorch_ranger/rangerqh.py:129-137",
        "beta1_weight:float beta2_weight:float step:int exp_avg exp_avg_sq slow_buffer"),
    "RangerVA": ("pytorch_ranger/ranger913A.py:107-117", "step:int exp_avg:f32 exp_avg_sq:f32 slow_buffer",
        {"amsgrad": "max_exp_avg_sq"}),
    "SGDP": ("torch_optimizer/sgdp.py:150-154", "momentum"),
    "SGDW": ("torch_optimizer/sgdw.py:102-109", "", {"momentum": "momentum_buffer"}),
    "SWATS": ("torch_optimizer/swats.py:113-131", "step:int exp_avg exp_avg_sq exp_avg2:(1)",
        {"amsgrad": "max_exp_avg_sq"}),
    "Yogi": ("torch_optimizer/yogi.py:90-105", "step:int exp_avg exp_avg_sq"),
    "MADGRAD": ("torch_optimizer/madgrad.py:71-76", "grad_sum_sq s", {"momentum": "x0"}),
}
# fmt: on

_WITHOUT_GRADIENT = "State of parameters without a gradient."
_IGNORES = {
    "Adahessian": _WITHOUT_GRADIENT,
    "Lamb": "Weights or updates whose norm is zero: their trust ratio is a Python number.",
}

for _name, (_source, *_entries) in _TABLE.items():
    register(
        f"torch_optimizer.{_name}",
        arguments=_ARGUMENTS[_name],
        source=_source,
        ignores=_IGNORES.get(_name, ""),
        created="constructor" if _name == "MADGRAD" else "first step",
        **_FACTS,
    )(table_rule(*_entries))


@register("torch_optimizer.AggMo", arguments=_ARGUMENTS["AggMo"], source="torch_optimizer/aggmo.py:92-100", **_FACTS)
def aggmo(parameter: ParameterSpec, args: Arguments) -> Entries:
    """One momentum for each beta."""
    return tuple(like(f"momentum_buffer.{beta}", parameter) for beta in args["betas"] or (0.0, 0.9, 0.99))


@register(
    "torch_optimizer.Adafactor",
    arguments=_ARGUMENTS["Adafactor"],
    source="torch_optimizer/adafactor.py:150-173",
    **_FACTS,
)
def adafactor(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Row and column means of a matrix in the weight's dtype, a whole second moment of a vector.

    Raises:
        UsageError: three dimensions or more, with which version 0.3.0 fails.
    """
    shape, dtype = parameter.tensor.shape, parameter.tensor.dtype
    if len(shape) > 2:
        raise UsageError(
            f"{parameter.name} {shape}: torch_optimizer's Adafactor fails beyond two dimensions; freeze it."
        )
    momentum = (like("exp_avg", parameter),) if args["beta1"] is not None else ()
    second: Entries = (like("exp_avg_sq", parameter),)
    if len(shape) == 2:
        second = (tensor("exp_avg_sq_row", shape[:1], dtype), tensor("exp_avg_sq_col", shape[1:], dtype))
    return (python_number("step"), *momentum, *second, tensor("RMS", (), dtype))


@register(
    "torch_optimizer.Shampoo", arguments=_ARGUMENTS["Shampoo"], source="torch_optimizer/shampoo.py:95-145", **_FACTS
)
def shampoo(parameter: ParameterSpec, args: Arguments) -> Entries:  # noqa: ARG001
    """A momentum, used or not, and for each dimension, however long, a preconditioner and its inverse root."""
    squares = (
        tensor(f"{name}_{i}", (size, size), parameter.tensor.dtype)
        for i, size in enumerate(parameter.tensor.shape)
        for name in ("precond", "inv_precond")
    )
    return (python_number("step"), like("momentum_buffer", parameter), *squares)
