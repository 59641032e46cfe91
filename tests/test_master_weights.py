"""Optimizers with float32 master weights: they need a GPU to run, so published figures and arithmetic are the measure.

ZeRO (arXiv:1910.02054, section 3.1): mixed-precision Adam keeps float32 weights, momentum and variance, K = 12 bytes a
parameter. Megatron-LM (docs of the distributed optimizer): 18 bytes with bfloat16 weights (2) and float32 gradients
(4), which leaves 12.
"""

from __future__ import annotations

import pytest

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers import derive_state, resolve_optimizer
from memsim.tensors import TensorSpec

BF16 = [
    ParameterSpec(name="weight", tensor=TensorSpec((128, 64), "bfloat16")),
    ParameterSpec(name="bias", tensor=TensorSpec((128,), "bfloat16")),
    ParameterSpec(name="scale", tensor=TensorSpec((), "bfloat16")),
]
NUM_PARAMETERS = 128 * 64 + 128 + 1
ZERO_K = 12


def _state(class_path, parameters=BF16, **args):
    return derive_state(resolve_optimizer(class_path, args), parameters)


@pytest.mark.parametrize(
    ("class_path", "args"),
    [
        ("apex.optimizers.FusedAdam", {"master_weights": True, "capturable": True}),
        ("megatron.core.optimizer.Float16OptimizerWithFloat16Params", {}),
    ],
)
def test_master_weights_cost_twelve_bytes_a_parameter(class_path, args):
    state = _state(class_path, **args)
    assert state.device_bytes == ZERO_K * NUM_PARAMETERS
    assert state.host_bytes == 0


def test_zero_on_one_gpu_costs_twelve_bytes_a_parameter_of_a_group_padded_to_two():
    state = _state("deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer")
    assert NUM_PARAMETERS % 2 == 1
    assert state.device_bytes == ZERO_K * (NUM_PARAMETERS + 1)
    even = BF16[:2]
    assert _state("deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer", even).device_bytes == ZERO_K * 8320


def test_the_bf16_optimizer_keeps_its_float32_gradients_too():
    state = _state("deepspeed.runtime.bf16_optimizer.BF16_Optimizer")
    assert state.device_bytes == (ZERO_K + 4) * (NUM_PARAMETERS + 1)


def test_float32_weights_have_no_main_copy_in_megatron_and_one_in_apex():
    fp32 = [ParameterSpec(name="w", tensor=TensorSpec((10,), "float32"))]
    assert _state("megatron.core.optimizer.Float16OptimizerWithFloat16Params", fp32).device_bytes == 8 * 10
    assert _state("apex.optimizers.FusedAdam", fp32, master_weights=True, capturable=True).device_bytes == 12 * 10


def test_fused_adam_of_apex_keeps_float32_and_that_of_deepspeed_the_weights_dtype():
    assert _state("apex.optimizers.FusedAdam").device_bytes == 8 * NUM_PARAMETERS
    assert _state("deepspeed.ops.adam.FusedAdam").device_bytes == 4 * NUM_PARAMETERS


def test_cpu_adam_lives_on_the_host():
    state = _state("deepspeed.ops.adam.DeepSpeedCPUAdam")
    assert (state.device_bytes, state.host_bytes) == (0, 8 * NUM_PARAMETERS)
    state = _state("deepspeed.ops.adam.DeepSpeedCPUAdam", fp32_optimizer_states=False)
    assert (state.device_bytes, state.host_bytes) == (0, 4 * NUM_PARAMETERS)


def test_any_precision_keeps_each_moment_in_its_own_dtype():
    """Float32 momentum (4) and bfloat16 variance (2); a float32 step on the host for each of the three tensors."""
    state = _state("torchdistx.optimizers.AnyPrecisionAdamW")
    assert (state.device_bytes, state.host_bytes) == (6 * NUM_PARAMETERS, 3 * 4)
    pure = {"momentum_dtype": "bfloat16", "use_kahan_summation": True, "compensation_buffer_dtype": "torch.bfloat16"}
    assert _state("torchdistx.optimizers.AnyPrecisionAdamW", **pure).device_bytes == 6 * NUM_PARAMETERS
    assert _state("adamw_anyprecision").device_bytes == 8 * NUM_PARAMETERS, "the Trainer sets both to float32"


def test_the_xla_name_means_the_state_of_torch_adamw():
    rows = [(r.parameter, r.name, r.shape, r.dtype, r.device) for r in _state("adamw_torch_xla")]
    expected = []
    for p in BF16:
        expected.append((p.name, "step", (), "float32", "host"))
        expected += [(p.name, moment, p.tensor.shape, "bfloat16", "device") for moment in ("exp_avg", "exp_avg_sq")]
    assert rows == expected


def test_the_npu_name_keeps_two_moments_and_a_python_step():
    state = _state("adamw_torch_npu_fused")
    assert state.total_bytes == 4 * NUM_PARAMETERS
    assert {row.dtype for row in state if row.name == "step"} == {"python:int"}
    assert _state("torch_npu.optim.NpuFusedAdamW", amsgrad=True).total_bytes == 6 * NUM_PARAMETERS


@pytest.mark.parametrize(
    ("class_path", "args", "message"),
    [
        ("apex.optimizers.FusedAdam", {"amsgrad": True}, "amsgrad"),
        ("apex.optimizers.FusedAdam", {"master_weights": True}, "capturable"),
        ("deepspeed.ops.adam.FusedAdam", {"amsgrad": True}, "amsgrad"),
    ],
)
def test_what_the_class_refuses_is_an_error(class_path, args, message):
    with pytest.raises(UsageError, match=message):
        _state(class_path, **args)
