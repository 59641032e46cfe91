"""Which layer an event belongs to, and how a layer's number is written so that it holds at any depth."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from memsim.step.trace import Holder

MIN_LAYERS = 3
"""A first, a middle and a last one."""

_NUMBER = re.compile(r"(?:^|(?<=\.))(\d+)(?=\.|$)")
_FIRST_NUMBER = re.compile(r"(\d+)((?:[.:].*)?)$")


class Place(NamedTuple):
    """The number of a layer, from what it is known by."""

    origin: Literal["here", "start", "end"]
    """`here`: from the layer that the event is in; `start`: from the first; `end`: from one after the last."""
    offset: int
    """What is added to it."""

    def number(self, here: int, num_layers: int) -> int:
        """Return the number, seen from layer `here` of a stack of `num_layers`."""
        return self.offset + {"here": here, "start": 0, "end": num_layers}[self.origin]


class Text(NamedTuple):
    """A name that may hold the number of a layer."""

    before: str
    """All of it, or what stands before the number."""
    stack: int
    """Index of the stack that the number counts in; -1: there is no number."""
    place: Place | None
    """The number."""
    after: str
    """What follows the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Modules of one kind, one after the other: `model.layers`."""

    path: str
    """Path of the list that holds them."""
    num_layers: int
    """How many there are."""

    @property
    def prefix(self) -> str:
        """What stands before a layer's number."""
        return f"{self.path}." if self.path else ""

    def number_in(self, name: str) -> tuple[int, str] | None:
        """Return the layer that a module or parameter name is in, and the rest of the name; `None`: in none."""
        if not name.startswith(self.prefix):
            return None
        found = _FIRST_NUMBER.match(name, len(self.prefix))
        return (int(found.group(1)), found.group(2)) if found is not None else None


def stacks_in(holders: Iterable[Holder]) -> tuple[Stack, ...]:
    """Return the lists of at least `MIN_LAYERS` modules in the holders' paths, outer ones before those inside them."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for holder in holders:
        for name in (holder.module, holder.name):
            for match in _NUMBER.finditer(name):
                numbers[name[: max(match.start() - 1, 0)]].add(int(match.group(1)))
    found = [
        Stack(path=path, num_layers=len(layers))
        for path, layers in numbers.items()
        if len(layers) >= MIN_LAYERS and layers == set(range(len(layers)))
    ]
    return tuple(sorted(found, key=lambda stack: stack.path.count(".")))


def text_of(name: str, stacks: Sequence[Stack], here: tuple[int, int] | None, *, fixed: bool) -> Text:
    """Return a name in a form that holds at any depth, as seen from layer `here` (stack, number).

    Args:
        name: of a module, a parameter or a slot.
        stacks: what can be folded.
        here: where it is used; `None`: outside of any stack.
        fixed: whether it is used at one end of a stack, so that numbers count from there.
    """
    start = name.find(":") + 1  # of a slot: `gradient:NAME`, `activation:MODULE:0`
    for index, stack in enumerate(stacks):
        found = stack.number_in(name[start:])
        if found is not None:
            place = place_of(found[0], index, stacks, here, fixed=fixed)
            return Text(f"{name[:start]}{stack.prefix}", index, place, found[1])
    return Text(name, -1, None, "")


def place_of(number: int, stack: int, stacks: Sequence[Stack], here: tuple[int, int] | None, *, fixed: bool) -> Place:
    """Return the place of layer `number` of a stack: from `here` within the same stack, else from the nearer end."""
    if here is not None and here[0] == stack and not fixed:
        return Place("here", number - here[1])
    length = stacks[stack].num_layers
    return Place("start", number) if number < length // 2 else Place("end", number - length)


def name_of(text: Text, here: int, depths: Sequence[int]) -> str:
    """Return the name as it is in layer `here` of stacks of these depths."""
    if text.place is None:
        return text.before
    return f"{text.before}{text.place.number(here, depths[text.stack])}{text.after}"


def repetition(kinds: Sequence[int], known_period: int | None = None) -> tuple[int, int, int] | None:
    """Return where a sequence repeats: first index, period and end of its longest stretch of two periods or more.

    Of stretches of one length that which ends last, and of its periods the shortest; `None` if nothing repeats.
    """
    periods = range(1, len(kinds) // 2 + 1) if known_period is None else (known_period,)
    best: tuple[int, int, int] | None = None
    for period in periods:
        start = 0
        for index in range(len(kinds) - period + 1):
            if index < len(kinds) - period and kinds[index] == kinds[index + period]:
                continue
            end = index + period
            if end - start >= 2 * period and (best is None or (end - start, end) > (best[2] - best[0], best[2])):
                best = (start, period, end)
            start = index + 1
    return best
