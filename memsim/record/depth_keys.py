"""The entries of a `config.json` that say how many layers there are, and which layer is of which kind."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]
"""Keys (and places in lists) that lead to an entry."""

_DEPTH = re.compile(r"layer|depth|block|^n_enc|^n_dec")
_NO_DEPTH = re.compile(
    r"interval|every|freq|step|adapter|feature|size|conv|mtp|nextn|shared|global|dense|vocab|hidden_dim"
)
_PER_LAYER = re.compile(r"layer|block|pattern|attention_types|window|rope|indexer|mlp|moe")
_NOT_PER_LAYER = re.compile(r"factor|scaling|section|out_|stage")
_INDICES = re.compile(r"layers$|ind(ex|ic)es$|_idxs?$|layer_ids$")
_COLLECTED = re.compile(r"intermediate|deepstack|out_|feature")
"""Lists of layers whose outputs are put together: none of them can be taken out."""
MAX_NESTING = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Layers taken out of a stack of `num_layers`: `num_removed` from `first` on."""

    num_layers: int
    first: int
    num_removed: int

    @property
    def num_left(self) -> int:
        """Layers that stay."""
        return self.num_layers - self.num_removed


def depth_paths(effective: Mapping[str, Any], num_layers: int) -> list[Path]:
    """Return where a configuration, all defaults written out, may say that there are `num_layers` layers.

    Numbers come first, then lists with an item for each layer.
    """
    numbers, lists = [], []
    for path, value in _entries(effective):
        if type(value) is int and value == num_layers and _says_depth(path):
            numbers.append(path)
        elif isinstance(value, (list, tuple)) and _items_by_layer(str(path[-1]), value, num_layers) is not None:
            lists.append(path)
    return numbers + lists


def cut_config(
    config: Mapping[str, Any], effective: Mapping[str, Any], path: Path, cut: Cut, *, with_defaults: bool
) -> dict[str, Any] | None:
    """Return `config` with fewer layers: the number at `path`, and everything beside it that goes by layers.

    Args:
        config: the user's configuration.
        effective: the same with all defaults written out.
        path: one of `depth_paths`.
        cut: what is taken out.
        with_defaults: whether lists are written that only the defaults have.

    Returns:
        `None` where a layer is taken out whose output the model collects.
    """
    result = copy.deepcopy(dict(config))
    if type(_at(effective, path)) is int:
        _set(result, effective, path, cut.num_left)
    holder = _holder(path)
    given = _at(result, holder) if with_defaults is False else _at(effective, holder)
    for key, value in _at(effective, holder).items():
        if key not in given:
            continue
        shorter = _cut_entry(key, value, cut)
        if shorter is not None:
            if _COLLECTED.search(key) and len(shorter) < len(value):
                return None
            _set(result, effective, (*holder, key), shorter)
    return result


def facts_by_layer(effective: Mapping[str, Any], path: Path, num_layers: int) -> list[tuple[str, ...]]:
    """Return what the entries beside `path` say of each layer."""
    columns: list[list[str]] = []
    for key, value in _at(effective, _holder(path)).items():
        items = _items_by_layer(key, value, num_layers)
        if items is not None:
            columns.append([repr(item) for item in items])
        elif _names_layers(key, value, num_layers):
            columns.append([repr(index in value) for index in range(num_layers)])
    return list(zip(*columns, strict=True)) if columns else [()] * num_layers


def _holder(path: Path) -> Path:
    """Return the path of the object that an entry, or the list of numbers that it stands in, belongs to."""
    last_name = max(place for place, key in enumerate(path) if isinstance(key, str))
    return path[:last_name]


def _at(config: Any, path: Path) -> Any:
    for key in path:
        found = config.get(key) if isinstance(config, Mapping) else config[int(key)]
        config = {} if found is None else found
    return config


def _cut_entry(key: str, value: Any, cut: Cut) -> Any:
    """Return an entry without what belongs to the layers taken out; `None` where it does not go by layers."""
    items = _items_by_layer(key, value, cut.num_layers)
    behind = cut.first + cut.num_removed
    if items is not None:
        shorter = items[: cut.first] + items[behind:]
        return [[shorter, 1]] if key == "attention_types" else shorter
    if _names_layers(key, value, cut.num_layers):
        kept = [index for index in value if index < cut.first or index >= behind]
        return [index if index < cut.first else index - cut.num_removed for index in kept]
    if isinstance(value, Mapping) and value and all(str(name).isdigit() for name in value):
        return {
            _renumbered(name, cut): item for name, item in value.items() if int(name) < cut.first or int(name) >= behind
        }
    return None


def _renumbered(name: Any, cut: Cut) -> Any:
    index = int(name) if int(name) < cut.first else int(name) - cut.num_removed
    return f"{index:0{len(name)}d}" if isinstance(name, str) else index


def _items_by_layer(key: str, value: Any, num_layers: int) -> list[Any] | None:
    """Return the items of a list that has one for each layer; `None` of any other value."""
    if not isinstance(value, (list, tuple)) or not _PER_LAYER.search(key) or _NOT_PER_LAYER.search(key):
        return None
    if key == "attention_types":  # of GPT-Neo: [[["global", "local"], 12]]
        value = [kind for kinds, times in value for _ in range(times) for kind in kinds]
    return list(value) if len(value) == num_layers else None


def _names_layers(key: str, value: Any, num_layers: int) -> bool:
    """Return whether a list holds indices of layers."""
    if not isinstance(value, (list, tuple)) or not value or not _INDICES.search(key) or key.startswith("out_"):
        return False
    if any(type(item) is not int for item in value):
        return False
    return list(value) == sorted(set(value)) and value[0] >= 0 and value[-1] < num_layers


def _says_depth(path: Path) -> bool:
    names = [key for key in path if isinstance(key, str)]
    return bool(_DEPTH.search(names[-1])) and not _NO_DEPTH.search(names[-1])


def _entries(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every number and list, and the numbers in lists."""
    if isinstance(value, Mapping) and len(path) < MAX_NESTING:
        for key, item in value.items():
            yield from _entries(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        yield path, value
        for index, item in enumerate(value):
            yield (*path, index), item
    elif type(value) is int:
        yield path, value


def _set(result: dict[str, Any], effective: Mapping[str, Any], path: Path, value: Any) -> None:
    """Write an entry; what holds it is taken from the defaults where the user's configuration has none."""
    here: Any = result
    whole: Any = effective
    for key in path[:-1]:
        whole = whole[key]
        absent = isinstance(here, dict) and here.get(key) is None
        if absent:
            here[key] = copy.deepcopy(whole)
        elif isinstance(here[key], tuple):
            here[key] = list(here[key])
        here = here[key]
    here[path[-1]] = value
