"""Names that users type instead of a class path."""

from __future__ import annotations

from memsim.optimizers import adafactor, bitsandbytes, torch_optim  # noqa: F401  (each registers its rules)
from memsim.optimizers.registry import OptimizerName, register_names

# What `transformers.Trainer` builds for each `optim=` name: transformers 5.24.0, trainer_optimizer.py.
_TRAINER = (
    OptimizerName(name="adamw_torch", class_path="torch.optim.AdamW", framework="transformers"),
    OptimizerName(
        name="adamw_torch_fused",
        class_path="torch.optim.AdamW",
        args={"fused": True},
        framework="transformers",
    ),
)

register_names(_TRAINER)
