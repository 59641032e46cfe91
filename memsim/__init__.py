"""How much GPU memory a training step takes, byte by byte, before anything runs.

>>> import memsim
>>> memsim.estimate("distilbert-base-cased", optimizer="adafactor").static.optimizer_state_bytes
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from memsim.comparison import Comparison
    from memsim.config import OptimizerConfig, ParameterGroup, TrainingConfig
    from memsim.dry_run.result import DryRun
    from memsim.errors import MemsimError
    from memsim.estimator import compare, estimate
    from memsim.integrations.own import MeasuredSteps, measure_steps
    from memsim.live import compute_optimizer_size
    from memsim.optimizers.standalone import optimizer_state
    from memsim.results import Estimate, Estimates
    from memsim.saved import load
    from memsim.simulated_run import SimulatedRun
    from memsim.simulator import simulate
    from memsim.verifying import verify

_HOMES = {
    "Comparison": "memsim.comparison",
    "DryRun": "memsim.dry_run.result",
    "Estimate": "memsim.results",
    "Estimates": "memsim.results",
    "MeasuredSteps": "memsim.integrations.own",
    "MemsimError": "memsim.errors",
    "OptimizerConfig": "memsim.config",
    "ParameterGroup": "memsim.config",
    "SimulatedRun": "memsim.simulated_run",
    "TrainingConfig": "memsim.config",
    "compare": "memsim.estimator",
    "compute_optimizer_size": "memsim.live",
    "estimate": "memsim.estimator",
    "load": "memsim.saved",
    "measure_steps": "memsim.integrations.own",
    "optimizer_state": "memsim.optimizers.standalone",
    "simulate": "memsim.simulator",
    "verify": "memsim.verifying",
}

__all__ = [
    "Comparison",
    "DryRun",
    "Estimate",
    "Estimates",
    "MeasuredSteps",
    "MemsimError",
    "OptimizerConfig",
    "ParameterGroup",
    "SimulatedRun",
    "TrainingConfig",
    "compare",
    "compute_optimizer_size",
    "estimate",
    "load",
    "measure_steps",
    "optimizer_state",
    "simulate",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import a public name where it is first used, so that `import memsim` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'memsim' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
