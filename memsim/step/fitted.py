"""From aligned recordings to sections whose numbers are rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from memsim.errors import MemsimError
from memsim.ledger import Phase
from memsim.step.align import RNG_BYTES, AlignedEvent, Alignment, Pair, most_told
from memsim.step.fit import MONOMIALS, Polynomial, constant, fit
from memsim.step.reduction import Processors, Scratch
from memsim.step.rules import Condition, ReductionRule, Rule, RuleFinder, bytes_of
from memsim.step.section import SectionName
from memsim.step.trace import Holder
from memsim.tensors import Shape


class NotFittedError(MemsimError):
    """A number of the recordings follows no rule that memsim knows."""

    def __init__(self, message: str, apart: Sequence[bool] = ()) -> None:
        super().__init__(message)
        self.apart = tuple(apart)
        """Where something happened, for each point, if that is why points should be looked at apart."""


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
    nbytes: Rule | None
    """Of an alloc."""
    phase: Phase
    holder: HolderRule | None
    slot: str
    condition: Condition | None
    """When it happens; `None`: always."""
    pairs: tuple[PairRule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedSection:
    """A section at any point."""

    name: SectionName
    """Which part."""
    events: tuple[FittedEvent, ...]
    """Its events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Sections at any point."""

    sections: tuple[FittedSection, ...]
    """Every section."""
    doubts: tuple[Condition, ...]
    """Where one of these holds, something happens that was not seen at any point."""


def fitted(alignment: Alignment, processors: Processors) -> Fitted:
    """Return the sections of aligned recordings with a rule for each number.

    A single point gets constants: it holds there and nowhere else.

    Raises:
        NotFittedError: a number follows no rule; the message says which.
    """
    fitter = _Fitter(alignment, processors)
    sections = [
        FittedSection(name=section.name, events=tuple(fitter.event(event) for event in section.events))
        for section in alignment.sections
    ]
    return Fitted(sections=tuple(sections), doubts=tuple(dict.fromkeys(fitter.doubts)))


class _Fitter:
    """Finds a rule for each number of each event, in order."""

    def __init__(self, alignment: Alignment, processors: Processors) -> None:
        self.doubts: list[Condition] = []
        self._points = alignment.points
        self._processors = processors
        self._everywhere = (True,) * len(alignment.points)
        self._finders: dict[tuple[bool, ...], RuleFinder] = {}
        self._open: set[int] = set()
        self._condition: Condition | None = None
        self._before: list[AlignedEvent] = []

    def event(self, event: AlignedEvent) -> FittedEvent:
        there = tuple(value is not None for value in event.nbytes)
        values = tuple(value for value in event.nbytes if value is not None)
        if event.part:
            self._enter(event, there, values)
        rule = self._rule_of(event, there, values) if event.action == "alloc" else None
        condition = self._condition if event.part else None
        if event.action == "alloc":
            self._doubt(event)
            self._before = [*self._before[-3:], event]
        return FittedEvent(
            action=event.action,
            key=event.key,
            nbytes=rule,
            phase=event.phase,
            holder=self._holder(event.holder, event.shapes),
            slot=event.slot,
            condition=condition,
            pairs=self._pairs(event),
        )

    def _rule_of(self, event: AlignedEvent, there: tuple[bool, ...], values: tuple[int, ...]) -> Rule:
        if event.part == "splits" and self._condition is not None:
            return self._split_rule(self._condition, there, values)
        return self._rule(there, values, event.holder)

    def _enter(self, event: AlignedEvent, there: tuple[bool, ...], values: tuple[int, ...]) -> None:
        """Find the condition when the first block of something that is not always there is made."""
        if not self._open:
            find = self._split_condition if event.part == "splits" else self._sort_condition
            self._condition = find(event, there, values)
        if event.action == "alloc":
            self._open.add(event.key)
        else:
            self._open.discard(event.key)

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

    def _sort_condition(
        self, event: AlignedEvent, there: tuple[bool, ...], values: tuple[int, ...]
    ) -> Condition | None:
        """Return when an embedding sorts its ids, of which its first block has one each; `None`: always."""
        if all(there):
            return None
        ids = self._finder(there).polynomial(tuple(value // 8 for value in values))
        condition = Condition("sorts", ids) if ids is not None else None
        if condition is None or self._held(condition) != there:
            message = f"{_named(event.holder)} sorts its ids at some points, by no rule that memsim knows."
            raise NotFittedError(message, there)
        return condition

    def _held(self, condition: Condition) -> tuple[bool, ...]:
        monomials = self._finder(self._everywhere).monomials
        return tuple(condition.holds(one, self._processors) for one in monomials)

    def _split_condition(
        self, event: AlignedEvent, there: tuple[bool, ...], _values: tuple[int, ...]
    ) -> Condition | None:
        """Return when flash attention splits; a single point tells nothing of others."""
        if len(self._points) == 1:
            return None
        condition = self._splits_after(self._before[-2:])
        if condition is None or self._held(condition) != there:
            raise NotFittedError(f"flash attention of {_named(event.holder)} splits by no rule that memsim knows.")
        return condition

    def _splits_after(self, made: Sequence[AlignedEvent]) -> Condition | None:
        """Return when an attention splits that made its result and its log-sum-exp, in 16 and 32 bits, just now.

        The log-sum-exp has a number for each sequence, head and token, and the result a head of them.
        """
        if len(made) < 2 or None in made[0].nbytes or None in made[1].nbytes:
            return None
        result, sums = (tuple(value or 0 for value in event.nbytes) for event in made)
        heads = _heads_of(self._finder(self._everywhere).polynomial(sums))
        sizes = {2 * one / other if other else 0 for one, other in zip(result, sums, strict=True)}
        head_size = int(sizes.pop()) if len(sizes) == 1 else 0
        if heads is None or not 8 <= head_size <= 256 or head_size % 8:
            return None
        return Condition("splits", constant(0), (heads, head_size))

    def _split_rule(self, condition: Condition, there: tuple[bool, ...], values: tuple[int, ...]) -> Rule:
        """Return the bytes of a block for all splits: of each log-sum-exp, or of each result, in 32 bits."""
        sums = next(event for event in reversed(self._before) if event.part != "splits")
        whole = self._finder(self._everywhere).polynomial(tuple(value or 0 for value in sums.nbytes))
        for factor in (1, condition.numbers[1], -(-condition.numbers[1] // 32) * 32):
            if whole is not None:
                rule = Rule("splits", Polynomial(tuple(factor * c for c in whole.coefficients)), condition.numbers)
                monomials = self._finder(there).monomials
                if tuple(bytes_of(rule, one, self._processors) for one in monomials) == values:
                    return rule
        raise NotFittedError("the memory of the splits of flash attention follows no rule that memsim knows.")

    def _doubt(self, event: AlignedEvent) -> None:
        """Note an attention that did not split at any point but would elsewhere; one with dropout never does."""
        made = [*self._before, event]
        sizes = [set(one.nbytes) for one in made[-2:]]
        if sizes != [{RNG_BYTES[0]}, {RNG_BYTES[1]}] or any(one.part for one in made):
            return
        condition = self._splits_after(made[-4:-2])
        if condition is not None and len(self._points) > 1 and not any(self._held(condition)):
            self.doubts.append(condition)

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
            find = self._finder(self._everywhere).polynomial
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
        find = self._finder(self._everywhere).polynomial
        return all(
            find(values) is not None
            for values in (tuple(p.outer.nbytes for p in pairs), tuple(p.inner.nbytes for p in pairs))
        )

    def _always(self, pairs: Sequence[Pair]) -> PairRule:
        """Return the rule of a pair that is there at every point."""
        everywhere = self._everywhere
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
        rule = self._finder(self._everywhere).reduction(result, seen)
        firsts = [launches[0] if launches else None for launches in pairs]
        return None if rule is None else PairRule(None, None, rule, *self._pair_holders(firsts))


def _heads_of(sums: Polynomial | None) -> int | None:
    """Return the heads of an attention whose log-sum-exp has these bytes: 4 for each sequence, head and token."""
    if sums is None or sums.denominator != 1:
        return None
    used = [index for index, value in enumerate(sums.coefficients) if value]
    by_token = MONOMIALS.index("B*S"), MONOMIALS.index("S")  # of a single sequence, the batch size is no variable
    if len(used) != 1 or used[0] not in by_token or sums.coefficients[used[0]] % 4:
        return None
    return sums.coefficients[used[0]] // 4


def _named(holder: Holder | None) -> str:
    if holder is None:
        return "a block"
    where = holder.name or " ".join(part for part in (holder.module, holder.op) if part)
    return f"a {holder.category.value} of {where or 'no module'}"
