"""Optimizer rules: from parameter shapes and dtypes to the exact state of every optimizer memsim knows."""

from memsim.optimizers import names as _names  # noqa: F401  (names.py imports and registers every family)
from memsim.optimizers.grouping import derive_grouped_state, resolve_groups
from memsim.optimizers.registry import (
    OptimizerName,
    ResolvedOptimizer,
    names,
    resolve_optimizer,
    rules,
)
from memsim.optimizers.rules import OptimizerRule, StateEntry
from memsim.optimizers.state import OptimizerState, StateRow, derive_state

__all__ = [
    "OptimizerName",
    "OptimizerRule",
    "OptimizerState",
    "ResolvedOptimizer",
    "StateEntry",
    "StateRow",
    "derive_grouped_state",
    "derive_state",
    "names",
    "resolve_groups",
    "resolve_optimizer",
    "rules",
]
