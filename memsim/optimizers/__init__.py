"""Optimizer rules: from parameter shapes and dtypes to the exact state of every optimizer memsim knows."""

from memsim.optimizers import compiled_step as _compiled_step  # noqa: F401  (registers its steps)
from memsim.optimizers import few_states_step as _few_states_step  # noqa: F401  (registers its steps)
from memsim.optimizers import fused_backward_step as _fused_backward_step  # noqa: F401  (registers its steps)
from memsim.optimizers import lion_step as _lion_step  # noqa: F401  (registers its steps)
from memsim.optimizers import low_rank_step as _low_rank_step  # noqa: F401  (registers its steps)
from memsim.optimizers import master_weights_step as _master_weights_step  # noqa: F401  (registers its steps)
from memsim.optimizers import muon_step as _muon_step  # noqa: F401  (registers its steps)
from memsim.optimizers import names as _names  # noqa: F401  (names.py imports and registers every family)
from memsim.optimizers import optimi_step as _optimi_step  # noqa: F401  (registers its steps)
from memsim.optimizers import parameter_free_step as _parameter_free_step  # noqa: F401  (registers its steps)
from memsim.optimizers import pytorch_optimizer_step as _pytorch_optimizer_step  # noqa: F401  (registers its steps)
from memsim.optimizers import schedulefree_step as _schedulefree_step  # noqa: F401  (registers its steps)
from memsim.optimizers import simple_packages_step as _simple_packages_step  # noqa: F401  (registers its steps)
from memsim.optimizers import torch_optimizer_step as _torch_optimizer_step  # noqa: F401  (registers its steps)
from memsim.optimizers.grouping import Assignment, assign, resolve_groups, state_of
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
