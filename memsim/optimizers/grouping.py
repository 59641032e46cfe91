"""Several optimizers, or one with several parameter groups, over one model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from memsim.config import OptimizerConfig, ParameterGroup
from memsim.model import ParameterSpec, ParameterTable
from memsim.optimizers.registry import ResolvedOptimizer, names, register, resolve_optimizer
from memsim.optimizers.rules import Arguments, Entries, StateEntry
from memsim.optimizers.state import OptimizerState, derive_state
from memsim.optimizers.step import Tape, register_step


@register("none", package="memsim", version="-", source="no optimizer: forward and backward only", arguments={})
def none(parameter: ParameterSpec, args: Arguments) -> Entries:  # noqa: ARG001
    """No state at all."""
    return ()


@register_step("none", source="no optimizer")
def none_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """Nothing is stepped, so nothing is allocated."""


Assignment = list[tuple[ResolvedOptimizer, list[ParameterSpec]]]
"""Every optimizer with the parameters that it is given; last the one of all parameters that no group covers."""


def resolve_groups(config: OptimizerConfig) -> list[tuple[ParameterGroup, ResolvedOptimizer]]:
    """Return each parameter group with its optimizer.

    Raises:
        UnknownNameError: no such optimizer or argument.
        UsageError: an argument of the wrong type, or a form of `step()` that a class does not have.
    """
    groups = []
    for group in config.groups:
        own = group.optimizer is None or group.optimizer == config.name
        args = {**config.args, **group.args} if own else group.args
        impl = config.impl if own else None
        groups.append((group, resolve_optimizer(group.optimizer or config.name, args, impl)))
    return groups


def assign(config: OptimizerConfig, table: ParameterTable) -> Assignment:
    """Return which optimizer has which of a model's parameters; the first group that covers a name has it.

    Raises:
        UnknownNameError: no such optimizer or argument.
        UsageError: an argument of the wrong type, or a pattern that covers no parameter.
    """
    left = {p.name: p for p in table.unique}
    parts: Assignment = []
    for group, optimizer in resolve_groups(config):
        covered = {name for pattern in group.patterns for name in table.covered(pattern, "parameter group")}
        mine = [left.pop(name) for name in list(left) if name in covered]
        parts.append((optimizer, [p for p in mine if p.requires_grad or group.holds_frozen]))
    base = resolve_optimizer(config.name, config.args, config.impl)
    return [*parts, (base, [p for p in left.values() if p.requires_grad])]


def assign_in_loop(config: OptimizerConfig, table: ParameterTable, *, in_trainer: bool) -> Assignment:
    """Return the same as a loop hands the parameters over: the Trainer makes two groups of what no group covers.

    Weight decay is for the parameters that are neither biases nor of a normalization: the others follow as a group
    without it (`Trainer.create_optimizer` and `get_decay_parameter_names`, transformers/trainer.py:1273, 1408 @5.24.0).

    Raises:
        UnknownNameError: no such optimizer or argument.
        UsageError: an argument of the wrong type, or a pattern that covers no parameter.
    """
    parts = assign(config, table)
    base, parameters = parts[-1]
    own = names().get(config.name)
    if not in_trainer or config.groups or own is None or own.framework != "transformers":
        return parts
    decayed = [p for p in parameters if _is_decayed(p)]
    others = [p for p in parameters if not _is_decayed(p)]
    if not decayed or not others:
        return parts
    args = {**base.args, "weight_decay": 0.0} if "weight_decay" in base.args else base.args
    return [(base, decayed), (replace(base, args=args), others)]


_NOT_DECAYED = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


def _is_decayed(parameter: ParameterSpec) -> bool:
    return parameter.module_class != "LayerNorm" and not _NOT_DECAYED.search(parameter.name.lower())


def state_of(parts: Assignment) -> OptimizerState:
    """Return the state of all parts together.

    Groups of one class are parameter groups of one optimizer and share what it shares (quantization maps); another
    class is an optimizer of its own. A parameter without a gradient has state only where the constructor makes it.

    Raises:
        UsageError: an optimizer does not take a parameter that it was given.
    """
    states = [
        derive_state(optimizer, [p for p in parameters if p.requires_grad or optimizer.rule.created == "constructor"])
        for optimizer, parameters in parts
    ]
    if len(states) == 1:
        return states[0]
    return OptimizerState(parts[-1][0], tuple(pair for state in states for pair in _with_own_storages(state)))


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
