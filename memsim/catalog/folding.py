"""Parameter tables as nested JSON objects, with equal layers folded into one.

A module is an object: its keys are attribute names, `$class` is its class. Children that are numbered and equal are one
key with ranges: `"0-11"`, `"0-2,4-6"`. A leaf is the list of its sizes, in which `"num_labels"` may stand for a number,
or an object with `$shape` and what is special about the tensor:

`$dtype`    a fixed dtype, or a key of `KEPT_IN_FLOAT32`; otherwise the tensor follows the dtype of the weights
`$tied_to`  full name of the first parameter with the same storage (then without `$shape`)
`$frozen`   true where `requires_grad` is false
`$transient` true for a buffer that is not in the `state_dict`

A string `"@1a2b3c4d"` anywhere stands for the object of that name in the file's `shared`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

NUM_LABELS = "num_labels"
"""A size that is the number of labels."""
KEPT_IN_FLOAT32 = {
    "float32 if float16": ("float16",),
    "float32 if half": ("float16", "bfloat16"),
}
"""Values of `$dtype` for what follows the weights, but stays float32 where these are of the dtypes named here."""

Node = Any
"""A JSON value of the form that the module's docstring describes."""

_NUMBERS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One parameter or buffer, its dtype and number of labels still open."""

    shape: tuple[int | str, ...] = ()
    """Sizes; `NUM_LABELS` for the number of labels. Empty for a tied name."""
    dtype: str = ""
    """A fixed dtype, a key of `KEPT_IN_FLOAT32`, or empty where it follows the dtype of the weights."""
    tied_to: str | None = None
    """Full name of the first parameter with the same storage."""
    frozen: bool = False
    """Whether `requires_grad` is false."""
    transient: bool = False
    """Whether it is a buffer that is not in the `state_dict`."""
    module_class: str = ""
    """Class of its module."""


Row = tuple[str, Leaf]
"""Name, relative to the node it was read from, and leaf."""


def fold(rows: Iterable[Row]) -> Node:
    """Return the tree of `rows`, which must come in the order of `named_parameters()`.

    Raises:
        ValueError: the names are not in that order, so that `expand` could not restore it.
    """
    rows = list(rows)
    root: dict[str, Node] = {}
    for name, leaf in rows:
        *path, attribute = name.split(".")
        node = root
        for part in path:
            node = node.setdefault(part, {})
        if leaf.module_class:
            node["$class"] = leaf.module_class
        node[attribute] = _leaf_json(leaf)
    tree = _fold_numbered(root)
    if list(expand(tree, {}, {})) != rows:
        raise ValueError(f"{rows[0][0]!r} and what follows are not in the order of a module's named_parameters()")
    return tree


def expand(node: Node, shared: Mapping[str, Node], memo: dict[int, list[Row]]) -> list[Row]:
    """Return every row below `node`; `memo` keeps what was expanded and may serve for all trees of one file.

    Raises:
        KeyError: a reference that is not in `shared`.
    """
    if isinstance(node, str):
        node = shared[node[1:]]
    known = memo.get(id(node))
    if known is not None:
        return known
    rows: list[Row] = []
    module_class = node.get("$class", "")
    for key, given in _ordered(node):
        child = shared[given[1:]] if isinstance(given, str) else given
        if isinstance(child, list) or "$shape" in child or "$tied_to" in child:
            rows.append((key, _leaf(child, module_class)))
        else:
            rows += [(f"{key}.{name}", leaf) for name, leaf in expand(child, shared, memo)]
    memo[id(node)] = rows
    return rows


def canonical(node: Node) -> str:
    """Return the one text of `node`: keys in their own order, no spaces."""
    return json.dumps(node, separators=(",", ":"), ensure_ascii=False)


def _leaf_json(leaf: Leaf) -> Node:
    special: dict[str, Node] = {} if leaf.tied_to else {"$shape": list(leaf.shape)}
    if leaf.tied_to:
        special["$tied_to"] = leaf.tied_to
    if leaf.dtype:
        special["$dtype"] = leaf.dtype
    if leaf.frozen:
        special["$frozen"] = True
    if leaf.transient:
        special["$transient"] = True
    return list(leaf.shape) if list(special) == ["$shape"] else special


def _leaf(node: Node, module_class: str) -> Leaf:
    if isinstance(node, list):
        return Leaf(shape=tuple(node), module_class=module_class)
    return Leaf(
        shape=tuple(node.get("$shape", ())),
        dtype=node.get("$dtype", ""),
        tied_to=node.get("$tied_to"),
        frozen=node.get("$frozen", False),
        transient=node.get("$transient", False),
        module_class=module_class,
    )


def _fold_numbered(node: Node) -> Node:
    if not isinstance(node, dict) or "$shape" in node or "$tied_to" in node:
        return node
    folded = {key: _fold_numbered(child) for key, child in node.items()}
    members: dict[str, list[int]] = {}
    for key, child in folded.items():
        if key.isdecimal():
            members.setdefault(canonical(child), []).append(int(key))
    result: dict[str, Node] = {}
    for key, child in folded.items():
        numbers = members.get(canonical(child), []) if key.isdecimal() else []
        if not numbers:
            result[key] = child
        elif numbers[0] == int(key):
            result[_ranges(numbers)] = child
    return result


def _ranges(numbers: list[int]) -> str:
    """Return `[0, 1, 2, 5]` as `"0-2,5"`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def _ordered(node: Mapping[str, Node]) -> Iterator[tuple[str, Node]]:
    """Yield the children of a module in their order; all numbered ones where the first of them stands."""
    numbered = [(n, child) for key, child in node.items() if key[0].isdecimal() for n in _numbers(key)]
    numbered.sort(key=lambda item: item[0])
    for key, child in node.items():
        if key[0] == "$":
            continue
        if not key[0].isdecimal():
            yield key, child
            continue
        yield from ((str(number), item) for number, item in numbered)
        numbered = []


def _numbers(key: str) -> Iterator[int]:
    if not _NUMBERS.fullmatch(key):
        raise KeyError(key)
    for run in key.split(","):
        low, _, high = run.partition("-")
        yield from range(int(low), int(high or low) + 1)
