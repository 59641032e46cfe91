"""Optimizer rules: from parameter shapes and dtypes to the exact state of every optimizer memsim knows."""

from memsim.optimizers import names as _names  # noqa: F401  (registers torch, transformers and bitsandbytes)
from memsim.optimizers.grouping import Assignment, assign, assign_in_loop, resolve_groups, state_of
from memsim.optimizers.registry import (
    OptimizerName,
    ResolvedOptimizer,
    names,
    resolve_optimizer,
    rules,
)
from memsim.optimizers.rules import OptimizerRule, StateEntry
from memsim.optimizers.state import OptimizerState, StateRow, derive_state
from memsim.optimizers.step import UnmodelledStepError, group_step_events, step_events, step_peak_bytes, step_source
from memsim.optimizers.step_event import StepEvent, peak_bytes

__all__ = [
    "Assignment",
    "OptimizerName",
    "OptimizerRule",
    "OptimizerState",
    "ResolvedOptimizer",
    "StateEntry",
    "StateRow",
    "StepEvent",
    "UnmodelledStepError",
    "assign",
    "assign_in_loop",
    "derive_state",
    "group_step_events",
    "names",
    "peak_bytes",
    "resolve_groups",
    "resolve_optimizer",
    "rules",
    "state_of",
    "step_events",
    "step_peak_bytes",
    "step_source",
]
