"""Exact polynomials in batch size `B` and sequence length `S` through recorded numbers; no residual is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from math import lcm
from typing import NamedTuple

MONOMIALS = ("1", "B", "S", "B*S", "S*S", "B*S*S", "B*B")
_POWERS = ((0, 1, 0, 1, 0, 1, 2), (0, 0, 1, 1, 2, 2, 0))
"""Powers of batch size and of length in each of `MONOMIALS`."""
MAX_TERMS = 4
"""Terms of one size; recorded ones have at most three (a key-value cache with a prefix, say)."""


class Point(NamedTuple):
    """Where something was recorded, or is asked for."""

    batch_size: int
    """Sequences."""
    seq_len: int
    """Tokens of each."""


class Polynomial(NamedTuple):
    """An integer-valued polynomial: the sum of coefficients times `MONOMIALS`, divided by `denominator`."""

    coefficients: tuple[int, ...]
    """One for each of `MONOMIALS`."""
    denominator: int = 1
    """What the sum is divided by."""

    def at(self, monomials: Sequence[int]) -> int:
        """Return the value where the monomials have these values; see `monomials_at`."""
        return sum(c * m for c, m in zip(self.coefficients, monomials, strict=True) if c) // self.denominator


def constant(value: int) -> Polynomial:
    """Return the polynomial that is `value` everywhere."""
    return Polynomial((value, 0, 0, 0, 0, 0, 0))


def monomials_at(point: Point) -> tuple[int, ...]:
    """Return the values of `MONOMIALS` at a point."""
    b, s = point
    return (1, b, s, b * s, s * s, b * s * s, b * b)


def fit(points: Sequence[Point], values: Sequence[int]) -> Polynomial | None:
    """Return the polynomial of fewest terms through all points, or `None` if there is none with a point to spare.

    With one point more than terms, and one batch size and length more than their powers, a number that is no polynomial
    is found out. Batch size or length count as variables only where they vary among the points: what holds elsewhere is
    for the caller to limit.
    """
    num_points = len(set(points))
    if num_points < 2:
        return None
    if all(value == values[0] for value in values):
        return constant(values[0])
    rows = [monomials_at(point) for point in points]
    columns = _independent(points)
    for num_terms in range(1, min(MAX_TERMS, num_points - 1) + 1):
        for support in combinations(columns, num_terms):
            solution = _solved(rows, values, support)
            if solution is not None and _is_proved(points, support):
                return _polynomial(support, solution)
    return None


def _is_proved(points: Sequence[Point], support: Sequence[int]) -> bool:
    """Whether there are more batch sizes, and more lengths, than powers of them: else any values would fit."""
    for variable, powers in enumerate(_POWERS):
        num_values = len({point[variable] for point in points})
        if 1 < num_values <= len({powers[column] for column in support}):
            return False
    return True


def _independent(points: Sequence[Point]) -> tuple[int, ...]:
    several_batches = len({point.batch_size for point in points}) > 1
    several_lengths = len({point.seq_len for point in points}) > 1
    if several_batches and several_lengths:
        return (0, 3, 1, 2, 4, 5, 6)  # tokens before sequences: the likeliest first
    return (0, 1, 6) if several_batches else (0, 2, 4)


def _solved(
    rows: Sequence[tuple[int, ...]], values: Sequence[int], support: Sequence[int]
) -> tuple[Fraction, ...] | None:
    """Return the coefficients of the terms of `support` that give all values, if there are any."""
    if len(support) == 1:
        (column,) = support
        if any(values[0] * row[column] != value * rows[0][column] for row, value in zip(rows, values, strict=True)):
            return None
        return (Fraction(values[0], rows[0][column]),)
    matrix = [[*(Fraction(row[c]) for c in support), Fraction(v)] for row, v in zip(rows, values, strict=True)]
    width = len(support)
    for column in range(width):
        pivot = next((i for i in range(column, len(matrix)) if matrix[i][column]), None)
        if pivot is None:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        lead = matrix[column]
        for row in matrix[column + 1 :]:
            if row[column]:
                factor = row[column] / lead[column]
                for place in range(column, width + 1):
                    row[place] -= factor * lead[place]
    if any(row[width] for row in matrix[width:]):
        return None
    solution = [Fraction(0)] * width
    for column in reversed(range(width)):
        known = sum(matrix[column][k] * solution[k] for k in range(column + 1, width))
        solution[column] = (matrix[column][width] - known) / matrix[column][column]
    return tuple(solution) if all(solution) else None


def _polynomial(support: Sequence[int], solution: Sequence[Fraction]) -> Polynomial:
    denominator = lcm(*(value.denominator for value in solution))
    coefficients = [0] * len(MONOMIALS)
    for column, value in zip(support, solution, strict=True):
        coefficients[column] = int(value * denominator)
    return Polynomial(tuple(coefficients), denominator)
