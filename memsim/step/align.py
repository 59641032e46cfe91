"""Recordings at several points, laid side by side: which have the same events, and how their numbers grow.

Three things that a kernel takes only at some sizes are set apart from the events around them, so that all recordings
can be compared: the scratch memory of a reduction (two blocks, the second made and let go within the life of the first
and nothing between), everything that the backward of an embedding makes when it sorts its ids, and the partial results
of flash attention that reads the keys in splits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from memsim.ledger import Phase
from memsim.step.fit import Point
from memsim.step.section import Section, SectionEvent, SectionName
from memsim.step.trace import Holder
from memsim.tensors import Shape

_SORT = (
    *("a0", "a1", "a2", "a3", "f3", "f2", "gradient", "a5", "a6", "a7", "a8", "f8", "f7", "a9", "a10", "a11", "f11"),
    *("a12", "a13", "a14", "f14", "f13", "f12", "f10", "f9", "f6", "f5", "f1", "f0"),
)
"""What the backward of an embedding makes (`a`) and lets go (`f`) when it sorts (ATen/native/cuda/Embedding.cu and
EmbeddingBackwardKernel.cu @2.13): ids sorted (0) and their places (1), a range (2) and CUB's storage (3); the gradient;
where each id begins (5, 6) with a range and storage (7, 8), its partial sums (9, 10, 12, 13; storage 11), rows (14)."""


_LAST = _SORT.index("f14")
_SORTS = (_SORT, (*_SORT[:_LAST], "a15", "f15", *_SORT[_LAST:]))
"""With few rows of 16 bits the sums of all rows in 32 bits come last (15)."""
RNG_BYTES = (16, 8)
"""The random state that flash attention makes last: two 64-bit integers and one that is not used (`mha_fwd`,
aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp @2.13)."""


Part = Literal["", "sorts", "splits"]


class Pair(NamedTuple):
    """Two blocks that are gone before the next event."""

    outer: SectionEvent
    inner: SectionEvent


class AlignedEvent(NamedTuple):
    """One event of every point; lists have an entry for each point, in their order."""

    action: Literal["alloc", "free"]
    key: int
    """As in `SectionEvent`, counted without the blocks of pairs."""
    nbytes: tuple[int | None, ...]
    """`None` where the event did not happen: an embedding had few ids, or attention no splits."""
    phase: Phase
    holder: Holder | None
    """What was known at any point; its shape is in `shapes`."""
    shapes: tuple[Shape | None, ...]
    slot: str
    pairs: tuple[tuple[Pair, ...], ...]
    """Pairs that came right after this event."""
    part: Part
    """What it is a part of; empty for an event that is always there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedSection:
    """A section at every point."""

    name: SectionName
    """Which part."""
    events: tuple[AlignedEvent, ...]
    """Its events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """Points whose recordings have the same events in the same order, but for what was set apart."""

    points: tuple[Point, ...]
    """Where they were recorded."""
    sections: tuple[AlignedSection, ...]
    """Every section."""


class _Core(NamedTuple):
    """An event that is there at every point, and what is there only at some."""

    event: SectionEvent
    pairs: tuple[Pair, ...] = ()
    before: tuple[SectionEvent, ...] = ()
    after: tuple[SectionEvent, ...] = ()
    part: Part = ""
    """What `before` and `after` are parts of."""


def align(recordings: Mapping[Point, Sequence[Section]]) -> tuple[Alignment, ...]:
    """Return the recordings by their events, groups in the order of their first point."""
    cores = {point: [_stripped(section) for section in sections] for point, sections in recordings.items()}
    groups: dict[tuple[object, ...], list[Point]] = {}
    for point, sections in cores.items():
        groups.setdefault(_signature(sections), []).append(point)
    return tuple(_aligned(points, recordings, cores) for points in groups.values())


def _stripped(section: Section) -> list[_Core]:
    """Return the events that are always there, with the others beside them; keys are counted anew."""
    events = section.events
    keys: dict[int, int] = {}
    result: list[_Core] = []
    index = 0
    while index < len(events):
        pair = None
        length = next((len(events_of) for events_of in _SORTS if _is_at(events_of, events, index)), 0)
        if length:
            four = index + _SORT.index("gradient")
            before, event, after = events[index:four], events[four], events[four + 1 : index + length]
            keys[event.key] = len(keys)
            result.append(_Core(event._replace(key=keys[event.key]), (), before, after, "sorts"))
            index += length
            continue
        if result and _splits_at(events, index):
            first, second = (events[i]._replace(key=len(keys) + i - index - 2) for i in (index + 2, index + 3))
            keys.update({events[index + 2].key: first.key, events[index + 3].key: second.key})
            result.append(_Core(first, before=events[index : index + 2], part="splits"))
            result.append(_Core(second, after=events[index + 4 : index + 6], part="splits"))
            index += 6
            continue
        if result:
            pair = _pair_at(events, index)
        if pair is not None:
            result[-1] = result[-1]._replace(pairs=(*result[-1].pairs, pair))
            index += 4
            continue
        event = events[index]
        if event.action == "alloc":
            keys[event.key] = len(keys)
        result.append(_Core(event._replace(key=keys.get(event.key, -1))))
        index += 1
    return list(_in_order_of_birth(result))


def _in_order_of_birth(cores: Sequence[_Core]) -> Iterator[_Core]:
    """Yield the events with those let go together as `in_order_of_birth` has them, as far as nothing came between."""
    freed: list[_Core] = []
    for core in cores:
        together = core.event.action == "free" and not core.before
        if freed and (not together or freed[-1].pairs or freed[-1].event.phase is not core.event.phase):
            yield from _sorted(freed)
            freed = []
        if together:
            freed.append(core)
        else:
            yield core
    yield from _sorted(freed)


def _sorted(freed: Sequence[_Core]) -> Iterator[_Core]:
    """Yield frees in the order of birth; pairs that follow the last of them still do."""
    ordered = sorted(freed, key=lambda core: (core.event.key, core.event.slot))
    pairs = freed[-1].pairs if freed else ()
    for place, core in enumerate(ordered):
        yield core._replace(pairs=pairs if place == len(ordered) - 1 else ())


def _pair_at(events: Sequence[SectionEvent], index: int) -> Pair | None:
    four = events[index : index + 4]
    if [event.action for event in four] != ["alloc", "alloc", "free", "free"]:
        return None
    outer, inner = four[0], four[1]
    return Pair(outer, inner) if (four[2].key, four[3].key) == (inner.key, outer.key) else None


def _splits_at(events: Sequence[SectionEvent], index: int) -> bool:
    """Whether flash attention makes the sums and results of its splits here."""
    found = events[index : index + 6]
    if [event.action for event in found] != ["alloc", "alloc", "alloc", "alloc", "free", "free"]:
        return False
    sums, results = found[:2]
    before = events[index - 1]
    return (
        tuple(event.nbytes for event in found[2:4]) == RNG_BYTES
        and [event.key for event in found[4:]] == [sums.key, results.key]
        and before.action == "alloc"
        and not sums.nbytes % before.nbytes
        and not results.nbytes % sums.nbytes
    )


def _is_at(pattern: Sequence[str], events: Sequence[SectionEvent], index: int) -> bool:
    """Whether the events of a pattern, a form of `_SORT`, begin here."""
    found = events[index : index + len(pattern)]
    if len(found) < len(pattern) or events[index].action != "alloc":
        return False
    made: dict[int, str] = {}
    for event, expected in zip(found, pattern, strict=True):
        if event.action == "alloc":
            if expected[0] == "f":
                return False
            made[event.key] = expected[1:]
        elif expected[0] != "f" or made.get(event.key) != expected[1:]:
            return False
    return True


def _signature(sections: Sequence[Sequence[_Core]]) -> tuple[object, ...]:
    return tuple(
        (e.action, e.key, e.phase, e.slot, e.holder and (e.holder.category, e.holder.module, e.holder.name))
        for section in sections
        for e, *_ in section
    )


def _aligned(
    points: Sequence[Point],
    recordings: Mapping[Point, Sequence[Section]],
    cores: Mapping[Point, Sequence[Sequence[_Core]]],
) -> Alignment:
    sections = []
    for index, section in enumerate(recordings[points[0]]):
        rows = zip(*(cores[point][index] for point in points), strict=True)
        sections.append(AlignedSection(name=section.name, events=tuple(_renumbered(_merged_rows(rows)))))
    return Alignment(points=tuple(points), sections=tuple(sections))


def _merged_rows(rows: Iterator[tuple[_Core, ...]]) -> Iterator[AlignedEvent]:
    """Yield the events of all points; keys of what is only sometimes there are below -1."""
    for row in rows:
        part: Part = next((core.part for core in row if core.part), "")
        yield from _sometimes([core.before for core in row], part)
        yield _merged([core.event for core in row], [core.pairs for core in row])
        yield from _sometimes([core.after for core in row], part)


def _sometimes(columns: Sequence[Sequence[SectionEvent]], part: Part) -> Iterator[AlignedEvent]:
    length = max(map(len, columns))
    for index in range(length):
        event = _merged([column[index] if column else None for column in columns], [()] * len(columns))
        yield event._replace(key=-2 - event.key, part=part)


def _merged(events: Sequence[SectionEvent | None], pairs: Sequence[tuple[Pair, ...]]) -> AlignedEvent:
    event = next(event for event in events if event is not None)
    holders = [event.holder if event is not None else None for event in events]
    return AlignedEvent(
        action=event.action,
        key=event.key,
        nbytes=tuple(event.nbytes if event is not None else None for event in events),
        phase=event.phase,
        holder=most_told(holders),
        shapes=tuple(holder.shape if holder is not None else None for holder in holders),
        slot=event.slot,
        pairs=tuple(pairs),
        part="",
    )


def _renumbered(events: Iterator[AlignedEvent]) -> Iterator[AlignedEvent]:
    keys: dict[int, int] = {-1: -1}
    for event in events:
        if event.action == "alloc":
            keys[event.key] = len(keys) - 1
        yield event._replace(key=keys[event.key])


def most_told(holders: Sequence[Holder | None]) -> Holder | None:
    """Return the holder with what was seen at any point: small tensors are not looked at."""
    told = [holder for holder in holders if holder is not None]
    if not told:
        return None
    op = next((holder.op for holder in told if holder.op), "")
    dtype = next((holder.dtype for holder in told if holder.dtype), None)
    return replace(told[0], op=op, dtype=dtype, shape=None)
