"""State of optimizers that keep float32 copies of 16-bit weights, or moments in other dtypes than the weights.

All read and none run: they need a GPU, an NPU or a build from source. apex at git 6424da3 (optimizers/fused_adam.py),
DeepSpeed 0.19.6 (ops/adam/fused_adam.py, ops/adam/cpu_adam.py, runtime/zero/stage_1_and_2.py,
runtime/bf16_optimizer.py), Megatron-LM at git 0011998 (core/optimizer/optimizer.py), torchdistx at git 0552f1b,
torch_xla at git 079a78c, torch_npu (optim/npu_fused_adamw.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers.registry import register
from memsim.optimizers.rules import (
    Arguments,
    Entries,
    StateEntry,
    adam_moments,
    dtype_name,
    like,
    python_number,
    step_tensor,
    tensor,
)
from memsim.tensors import TensorSpec

_ADAM: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False}
_FUSED = _ADAM | {"bias_correction": True, "adam_w_mode": True, "set_grad_none": True}
_DEEPSPEED: dict[str, Any] = {"package": "deepspeed", "version": "0.19.6"}
_ONE_GROUP = "More than one parameter group: each is padded to two elements by itself."
_SIXTEEN_BITS = frozenset({"float16", "bfloat16"})


@register(
    "apex.optimizers.FusedAdam",
    arguments=_FUSED | {"capturable": False, "master_weights": False},
    package="apex",
    version="git 6424da3",
    source="apex/optimizers/fused_adam.py:63-150",
    not_run="needs a GPU",
    ignores="The overflow flag (4 bytes), and with capturable the step and lr of each group as 4-byte tensors.",
)
def apex_fused_adam(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two float32 moments whatever the weight's dtype; with `master_weights` a float32 copy of every parameter.

    Raises:
        UsageError: `amsgrad`, or `master_weights` without `capturable`, which the class refuses.
    """
    if args["amsgrad"]:
        raise UsageError("apex.optimizers.FusedAdam does not support amsgrad=True; use torch.optim.AdamW.")
    if args["master_weights"] and not args["capturable"]:
        raise UsageError("apex.optimizers.FusedAdam: master_weights=True needs capturable=True.")
    master = (like("param_groups_master", parameter, "float32"),) if args["master_weights"] else ()
    return (like("exp_avg", parameter, "float32"), like("exp_avg_sq", parameter, "float32"), *master)


