"""What a recorded number is at any batch size and length: a polynomial, or the rule of a kernel's own storage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from memsim.step import sorting
from memsim.step.fit import MONOMIALS, Point, Polynomial, constant, fit, monomials_at
from memsim.step.flash_splits import num_splits
from memsim.step.reduction import Processors, ReductionForm, Scratch, scratch

RuleKind = Literal["polynomial", "rounded", "splits", "sort", "unique", "scan", "rows", "segments"]
_TILES = (128, 256, 64, 32, 16, 8)
"""Multiples that kernels round lengths up to; the log-sum-exp and the gradient sums of flash attention to 128
(`round_multiple(seqlen_q, 128)`, aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp @2.13)."""
_UNBOUNDED = 2**40
"""More rows than any table has: as many rows as ids."""


class Rule(NamedTuple):
    """Bytes as a function of batch size and sequence length."""

    kind: RuleKind
    """`polynomial`: `items` itself; `rounded` (multiple): the same with the length rounded up; `splits` (heads,
    head size): so many bytes for each split of flash attention; `sort` (passes), `unique`, `scan` (rows): CUB's storage
    for so many items; `rows` (bytes, rows): as many entries as there are ids, at most `rows`; `segments` (bytes, rows):
    `num_segments` entries. In brackets: `numbers`. See flash_splits.py and sorting.py."""
    items: Polynomial
    """How many."""
    numbers: tuple[int, ...] = ()
    """What else the kind needs."""


class Condition(NamedTuple):
    """When something happens that does not always."""

    kind: Literal["sorts", "splits"]
    """`sorts`: an embedding has so many ids (`items`) that its backward sorts them; `splits`: flash attention reads the
    keys in splits, with `numbers` heads and numbers of a head."""
    items: Polynomial
    """Ids; not used for splits."""
    numbers: tuple[int, ...] = ()
    """What else the kind needs."""

    def holds(self, monomials: Sequence[int], processors: Processors) -> bool:
        """Return whether it happens where the monomials have these values."""
        if self.kind == "sorts":
            return self.items.at(monomials) > sorting.SORTED_ABOVE
        return _splits(self.numbers, monomials, processors) > 1


def _splits(numbers: Sequence[int], monomials: Sequence[int], processors: Processors) -> int:
    heads, head_size = numbers
    return num_splits(heads * monomials[1], monomials[2], head_size, processors)


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
    if rule.kind == "splits":
        return items * _splits(rule.numbers, monomials, processors)
    if rule.kind == "rounded":
        return rule.items.at(monomials_at(_rounded(Point(*monomials[1:3]), rule.numbers[0])))
    return _storage_bytes(rule, items, processors.compute_capability)


def _storage_bytes(rule: Rule, items: int, compute_capability: str) -> int:
    if rule.kind == "sort":
        passes = rule.numbers[0] or sorting.passes_for(items - 1)  # 0: the items are told apart by their own number
        return sorting.sort_bytes(items, passes, compute_capability)
    if rule.kind == "unique":
        return sorting.unique_bytes(items, compute_capability)
    if rule.kind == "scan":
        return sorting.scan_bytes(min(items, rule.numbers[0]))
    unit, rows = rule.numbers
    return unit * (min(items, rows) if rule.kind == "rows" else sorting.num_segments(items, rows))


def scratch_of(rule: ReductionRule, monomials: Sequence[int], processors: Processors) -> tuple[Scratch, ...]:
    """Return what each launch of a reduction needs where the monomials have these values."""
    return scratch(rule.outputs.at(monomials), rule.inputs.at(monomials), rule.form, processors)


_FORMS = tuple(
    ReductionForm(value_bytes=value, accumulator_bytes=size, contiguous=contiguous, vector=vector)
    for value in (4, 2, 8)
    for contiguous in (False, True)
    for size in (4, 8, 16)
    for vector in ((4, 8, 1) if contiguous else (4, 2, 1))
)
_ITEMSIZES = (4, 2, 8, 1)
NEAR = 4
"""Blocks that may come between the result of a reduction and its scratch memory: copies in another dtype."""
_COUNTED = ("B*S", "B", "S", "B*S*S", "S*S")
"""What ids and reductions are counted by, the likeliest first: tokens, sequences, positions, ..."""


def _monomial(name: str) -> Polynomial:
    return Polynomial(tuple(int(name == other) for other in MONOMIALS))


def _rounded(point: Point, tile: int) -> Point:
    return Point(point.batch_size, -(-point.seq_len // tile) * tile)


class RuleFinder:
    """Finds the rules of numbers that were recorded at some points."""

    def __init__(self, points: Sequence[Point], processors: Processors) -> None:
        self.points = tuple(points)
        self.processors = processors
        self.monomials = [monomials_at(point) for point in points]
        self._polynomials: dict[tuple[int, ...], Polynomial | None] = {}
        self._storages: dict[tuple[int, ...], Rule | None] = {}
        self._reductions: dict[tuple[object, ...], ReductionRule | None] = {}
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
        if polynomial is not None:
            rule: Rule | None = Rule("polynomial", polynomial)
        else:
            if values not in self._storages:
                self._storages[values] = self._rounded(values) or self._storage(values)
            rule = self._storages[values]
        if rule is not None:
            self._recent = [*self._recent[-11:], rule]
        return rule

    def _rounded(self, values: tuple[int, ...]) -> Rule | None:
        for tile in _TILES:
            found = fit([_rounded(point, tile) for point in self.points], values)
            if found is not None:
                return Rule("rounded", found, (tile,))
        return None

    def _storage(self, values: tuple[int, ...]) -> Rule | None:
        return next((rule for rule in self._candidates(values) if self._explains(rule, values)), None)

    def _candidates(self, values: tuple[int, ...]) -> Iterator[Rule]:
        rows = [rule.numbers[1] for rule in self._recent if rule.kind == "rows"]
        rows += [c[0] // 8 for c in (r.items.coefficients for r in self._recent) if not any(c[1:])]
        for items in self._counts():
            yield Rule("rows", items, (8, max(values) // 8))
            yield Rule("unique", items)
            yield from (Rule("sort", items, (passes,)) for passes in (1, 2, 3, 4, 8, 0))
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

    def reduction(self, result_bytes: tuple[int, ...], seen: Sequence[tuple[Scratch, ...]]) -> ReductionRule | None:
        """Return the reduction that took the scratch memory that was seen.

        Args:
            result_bytes: of the block that was made just before; the result is that or an earlier one.
            seen: at each point.
        """
        key = (result_bytes, *seen)
        if key not in self._reductions:  # every layer has the same
            self._reductions[key] = self._found_reduction(result_bytes, seen)
        return self._reductions[key]

    def _found_reduction(
        self, result_bytes: tuple[int, ...], seen: Sequence[tuple[Scratch, ...]]
    ) -> ReductionRule | None:
        recent = [rule for rule in reversed(self._recent) if rule.kind == "polynomial"]
        blocks = [tuple(rule.items.at(m) for m in self.monomials) for rule in recent]
        results = list(dict.fromkeys([result_bytes, *blocks[:NEAR]]))
        for any_dtypes in (False, True):  # a sum has its values' dtype, and float32 or wider within; others may not
            for itemsize in _ITEMSIZES:
                for outputs in filter(None, (self._shared(block, itemsize, None) for block in results)):
                    widths = _ITEMSIZES if any_dtypes else (itemsize,)
                    counts = (self._shared(block, width, outputs) for width in widths for block in blocks)
                    inputs = dict.fromkeys([*filter(None, counts), *map(_monomial, _COUNTED)])
                    found = self._reduction(outputs, inputs, seen, 0 if any_dtypes else itemsize)
                    if found is not None:
                        return found
        return None

    def _reduction(
        self, outputs: Polynomial, inputs: Iterable[Polynomial], seen: Sequence[tuple[Scratch, ...]], itemsize: int
    ) -> ReductionRule | None:
        """Return the reduction to `outputs` results that explains what was seen; of that dtype if it is not 0."""
        for count in inputs:
            for form in _FORMS:
                rule = ReductionRule(outputs, count, form)
                wanted = not itemsize or (form.value_bytes, form.accumulator_bytes) == (itemsize, max(itemsize, 4))
                if wanted and all(
                    scratch_of(rule, monomials, self.processors) == one
                    for monomials, one in zip(self.monomials, seen, strict=True)
                ):
                    return rule
        return None

    def _shared(self, block: tuple[int, ...], itemsize: int, among: Polynomial | None) -> Polynomial | None:
        """Return how many numbers of `itemsize` bytes a block holds for each of `among` (1)."""
        shares = [itemsize * (among.at(m) if among is not None else 1) for m in self.monomials]
        if any(nbytes % share for nbytes, share in zip(block, shares, strict=True)):
            return None
        return self.polynomial(tuple(nbytes // share for nbytes, share in zip(block, shares, strict=True)))
