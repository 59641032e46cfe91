"""Which layers of a module are alike: stacks of layers, what each layer is made of, and their pattern."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

MIN_LAYERS = 4
"""Stacks of fewer layers are not worth folding."""

Kind = Hashable
"""Whatever tells two layers apart that are not alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Modules whose names are `prefix.0`, `prefix.1`, ..."""

    prefix: str
    """Path of what holds them."""
    kinds: tuple[Kind, ...]
    """The kind of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """How the kinds of a stack repeat."""

    head: int
    """Layers before the repetition."""
    period: int
    """Layers of one repetition."""
    num_repeated: int
    """Layers that follow the pattern, whole periods or not."""


def stacks_of(model: Any) -> list[Stack]:
    """Return every stack of at least `MIN_LAYERS` layers, outer ones first."""
    return [Stack(prefix=prefix, kinds=tuple(_kinds(layers))) for prefix, layers in layers_of(model).items()]


def layers_of(model: Any) -> dict[str, list[Any]]:
    """Return the layers of every stack of at least `MIN_LAYERS` by its prefix, outer ones first."""
    members: dict[str, dict[int, Any]] = defaultdict(dict)
    for name, module in model.named_modules(remove_duplicate=False):
        prefix, _, last = name.rpartition(".")
        if last.isdigit():
            members[prefix][int(last)] = module
    found = {}
    for prefix in sorted(members, key=lambda name: name.count(".")):
        layers = members[prefix]
        if len(layers) >= MIN_LAYERS and sorted(layers) == list(range(len(layers))):
            ordered = [layers[index] for index in range(len(layers))]
            if len({id(layer) for layer in ordered}) == len(ordered):
                found[prefix] = ordered
    return found


def pattern_of(kinds: Sequence[Kind]) -> Pattern | None:
    """Return the pattern that covers the most layers twice at least, the shortest period first; `None` without one."""
    best: Pattern | None = None
    for period in range(1, len(kinds) // 2 + 1):
        for head, length in _runs(kinds, period):
            if length >= 2 * period and (best is None or length > best.num_repeated):
                best = Pattern(head=head, period=period, num_repeated=length)
    return best


def _runs(kinds: Sequence[Kind], period: int) -> Iterator[tuple[int, int]]:
    """Yield begin and length of every longest run in which each kind equals that of `period` layers before."""
    begin = 0
    for index in range(period, len(kinds) + 1):
        if index == len(kinds) or kinds[index] != kinds[index - period]:
            yield begin, index - begin
            begin = index - period + 1


def _kinds(layers: Sequence[Any]) -> Iterator[Kind]:
    rows = [_facts(layer) for layer in layers]
    values: dict[str, list[tuple[int, Hashable]]] = defaultdict(list)
    for index, row in enumerate(rows):
        for key, value in row.items():
            values[key].append((index, value))
    left_out = {key for key, found in values.items() if _counts_layers(found) or _lists_layers(found, len(rows))}
    for row in rows:
        yield tuple((key, value) for key, value in row.items() if key not in left_out)


def _counts_layers(found: Sequence[tuple[int, Hashable]]) -> bool:
    """Return whether a number is the layer's own index, counted from anywhere."""
    return all(type(value) is int for _, value in found) and len({value - index for index, value in found}) == 1  # type: ignore[operator]


def _lists_layers(found: Sequence[tuple[int, Hashable]], num_layers: int) -> bool:
    """Return whether an attribute is one list over all layers, the same in each: the layer's own item decides."""
    first = found[0][1]
    if not isinstance(first, tuple) or len(first) != num_layers or not all(isinstance(item, str) for item in first):
        return False
    return all(value == first for _, value in found)


def _facts(layer: Any) -> dict[str, Hashable]:
    """Return what decides what a layer does: classes, tensors and plain attributes of all its modules, by name."""
    facts: dict[str, Hashable] = {}
    for path, module in layer.named_modules():
        facts[path] = type(module).__qualname__
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                facts[f"{path}.{name}"] = (tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad)
        for name, value in vars(module).items():
            if not name.startswith("_"):
                facts[f"{path}:{name}"] = _plain(value)
    return facts


def _plain(value: Any) -> Hashable:
    """Return what of an attribute can decide bytes; of a float only whether there is anything (dropout, drop path)."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, float):
        return value != 0
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    if isinstance(value, Mapping):
        return tuple((str(key), _plain(item)) for key, item in value.items())
    return type(value).__qualname__
