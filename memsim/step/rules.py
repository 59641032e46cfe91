"""What a recorded number is at any batch size and length: a polynomial, or the rule of a kernel's own storage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from memsim.step import sorting
from memsim.step.fit import MONOMIALS, Point, Polynomial, constant, fit, monomials_at
from memsim.step.reduction import Processors, ReductionForm, Scratch, scratch

RuleKind = Literal["polynomial", "sort", "unique", "scan", "rows", "segments"]
_UNBOUNDED = 2**40
"""More rows than any table has: as many rows as ids."""


class Rule(NamedTuple):
    """Bytes as a function of batch size and sequence length."""

    kind: RuleKind
    """`polynomial`: `items` itself; `sort` (`numbers` are passes), `unique`, `scan` (rows): CUB's storage for so many
    items; `rows` (bytes, rows): of as many entries as there are ids, but at most `rows`; `segments` (bytes, rows): of
    `num_segments` entries. See memsim/step/sorting.py."""
    items: Polynomial
    """How many."""
    numbers: tuple[int, ...] = ()
    """What else the kind needs."""


class ReductionRule(NamedTuple):
    """A reduction that may need scratch memory."""

    outputs: Polynomial
    """Results."""
    inputs: Polynomial
    """Values that each adds up."""
    form: ReductionForm
    """The rest."""


def bytes_of(rule: Rule, monomials: Sequence[int], processors: Processors) -> int:
    """Return the bytes where the monomials have these values; see `monomials_at`."""
    items = rule.items.at(monomials)
    if rule.kind == "polynomial":
        return items
    if rule.kind == "sort":
        return sorting.sort_bytes(items, rule.numbers[0], processors.compute_capability)
    if rule.kind == "unique":
        return sorting.unique_bytes(items, processors.compute_capability)
    if rule.kind == "scan":
        return sorting.scan_bytes(min(items, rule.numbers[0]))
    unit, rows = rule.numbers
    return unit * (min(items, rows) if rule.kind == "rows" else sorting.num_segments(items, rows))


def scratch_of(rule: ReductionRule, monomials: Sequence[int], processors: Processors) -> Scratch | None:
    """Return what a reduction needs where the monomials have these values."""
    return scratch(rule.outputs.at(monomials), rule.inputs.at(monomials), rule.form, processors)


_FORMS = tuple(
    ReductionForm(accumulator_bytes=size, contiguous=contiguous, vector=vector)
    for contiguous in (False, True)
    for size in (4, 8, 16)
    for vector in ((4, 8, 1) if contiguous else (4, 2, 1))
)
_COUNTED = ("B*S", "B", "S", "B*S*S", "S*S")
"""What ids and reductions are counted by, the likeliest first: tokens, sequences, positions, ..."""


def _monomial(name: str) -> Polynomial:
    return Polynomial(tuple(int(name == other) for other in MONOMIALS))


class RuleFinder:
    """Finds the rules of numbers that were recorded at some points."""

    def __init__(self, points: Sequence[Point], processors: Processors) -> None:
        self.points = tuple(points)
        self.processors = processors
        self.monomials = [monomials_at(point) for point in points]
        self._polynomials: dict[tuple[int, ...], Polynomial | None] = {}
        self._recent: list[Rule] = []

    def polynomial(self, values: tuple[int, ...]) -> Polynomial | None:
        """Return the polynomial through `values`; a single point has a constant, which holds nowhere else."""
        if values not in self._polynomials:
            only = len(self.points) == 1
            self._polynomials[values] = constant(values[0]) if only else fit(self.points, values)
        return self._polynomials[values]

    def bytes_rule(self, values: tuple[int, ...]) -> Rule | None:
        """Return the rule of the bytes of a block; what came shortly before says how many ids there are."""
        polynomial = self.polynomial(values)
        rule = Rule("polynomial", polynomial) if polynomial is not None else self._storage(values)
        if rule is not None:
            self._recent = [*self._recent[-11:], rule]
        return rule

    def _storage(self, values: tuple[int, ...]) -> Rule | None:
        return next((rule for rule in self._candidates(values) if self._explains(rule, values)), None)

    def _candidates(self, values: tuple[int, ...]) -> Iterator[Rule]:
        rows = [rule.numbers[1] for rule in self._recent if rule.kind == "rows"]
        rows += [c[0] // 8 for c in (r.items.coefficients for r in self._recent) if not any(c[1:])]
        for items in self._counts():
            yield Rule("rows", items, (8, max(values) // 8))
            yield Rule("unique", items)
            yield from (Rule("sort", items, (passes,)) for passes in range(1, 9))
            for most in (*rows, _UNBOUNDED):
                yield Rule("scan", items, (most,))
                count = sorting.num_segments(items.at(self.monomials[0]), most)
                if count and not values[0] % count:
                    yield Rule("segments", items, (values[0] // count, most))

    def _counts(self) -> Iterator[Polynomial]:
        """Yield how many ids there may be: as many as a recent block has 64-bit integers, or of some other count."""
        for rule in reversed(self._recent):
            coefficients = rule.items.coefficients
            if rule.kind == "polynomial" and any(coefficients[1:]) and not any(c % 8 for c in coefficients):
                yield Polynomial(tuple(c // 8 for c in coefficients), rule.items.denominator)
        yield from map(_monomial, _COUNTED)

    def _explains(self, rule: Rule, values: Sequence[int]) -> bool:
        return all(
            bytes_of(rule, monomials, self.processors) == value
            for monomials, value in zip(self.monomials, values, strict=True)
        )

    def reduction(self, result_bytes: tuple[int, ...], seen: Sequence[Scratch | None]) -> ReductionRule | None:
        """Return the reduction whose result has these bytes and that took the scratch memory that was seen."""
        for itemsize in (4, 2, 8, 1):
            if any(nbytes % itemsize for nbytes in result_bytes):
                continue
            outputs = self.polynomial(tuple(nbytes // itemsize for nbytes in result_bytes))
            if outputs is None:
                continue
            for inputs in self._inputs(outputs):
                for form in _FORMS:
                    rule = ReductionRule(outputs, inputs, form)
                    if all(
                        scratch_of(rule, monomials, self.processors) == one
                        for monomials, one in zip(self.monomials, seen, strict=True)
                    ):
                        return rule
        return None

    def _inputs(self, outputs: Polynomial) -> Iterator[Polynomial]:
        """Yield how many values a result may come from: those of a recent block, shared out, or some other count."""
        found = set()
        for rule in reversed(self._recent):
            for itemsize in (4, 2, 8):
                counts = [rule.items.at(m) for m in self.monomials] if rule.kind == "polynomial" else []
                shares = [itemsize * outputs.at(m) for m in self.monomials]
                if counts and not any(count % share for count, share in zip(counts, shares, strict=True)):
                    values = tuple(count // share for count, share in zip(counts, shares, strict=True))
                    inputs = self.polynomial(values)
                    if inputs is not None and inputs not in found:
                        found.add(inputs)
                        yield inputs
        yield from (m for m in map(_monomial, _COUNTED) if m not in found)