@register(
    "deepspeed.ops.adam.FusedAdam",
    arguments=_FUSED,
    source="deepspeed/ops/adam/fused_adam.py:60-150",
    not_run="needs a GPU",
    ignores="The overflow flag (4 bytes).",
    **_DEEPSPEED,
)
def deepspeed_fused_adam(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two moments in the dtype of what it is given: float32 under ZeRO, the weight's own without.

    Raises:
        UsageError: `amsgrad`, which the class refuses.
    """
    if args["amsgrad"]:
        raise UsageError("deepspeed.ops.adam.FusedAdam does not support amsgrad=True; use torch.optim.AdamW.")
    return (python_number("step"), like("exp_avg", parameter), like("exp_avg_sq", parameter))


@register(
    "deepspeed.ops.adam.DeepSpeedCPUAdam",
    arguments=_ADAM | {"bias_correction": True, "adamw_mode": True, "fp32_optimizer_states": True},
    source="deepspeed/ops/adam/cpu_adam.py",
    not_run="needs a compiler",
    **_DEEPSPEED,
)
def deepspeed_cpu_adam(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two moments on the host, in float32 unless `fp32_optimizer_states` is off."""
    dtype = "float32" if args["fp32_optimizer_states"] else parameter.tensor.dtype
    spec = TensorSpec(parameter.tensor.shape, dtype, "host")
    return (python_number("step"), StateEntry("exp_avg", spec), StateEntry("exp_avg_sq", spec))


ZERO_ALIGNMENT_ELEMENTS = 2
"""`nccl_start_alignment_factor` with one rank (stage_1_and_2.py, bf16_optimizer.py)."""


@register(
    "deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer",
    arguments={},
    source="deepspeed/runtime/zero/stage_1_and_2.py, flatten_dense_tensors_aligned",
    not_run="needs a GPU",
    whole=True,
    ignores=_ONE_GROUP + " The 16-bit weights are views of one flat tensor, padded likewise.",
    **_DEEPSPEED,
)
def zero_one_gpu(parameters: Sequence[ParameterSpec], args: Arguments) -> Iterable[tuple[ParameterSpec, Entries]]:  # noqa: ARG001
    """ZeRO stage 1 or 2 with FusedAdam on one GPU: flat float32 weights and two flat float32 moments."""
    return _flat(parameters, ("single_partition_of_fp32_groups", "exp_avg", "exp_avg_sq"))


@register(
    "deepspeed.runtime.bf16_optimizer.BF16_Optimizer",
    arguments={},
    source="deepspeed/runtime/bf16_optimizer.py",
    not_run="needs a GPU",
    whole=True,
    ignores=_ONE_GROUP + " The bfloat16 weights are views of one flat tensor, padded likewise.",
    **_DEEPSPEED,
)
def bf16_optimizer(parameters: Sequence[ParameterSpec], args: Arguments) -> Iterable[tuple[ParameterSpec, Entries]]:  # noqa: ARG001
    """Flat float32 weights, moments and the buffer in which gradients are summed, which stays from step to step."""
    names = ("fp32_groups_flat_partition", "fp32_groups_gradients_flat", "exp_avg", "exp_avg_sq")
    return _flat(parameters, names)


def _flat(parameters: Sequence[ParameterSpec], names: tuple[str, ...]) -> Iterable[tuple[ParameterSpec, Entries]]:
    """Return flat float32 tensors over all parameters, listed with the first; the others have nothing."""
    numel = sum(p.tensor.numel for p in parameters)
    padded = numel + numel % ZERO_ALIGNMENT_ELEMENTS
    entries = (python_number("step"), *(tensor(name, (padded,), "float32") for name in names))
    return [(p, entries if i == 0 else ()) for i, p in enumerate(parameters)]


@register(
    "megatron.core.optimizer.Float16OptimizerWithFloat16Params",
    arguments={},
    package="megatron-core",
    version="git 0011998",
    source="megatron/core/optimizer/optimizer.py, class Float16OptimizerWithFloat16Params",
    not_run="needs a GPU",
    ignores="The float32 gradients of the main parameters, made before each step, and their buffer in Megatron's DDP.",
)
def megatron_float16(parameter: ParameterSpec, args: Arguments) -> Entries:  # noqa: ARG001
    """FusedAdam's float32 moments, and a float32 main copy of each 16-bit weight."""
    main = (like("main_param", parameter, "float32"),) if parameter.tensor.dtype in _SIXTEEN_BITS else ()
    return (like("exp_avg", parameter, "float32"), like("exp_avg_sq", parameter, "float32"), *main)


@register(
    "torchdistx.optimizers.AnyPrecisionAdamW",
    arguments={
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.0,
        "use_kahan_summation": False,
        "momentum_dtype": "float32",
        "variance_dtype": "bfloat16",
        "compensation_buffer_dtype": "bfloat16",
    },
    package="torchdistx",
    version="git 0552f1b",
    source="torchdistx/optimizers/anyprecision_optimizer.py:157-178",
    not_run="the package no longer installs",
)
def any_precision_adamw(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two moments, and with Kahan summation a compensation, each in a dtype of its own."""
    kahan: Entries = ()
    if args["use_kahan_summation"]:
        kahan = (like("compensation", parameter, dtype_name(args["compensation_buffer_dtype"], "bfloat16")),)
    return (
        step_tensor(on_device=False),
        like("exp_avg", parameter, dtype_name(args["momentum_dtype"], "float32")),
        like("exp_avg_sq", parameter, dtype_name(args["variance_dtype"], "bfloat16")),
        *kahan,
    )


@register(
    "torch_xla.amp.syncfree.AdamW",
    arguments=_ADAM | {"weight_decay": 1e-2},
    package="torch_xla",
    version="git 079a78c",
    source="torch_xla/amp/syncfree/adamw.py:30-100",
    not_run="needs XLA",
    ignores="step(found_inf=...) of a GradScaler, with which `step` is on the device in the flag's dtype.",
)
def xla_adamw(parameter: ParameterSpec, args: Arguments) -> Entries:
    """`torch.optim.AdamW`'s state: the class takes the inherited step() where it is given no overflow flag."""
    return (step_tensor(on_device=False), *(like(name, parameter) for name in adam_moments(args)))


@register(
    "torch_npu.optim.NpuFusedAdamW",
    arguments=_ADAM | {"weight_decay": 1e-2},
    package="torch_npu",
    version="master",
    source="torch_npu/optim/npu_fused_adamw.py:46-64",
    not_run="needs an Ascend NPU",
    ignores="Weights, gradients and moments are moved into one tensor each, whose parts the NPU aligns.",
)
def npu_adamw(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two moments in the weight's dtype, three with `amsgrad`."""
    return (python_number("step"), *(like(name, parameter) for name in adam_moments(args)))
