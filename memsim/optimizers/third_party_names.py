"""Names for optimizers of packages other than torch, transformers and bitsandbytes.

The first tuple is what `transformers.Trainer` builds (transformers 5.24.0, trainer_optimizer.py); the Trainer asks for
`optim_target_modules` with GaLore and APOLLO, for which memsim takes `all-linear` unless `target_modules` is given.
"""

from __future__ import annotations

from typing import Any

from memsim.optimizers import (  # noqa: F401  (each registers its rules)
    few_states,
    fused_backward,
    galore,
    kron,
    master_weights,
    muon,
    optimi,
    parameter_free,
    pytorch_optimizer,
    schedulefree,
    simple_packages,
    torch_optimizer,
    torchao,
)
from memsim.optimizers.registry import OptimizerName, register_names

_ALL_LINEAR: dict[str, Any] = {"target_modules": "all-linear"}
_BETAS: dict[str, Any] = {"betas": (0.9, 0.999), "eps": 1e-8}
_ADAM: dict[str, Any] = {**_BETAS, "weight_decay": 0.0}
_TORCHAO: dict[str, Any] = {**_ADAM, "block_size": 256, "bf16_stochastic_round": False}
_GALORE_ADAFACTOR: dict[str, Any] = {"scale_parameter": False, "relative_step": False}
_SCHEDULE_FREE: dict[str, Any] = {"weight_decay": 0.0, "weight_lr_power": 2.0, "r": 0.0}


def _trainer(name: str, class_path: str, unbuildable: str = "", **args: Any) -> OptimizerName:
    """Return a name of `TrainingArguments.optim` with what the Trainer sets besides its default lr of 5e-5."""
    if "lr" not in args:
        args["lr"] = 5e-5
    return OptimizerName(name=name, class_path=class_path, args=args, framework="transformers", unbuildable=unbuildable)


_ANY_PRECISION: dict[str, Any] = {
    **_ADAM,
    "use_kahan_summation": False,
    "momentum_dtype": "float32",
    "variance_dtype": "float32",
    "compensation_buffer_dtype": "bfloat16",
}

TRAINER = (
    _trainer("adamw_torch_xla", "torch_xla.amp.syncfree.AdamW", **_ADAM),
    _trainer("adamw_torch_npu_fused", "torch_npu.optim.NpuFusedAdamW", **_ADAM),
    _trainer("adamw_anyprecision", "torchdistx.optimizers.AnyPrecisionAdamW", **_ANY_PRECISION),
    _trainer("adamw_torch_4bit", "torchao.optim.AdamW4bit", **_TORCHAO),
    _trainer("adamw_torch_8bit", "torchao.optim.AdamW8bit", **_TORCHAO),
    _trainer("galore_adamw", "galore_torch.GaLoreAdamW", **_ALL_LINEAR),
    _trainer("galore_adamw_8bit", "galore_torch.GaLoreAdamW8bit", **_ALL_LINEAR),
    _trainer("galore_adafactor", "galore_torch.GaLoreAdafactor", **_ALL_LINEAR, **_GALORE_ADAFACTOR),
    _trainer("galore_adamw_layerwise", "galore_torch.GaLoreAdamW", layerwise=True, **_ALL_LINEAR),
    _trainer("galore_adamw_8bit_layerwise", "galore_torch.GaLoreAdamW8bit", layerwise=True, **_ALL_LINEAR),
    _trainer(
        "galore_adafactor_layerwise",
        "galore_torch.GaLoreAdafactor",
        unbuildable="the Trainer gives it a learning rate together with relative_step=True, which the class refuses",
        layerwise=True,
        **_ALL_LINEAR,
    ),
    _trainer("apollo_adamw", "apollo_torch.APOLLOAdamW", **_ALL_LINEAR),
    _trainer("apollo_adamw_layerwise", "apollo_torch.APOLLOAdamW", layerwise=True, **_ALL_LINEAR),
    _trainer("lomo", "lomo_optim.Lomo"),
    _trainer("adalomo", "lomo_optim.AdaLomo"),
    _trainer("grokadamw", "grokadamw.GrokAdamW", weight_decay=0.0),
    _trainer("schedule_free_adamw", "schedulefree.AdamWScheduleFree", **_BETAS, **_SCHEDULE_FREE),
    _trainer("schedule_free_radam", "schedulefree.RAdamScheduleFree", **_BETAS, **_SCHEDULE_FREE),
    _trainer("schedule_free_sgd", "schedulefree.SGDScheduleFree", **_SCHEDULE_FREE),
    _trainer("stable_adamw", "optimi.StableAdamW", **_ADAM),
)

_MASTER: dict[str, Any] = {"master_weights": True, "capturable": True}

# Short names; `muon` is what people train with, since torch.optim.Muon alone takes hidden matrices only.
SHORT = tuple(
    OptimizerName(name=name, class_path=class_path, args=args)
    for name, class_path, args in (
        ("muon", "Muon+AdamW", {}),
        ("muon_with_aux_adam", "muon.SingleDeviceMuonWithAuxAdam", {}),
        ("moonlight_muon", "moonlight.examples.toy_train.Muon", {}),
        ("adam_mini", "adam_mini.Adam_mini", {}),
        ("prodigy", "prodigyopt.Prodigy", {}),
        ("prodigy_plus", "prodigyplus.ProdigyPlusScheduleFree", {}),
        ("dadapt_adam", "dadaptation.DAdaptAdam", {}),
        ("came", "came_pytorch.CAME", {}),
        ("adabelief", "adabelief_pytorch.AdaBelief", {}),
        ("adan", "pytorch_optimizer.Adan", {}),
        ("soap", "pytorch_optimizer.SOAP", {}),
        ("shampoo", "pytorch_optimizer.Shampoo", {}),
        ("splus", "pytorch_optimizer.SPlus", {}),
        ("sophia", "pytorch_optimizer.SophiaH", {}),
        ("kron", "kron_torch.Kron", {}),
        ("fira", "fira.FiraAdamW", _ALL_LINEAR),
        ("adamw_fp8", "torchao.optim.AdamWFp8", {}),
        ("adamw_bf16_stochastic", "torchao.optim.adam._AdamW", {"bf16_stochastic_round": True}),
        ("adamw_cpu_offload", "torchao.optim.CPUOffloadOptimizer", {}),
        ("adamw_fp32_master", "apex.optimizers.FusedAdam", _MASTER),
        ("adamw_megatron", "megatron.core.optimizer.Float16OptimizerWithFloat16Params", {}),
        ("adamw_zero1", "deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer", {}),
    )
)

register_names(TRAINER)
register_names(SHORT)
