"""Several optimizers, or one with several parameter groups, over one model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memsim.config import OptimizerConfig
from memsim.model import ParameterSpec, ParameterTable
from memsim.optimizers.registry import ResolvedOptimizer, register, resolve_optimizer
from memsim.optimizers.rules import Arguments, Entries, StateEntry
from memsim.optimizers.state import OptimizerState, derive_state


@register("none", package="memsim", version="-", source="no optimizer: forward and backward only", arguments={})
def none(parameter: ParameterSpec, args: Arguments) -> Entries:  # noqa: ARG001
    """No state at all."""
    return ()


def resolve_groups(config: OptimizerConfig) -> list[tuple[tuple[str, ...], ResolvedOptimizer]]:
    """Return the optimizer of each parameter group with its patterns; last the optimizer of all other parameters.

    Raises:
        UnknownNameError: no such optimizer or argument.
        UsageError: an argument of the wrong type, or a form of `step()` that a class does not have.
    """
    base = resolve_optimizer(config.name, config.args, config.impl)
    groups = []
    for group in config.groups:
        own = group.optimizer is None or group.optimizer == config.name
        args = {**config.args, **group.args} if own else group.args
        groups.append(
            (group.patterns, resolve_optimizer(group.optimizer or config.name, args, config.impl if own else None))
        )
    return [*groups, ((), base)]


def derive_grouped_state(config: OptimizerConfig, table: ParameterTable) -> OptimizerState:
    """Return the state of a model's trainable parameters, each in the first group that covers its name.

    Groups of one class are parameter groups of one optimizer and share what it shares (quantization maps); another
    class is an optimizer of its own.

    Raises:
        UsageError: a pattern covers no parameter, or an optimizer does not take a parameter that it was given.
    """
    *groups, (_, base) = resolve_groups(config)
    left = {p.name: p for p in table.trainable}
    parts = []
    for patterns, optimizer in groups:
        covered = {name for pattern in patterns for name in table.covered(pattern, "parameter group")}
        mine = [left.pop(name) for name in list(left) if name in covered]
        parts.append(derive_state(optimizer, mine))
    parts.append(derive_state(base, list(left.values())))
    if len(parts) == 1:
        return parts[0]
    return OptimizerState(base, tuple(pair for part in parts for pair in _with_own_storages(part)))


def _with_own_storages(state: OptimizerState) -> Iterator[tuple[ParameterSpec, Entries]]:
    """Yield a part's entries with the class's path in the keys of shared storages, so that classes share nothing."""
    prefix = state.optimizer.rule.class_path
    kinds: dict[int, Entries] = {}
    for parameter, entries in state.by_parameter:
        renamed = kinds.get(id(entries))
        if renamed is None:
            renamed = kinds[id(entries)] = tuple(_renamed(entry, prefix) for entry in entries)
        yield parameter, renamed


def _renamed(entry: StateEntry, prefix: str) -> StateEntry:
    return entry if entry.shared is None else replace(entry, shared=f"{prefix}:{entry.shared}")
