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
    """Return where a configuration, all defaults written out, may say that there are `num_layers` layers."""
    return [
        path for path, value in _entries(effective) if value == num_layers and type(value) is int and _says_depth(path)
    ]


def cut_config(
    config: Mapping[str, Any], effective: Mapping[str, Any], path: Path, cut: Cut, *, with_defaults: bool
) -> dict[str, Any]:
    """Return `config` with fewer layers: the number at `path`, and every list beside it that goes by layers.

    Args:
        config: the user's configuration.
        effective: the same with all defaults written out.
        path: one of `depth_paths`.
        cut: what is taken out.
        with_defaults: whether lists are written that only the defaults have.
    """
    result = copy.deepcopy(dict(config))
    _set(result, effective, path, cut.num_left)
    holder = _holder(path)
    given = _at(result, holder)
    for key, value in _at(effective, holder).items():
        if isinstance(value, (list, tuple)) and (with_defaults or key in given):
            shorter = _cut_list(key, list(value), cut)
            if shorter is not None:
                _set(result, effective, (*holder, key), shorter)
    return result


def lists_by_layer(effective: Mapping[str, Any], path: Path, num_layers: int) -> dict[str, list[Any]]:
    """Return the lists beside an entry that have one item for each layer."""
    return {
        key: list(value)
        for key, value in _at(effective, _holder(path)).items()
        if isinstance(value, (list, tuple)) and len(value) == num_layers and _goes_by_layers(key)
    }


def _holder(path: Path) -> Path:
    """Return the path of the object that an entry, or the list of numbers that it stands in, belongs to."""
    last_name = max(place for place, key in enumerate(path) if isinstance(key, str))
    return path[:last_name]


def _at(config: Mapping[str, Any], path: Path) -> Any:
    for key in path:
        config = config[key]  # type: ignore[index]
    return config


def _cut_list(key: str, value: list[Any], cut: Cut) -> list[Any] | None:
    """Return a list without what belongs to the layers taken out; `None` where it does not go by layers."""
    if len(value) == cut.num_layers and _goes_by_layers(key):
        return value[: cut.first] + value[cut.first + cut.num_removed :]
    if _INDICES.search(key) and _are_indices(value, cut.num_layers):
        behind = cut.first + cut.num_removed
        kept = [index for index in value if index < cut.first or index >= behind]
        return [index if index < cut.first else index - cut.num_removed for index in kept]
    return None


def _goes_by_layers(key: str) -> bool:
    return bool(_PER_LAYER.search(key)) and not _NOT_PER_LAYER.search(key)


def _are_indices(value: list[Any], num_layers: int) -> bool:
    if not value or any(type(item) is not int for item in value):
        return False
    return value == sorted(set(value)) and value[0] >= 0 and value[-1] < num_layers


def _says_depth(path: Path) -> bool:
    names = [key for key in path if isinstance(key, str)]
    return bool(_DEPTH.search(names[-1])) and not _NO_DEPTH.search(names[-1])


def _entries(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every number, those in lists of numbers too."""
    if isinstance(value, Mapping) and len(path) < MAX_NESTING:
        for key, item in value.items():
            yield from _entries(item, (*path, key))
    elif isinstance(value, (list, tuple)) and all(type(item) is int for item in value):
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
