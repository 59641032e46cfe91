"""`OptimizerState`: a rule applied to a model's trainable parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, cast

from memsim.model import ParameterSpec
from memsim.optimizers.registry import ResolvedOptimizer
from memsim.optimizers.rules import Entries, GroupRule, ParameterRule, StateEntry
from memsim.tensors import Shape, TensorSpec


class StateRow(NamedTuple):
    """One state entry of one parameter, as reports and tests see it."""

    parameter: str
    name: str
    shape: Shape
    dtype: str
    device: str
    nbytes: int


@dataclass(frozen=True)
class OptimizerState:
    """Every entry of `optimizer.state` after the first step, and their bytes."""

    optimizer: ResolvedOptimizer
    """What made it."""
    by_parameter: tuple[tuple[ParameterSpec, Entries], ...]
    """Entries of each parameter; parameters of one kind share one tuple of entries."""

    def __iter__(self) -> Iterator[StateRow]:
        """Yield every entry; a storage that several entries share is listed with each of them."""
        for parameter, entries in self.by_parameter:
            for entry in entries:
                spec = entry.tensor
                yield StateRow(parameter.name, entry.name, spec.shape, spec.dtype, spec.device, entry.nbytes)

    @property
    def rows(self) -> list[StateRow]:
        """All rows as a list."""
        return list(self)

    @property
    def total_bytes(self) -> int:
        """Bytes of every storage once, wherever it lives."""
        return self.device_bytes + self.host_bytes

    @property
    def device_bytes(self) -> int:
        """Bytes on the parameters' device, every storage once."""
        return self._totals.device_bytes

    @property
    def host_bytes(self) -> int:
        """Bytes in host or unified (managed) memory, every storage once."""
        return self._totals.host_bytes

    @property
    def shared_bytes(self) -> int:
        """Bytes of the storages that several entries may share, each once."""
        return sum(entry.nbytes for entry in self._shared.values())

    @property
    def num_elements(self) -> int:
        """Elements of every entry, shared or not; a Python number counts as one."""
        return self._totals.num_elements

    @cached_property
    def _shared(self) -> dict[str, StateEntry]:
        kinds = {id(entries): entries for _, entries in self.by_parameter}
        return {e.shared: e for entries in kinds.values() for e in entries if e.shared is not None}

    @cached_property
    def _totals(self) -> _Totals:
        device = host = elements = 0
        of_kind: dict[int, _Totals] = {}
        for _, entries in self.by_parameter:
            totals = of_kind.get(id(entries)) or of_kind.setdefault(id(entries), _own_totals(entries))
            device += totals.device_bytes
            host += totals.host_bytes
            elements += totals.num_elements
        for entry in self._shared.values():
            if entry.tensor.device == "device":
                device += entry.nbytes
            else:
                host += entry.nbytes
        return _Totals(device, host, elements)


class _Totals(NamedTuple):
    device_bytes: int
    host_bytes: int
    num_elements: int


def _own_totals(entries: Entries) -> _Totals:
    """Return the totals of one parameter's entries, without the storages that it shares with others."""
    own = [e for e in entries if e.shared is None]
    return _Totals(
        sum(e.nbytes for e in own if e.tensor.device == "device"),
        sum(e.nbytes for e in own if e.tensor.device != "device"),
        sum(e.tensor.numel for e in entries),
    )


def derive_state(optimizer: ResolvedOptimizer, parameters: Sequence[ParameterSpec]) -> OptimizerState:
    """Apply the optimizer's rule to the parameters that it is given (those that get a gradient)."""
    rule = optimizer.rule
    if rule.whole:
        state = cast("GroupRule", rule.state)
        return OptimizerState(optimizer, tuple(state(parameters, optimizer.args)))
    each = cast("ParameterRule", rule.state)
    if rule.by_name:
        return OptimizerState(optimizer, tuple((p, each(p, optimizer.args)) for p in parameters))
    kinds: dict[tuple[TensorSpec, str, bool], Entries] = {}
    result = []
    for parameter in parameters:
        kind = (parameter.tensor, parameter.module_class, parameter.is_embedding)
        entries = kinds.get(kind)
        if entries is None:
            entries = kinds[kind] = each(parameter, optimizer.args)
        result.append((parameter, entries))
    return OptimizerState(optimizer, tuple(result))
