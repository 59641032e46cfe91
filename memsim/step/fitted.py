"""From aligned recordings to sections whose numbers are rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from memsim.errors import MemsimError
from memsim.ledger import Phase
from memsim.step.align import AlignedEvent, Alignment, Pair, most_told
from memsim.step.fit import Polynomial, constant, fit
from memsim.step.reduction import Processors, Scratch
from memsim.step.rules import ReductionRule, Rule, RuleFinder
from memsim.step.section import SectionName
from memsim.step.sorting import SORTED_ABOVE
from memsim.step.trace import Holder
from memsim.tensors import Shape


class NotFittedError(MemsimError):
    """A number of the recordings follows no rule that memsim knows."""


class HolderRule(NamedTuple):
    """A holder whose shape depends on the point."""

    holder: Holder
    """All but the shape."""
    shape: tuple[Polynomial, ...] | None
    """Its sizes."""


class PairRule(NamedTuple):
    """A pair of blocks after an event: of these bytes always, or what a reduction needs, which may be nothing."""

    outer: Rule | None
    inner: Rule | None
    reduction: ReductionRule | None
    outer_holder: HolderRule | None
    inner_holder: HolderRule | None


class FittedEvent(NamedTuple):
    """An event at any point."""

    action: Literal["alloc", "free"]
    key: int
    nbytes: Rule
    phase: Phase
    holder: HolderRule | None
    slot: str
    condition: Polynomial | None
    """It happens only where an embedding has so many ids that it sorts them; `None`: always."""
    pairs: tuple[PairRule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedSection:
    """A section at any point."""

    name: SectionName
    """Which part."""
    events: tuple[FittedEvent, ...]
    """Its events."""


def fitted(alignment: Alignment, processors: Processors) -> tuple[FittedSection, ...]:
    """Return the sections of aligned recordings with a rule for each number.

    A single point gets constants: it holds there and nowhere else.

    Raises:
        NotFittedError: a number follows no rule; the message says which.
    """
    fitter = _Fitter(alignment, processors)
    return tuple(
        FittedSection(name=section.name, events=tuple(fitter.event(event) for event in section.events))
        for section in alignment.sections
    )


class _Fitter:
    """Finds a rule for each number of each event, in order."""

    def __init__(self, alignment: Alignment, processors: Processors) -> None:
        self._points = alignment.points
        self._processors = processors
        self._finders: dict[tuple[bool, ...], RuleFinder] = {}
        self._conditions: dict[tuple[bool, ...], Polynomial] = {}

    def event(self, event: AlignedEvent) -> FittedEvent:
        there = tuple(value is not None for value in event.nbytes)
        nbytes = self._rule(there, tuple(value for value in event.nbytes if value is not None), event.holder)
        return FittedEvent(
            action=event.action,
            key=event.key,
            nbytes=nbytes,
            phase=event.phase,
            holder=self._holder(event.holder, event.shapes),
            slot=event.slot,
            condition=None if all(there) else self._condition(there, event),
            pairs=self._pairs(event),
        )

    def _finder(self, there: tuple[bool, ...]) -> RuleFinder:
        if there not in self._finders:
            points = [point for point, here in zip(self._points, there, strict=True) if here]
            self._finders[there] = RuleFinder(points, self._processors)
        return self._finders[there]

    def _rule(self, there: tuple[bool, ...], values: tuple[int, ...], holder: Holder | None) -> Rule:
        finder = self._finder(there)
        rule = finder.bytes_rule(values)
        if rule is None:
            listed = ", ".join(f"{v:,} at {b}x{s}" for v, (b, s) in zip(values, finder.points, strict=True))
            raise NotFittedError(f"the bytes of {_named(holder)} follow no rule that memsim knows: {listed}.")
        return rule

    def _condition(self, there: tuple[bool, ...], event: AlignedEvent) -> Polynomial:
        """Return the number of ids of the embedding that sorts at these points: its first block has them."""
        if there not in self._conditions:
            ids = tuple((value or 0) // 8 for value in event.nbytes if value is not None)
            polynomial = self._finder(there).polynomial(ids)
            everywhere = self._finder((True,) * len(there))
            counts = [polynomial.at(m) for m in everywhere.monomials] if polynomial is not None else []
            if polynomial is None or any((n > SORTED_ABOVE) != here for n, here in zip(counts, there, strict=True)):
                raise NotFittedError(
                    f"{_named(event.holder)} sorts its ids at some points, by no rule that memsim knows."
                )
            self._conditions[there] = polynomial
        return self._conditions[there]

    def _holder(self, holder: Holder | None, shapes: Sequence[Shape | None]) -> HolderRule | None:
        return None if holder is None else HolderRule(holder, self._shape(shapes))

    def _shape(self, shapes: Sequence[Shape | None]) -> tuple[Polynomial, ...] | None:
        """Return rules for a shape, from the points at which it was seen; no shape where these are too few."""
        seen = [(point, shape) for point, shape in zip(self._points, shapes, strict=True) if shape is not None]
        if not seen or len({len(shape) for _, shape in seen}) > 1:
            return None
        if len(self._points) == 1:
            return tuple(constant(size) for size in seen[0][1])
        if len(seen) == len(self._points):
            find = self._finder((True,) * len(seen)).polynomial
            rules = [find(sizes) for sizes in zip(*(shape for _, shape in seen), strict=True)]
        else:
            points = [point for point, _ in seen]
            rules = [fit(points, sizes) for sizes in zip(*(shape for _, shape in seen), strict=True)]
        known = tuple(rule for rule in rules if rule is not None)
        return known if len(known) == len(rules) else None

    def _pairs(self, event: AlignedEvent) -> tuple[PairRule, ...]:
        """Return the rules of the pairs after an event: some that are always there, and those of one reduction."""
        fewest, most = min(map(len, event.pairs)), max(map(len, event.pairs))
        if most == 0:
            return ()
        if fewest == most and all(self._is_polynomial(column) for column in zip(*event.pairs, strict=True)):
            return tuple(self._always(column) for column in zip(*event.pairs, strict=True))
        for first in range(fewest + 1):
            for last in range(fewest - first + 1):
                middle = [pairs[first : len(pairs) - last] for pairs in event.pairs]
                reduction = self._reduction(event, middle)
                if reduction is not None:
                    before = zip(*(pairs[:first] for pairs in event.pairs), strict=True)
                    after = zip(*(pairs[len(pairs) - last :] for pairs in event.pairs), strict=True)
                    return (*map(self._always, before), reduction, *map(self._always, after))
        if fewest == most:
            return tuple(self._always(column) for column in zip(*event.pairs, strict=True))
        raise NotFittedError(f"the scratch memory of {_named(event.holder)} follows no rule that memsim knows.")

    def _is_polynomial(self, pairs: Sequence[Pair]) -> bool:
        find = self._finder((True,) * len(self._points)).polynomial
        return all(
            find(values) is not None
            for values in (tuple(p.outer.nbytes for p in pairs), tuple(p.inner.nbytes for p in pairs))
        )

    def _always(self, pairs: Sequence[Pair]) -> PairRule:
        """Return the rule of a pair that is there at every point."""
        everywhere = (True,) * len(self._points)
        outer_holder, inner_holder = self._pair_holders(pairs)
        return PairRule(
            self._rule(everywhere, tuple(pair.outer.nbytes for pair in pairs), pairs[0].outer.holder),
            self._rule(everywhere, tuple(pair.inner.nbytes for pair in pairs), pairs[0].inner.holder),
            None,
            outer_holder,
            inner_holder,
        )

    def _pair_holders(self, pairs: Sequence[Pair | None]) -> tuple[HolderRule | None, HolderRule | None]:
        outer = [pair.outer.holder if pair is not None else None for pair in pairs]
        inner = [pair.inner.holder if pair is not None else None for pair in pairs]
        return (
            self._holder(most_told(outer), [h.shape if h is not None else None for h in outer]),
            self._holder(most_told(inner), [h.shape if h is not None else None for h in inner]),
        )

    def _reduction(self, event: AlignedEvent, pairs: Sequence[Sequence[Pair]]) -> PairRule | None:
        """Return the rule of the scratch memory of a reduction whose result was allocated here or shortly before."""
        result = tuple(value for value in event.nbytes if value is not None)
        if event.action != "alloc" or len(result) < len(event.nbytes):
            return None
        seen = [tuple(Scratch(p.outer.nbytes, p.inner.nbytes) for p in launches) for launches in pairs]
        rule = self._finder((True,) * len(pairs)).reduction(result, seen)
        firsts = [launches[0] if launches else None for launches in pairs]
        return None if rule is None else PairRule(None, None, rule, *self._pair_holders(firsts))


def _named(holder: Holder | None) -> str:
    if holder is None:
        return "a block"
    where = holder.name or " ".join(part for part in (holder.module, holder.op) if part)
    return f"a {holder.category.value} of {where or 'no module'}"
