"""Temporaries of the optimizers of master_weights.py whose step is one fused kernel, and of AnyPrecisionAdamW.

Read, not run, as their state: apex and DeepSpeed need a GPU, and torchdistx no longer installs.
"""

from __future__ import annotations

from collections.abc import Sequence

from memsim.model import ParameterSpec
from memsim.optimizers.rules import Arguments
from memsim.optimizers.shape_tensor import StateTensors, variables, weight
from memsim.optimizers.step import Tape, register_step


def _capturable(args: Arguments) -> str:
    if not args["capturable"]:
        return ""
    return "with capturable=True apex makes flags and scales on the device, which have not been read"


@register_step(
    "apex.optimizers.FusedAdam",
    source="apex/optimizers/fused_adam.py, FusedAdam.step @git 004da4e",
    refuses=_capturable,
)
def apex_fused_adam_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:  # noqa: ARG001
    """`torch.zeros_like(p).float()` at the first step; the kernels change everything in place."""
    for p in parameters:
        state = StateTensors(tape, p)
        if tape.creates_state:
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = weight(tape, p).like().float()


@register_step(
    "deepspeed.ops.adam.FusedAdam",
    source="deepspeed/ops/adam/fused_adam.py, FusedAdam.step @git 839f091",
)
@register_step(
    "deepspeed.ops.adam.DeepSpeedCPUAdam",
    source="deepspeed/ops/adam/cpu_adam.py, DeepSpeedCPUAdam.step @git a9a6188",
)
def deepspeed_adam_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:  # noqa: ARG001
    """The kernels change everything in place."""
    for p in parameters:
        tape.create_state(p)


@register_step(
    "torchdistx.optimizers.AnyPrecisionAdamW",
    source="torchdistx/optimizers/anyprecision_optimizer.py, AnyPrecisionAdamW.step @git 0552f1b",
)
def any_precision_adamw_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """One parameter after the other; `step` is a tensor on the host, and so are the numbers made of it."""
    v = variables(tape, "bias_correction1", "step_size", "denom_correction", "centered_variance", "temp_buffer")
    for p in parameters:
        state = StateTensors(tape, p).create()
        v.bias_correction1 = 1 - 0.9 ** state["step"]
        v.step_size = args["lr"] / v.bias_correction1
        v.denom_correction = (1 - 0.999 ** state["step"]) ** 0.5
        v.centered_variance = state["exp_avg_sq"].sqrt() / v.denom_correction
        v.step_size.neg()
        if args["use_kahan_summation"]:
            v.temp_buffer = weight(tape, p).clone()
