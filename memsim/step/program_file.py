"""Step programs as JSON: every rule, name and event once, and numbers that point at them.

What is read back may come from anybody: nothing in it is run, and whatever does not fit is an `OutputError`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict
from typing import Any, Generic, TypeVar

from memsim.errors import OutputError
from memsim.ledger import Category, Phase
from memsim.step.fit import MONOMIALS, Point, Polynomial
from memsim.step.fold import Body, Folded, FoldedSection, FoldedStack, Form, HolderForm, PairForm, Run, Target
from memsim.step.layers import Place, Stack, Text
from memsim.step.program import Regime, StepProgram
from memsim.step.reduction import Processors, ReductionForm
from memsim.step.rules import Condition, ReductionRule, Rule
from memsim.step.trace import Holder

SCHEMA = 1
"""Grows whenever a program of an older memsim would be read wrongly."""
KIND = "step_program"

_PHASES = tuple(Phase)
_Thing = TypeVar("_Thing", bound=Hashable)


class _Table(Generic[_Thing]):
    """Things, each written once."""

    def __init__(self, row_of: Callable[[_Thing], list[Any]]) -> None:
        self.rows: list[list[Any]] = []
        self._row_of = row_of
        self._index: dict[_Thing, int] = {}

    def index(self, thing: _Thing | None) -> int:
        """Return the number of a thing; -1 for `None`."""
        if thing is None:
            return -1
        known = self._index.get(thing)
        if known is None:
            row = self._row_of(thing)  # first: what it points at comes before it
            known = self._index[thing] = len(self.rows)
            self.rows.append(row)
        return known


class _Tables:
    """All tables of a program being written."""

    def __init__(self) -> None:
        self.polynomials: _Table[Polynomial] = _Table(lambda p: [p.denominator, *p.coefficients])
        self.texts: _Table[Text] = _Table(lambda t: [t.before, t.stack, list(t.place) if t.place else None, t.after])
        self.holders: _Table[HolderForm] = _Table(self._holder)
        self.rules: _Table[Rule] = _Table(lambda r: [r.kind, self.polynomials.index(r.items), *r.numbers])
        self.reductions: _Table[ReductionRule] = _Table(self._reduction)
        self.pairs: _Table[PairForm] = _Table(self._pair)
        self.conditions: _Table[Condition] = _Table(lambda c: [c.kind, self.polynomials.index(c.items), *c.numbers])
        self.targets: _Table[Target] = _Table(lambda t: [t.run, list(t.place) if t.place else None, t.tag])
        self.forms: _Table[Form] = _Table(self._form)
        self.bodies: _Table[Body] = _Table(lambda body: [self.forms.index(form) for form in body])

    def _holder(self, form: HolderForm) -> list[Any]:
        shape = None if form.shape is None else [self.polynomials.index(size) for size in form.shape]
        names = [self.texts.index(form.module), self.texts.index(form.name)]
        return [form.holder.category.value, form.holder.op, form.holder.dtype, *names, shape]

    def _reduction(self, rule: ReductionRule) -> list[Any]:
        form = rule.form
        sizes = [self.polynomials.index(rule.outputs), self.polynomials.index(rule.inputs)]
        return [*sizes, form.value_bytes, form.accumulator_bytes, form.contiguous, form.vector]

    def _pair(self, pair: PairForm) -> list[Any]:
        holders = [self.holders.index(pair.outer_holder), self.holders.index(pair.inner_holder)]
        rules = [self.rules.index(pair.outer), self.rules.index(pair.inner), self.reductions.index(pair.reduction)]
        return [*rules, *holders]

    def _form(self, form: Form) -> list[Any]:
        return [
            self.targets.index(form.target),
            form.tag,
            self.rules.index(form.nbytes),
            _PHASES.index(form.phase),
            self.holders.index(form.holder),
            self.texts.index(form.slot),
            self.conditions.index(form.condition),
            [self.pairs.index(pair) for pair in form.pairs],
        ]


def program_data(program: StepProgram) -> dict[str, Any]:
    """Return a program as a JSON object."""
    tables = _Tables()
    regimes = [_regime_data(regime, tables) for regime in program.regimes]
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "processors": asdict(program.processors),
        "depths": dict(program.depths),
        "unexplained": list(program.unexplained),
        "model_class": program.model_class,
        "versions": dict(program.versions),
        "notes": list(program.notes),
        "phases": [phase.value for phase in _PHASES],
        "monomials": list(MONOMIALS),
        "tables": {name: table.rows for name, table in vars(tables).items()},
        "regimes": regimes,
    }


def _regime_data(regime: Regime, tables: _Tables) -> dict[str, Any]:
    return {
        "points": [list(point) for point in regime.points],
        "stacks": [asdict(stack) for stack in regime.folded.stacks],
        "doubts": [tables.conditions.index(doubt) for doubt in regime.doubts],
        "unfolded": [asdict(stack) for stack in regime.folded.unfolded],
        "sections": [
            [s.name, [[r.stack, r.descending, [tables.bodies.index(b) for b in r.bodies]] for r in s.runs]]
            for s in regime.folded.sections
        ],
    }


def program_of(data: Mapping[str, Any]) -> StepProgram:
    """Return the program that `program_data` gave.

    Raises:
        OutputError: it is no such object, or of another schema.
    """
    try:
        if (data["kind"], data["schema"]) != (KIND, SCHEMA) or tuple(data["monomials"]) != MONOMIALS:
            raise OutputError(f"this is no step program of schema {SCHEMA}.")
        if not data["regimes"]:
            raise OutputError("this step program knows nothing.")
        reader = _Reader(data["tables"], [Phase(value) for value in data["phases"]])
        return StepProgram(
            processors=Processors(**data["processors"]),
            regimes=tuple(_regime_of(item, reader) for item in data["regimes"]),
            depths=data["depths"],
            unexplained=tuple(data["unexplained"]),
            model_class=data["model_class"],
            versions=data["versions"],
            notes=tuple(data["notes"]),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise OutputError(f"this is no step program: {error!r} is missing or wrong.") from error


class _Reader:
    """Reads the tables in the order in which they point at each other."""

    def __init__(self, tables: Mapping[str, list[list[Any]]], phases: list[Phase]) -> None:
        polynomials = [Polynomial(tuple(row[1:]), row[0]) for row in tables["polynomials"]]
        texts = [Text(row[0], row[1], Place(*row[2]) if row[2] else None, row[3]) for row in tables["texts"]]
        holders = [_holder_of(row, polynomials, texts) for row in tables["holders"]]
        rules = [Rule(row[0], polynomials[row[1]], tuple(row[2:])) for row in tables["rules"]]
        reductions = [_reduction_of(row, polynomials) for row in tables["reductions"]]
        pairs = [
            PairForm(_at(rules, a), _at(rules, b), _at(reductions, c), _at(holders, d), _at(holders, e))
            for a, b, c, d, e in tables["pairs"]
        ]
        self.conditions = [Condition(row[0], polynomials[row[1]], tuple(row[2:])) for row in tables["conditions"]]
        targets = [Target(run, Place(*place) if place else None, tag) for run, place, tag in tables["targets"]]
        forms = [
            Form(
                _at(targets, target),
                tag,
                _at(rules, nbytes),
                phases[phase],
                _at(holders, holder),
                _at(texts, slot),
                _at(self.conditions, condition),
                tuple(pairs[index] for index in after),
            )
            for target, tag, nbytes, phase, holder, slot, condition, after in tables["forms"]
        ]
        self.bodies: list[Body] = [tuple(forms[index] for index in row) for row in tables["bodies"]]


def _at(things: list[_Thing], index: int) -> _Thing | None:
    return things[index] if index >= 0 else None


def _holder_of(row: list[Any], polynomials: list[Polynomial], texts: list[Text]) -> HolderForm:
    category, op, dtype, module, name, shape = row
    sizes = None if shape is None else tuple(polynomials[index] for index in shape)
    return HolderForm(Holder(category=Category(category), op=op, dtype=dtype), texts[module], texts[name], sizes)


def _reduction_of(row: list[Any], polynomials: list[Polynomial]) -> ReductionRule:
    outputs, inputs, value, accumulator, contiguous, vector = row
    form = ReductionForm(value_bytes=value, accumulator_bytes=accumulator, contiguous=contiguous, vector=vector)
    return ReductionRule(polynomials[outputs], polynomials[inputs], form)


def _regime_of(data: Mapping[str, Any], reader: _Reader) -> Regime:
    sections = [
        FoldedSection(
            name=name,
            runs=tuple(
                Run(stack=stack, descending=descending, bodies=tuple(reader.bodies[index] for index in indices))
                for stack, descending, indices in runs
            ),
        )
        for name, runs in data["sections"]
    ]
    folded = Folded(
        stacks=tuple(FoldedStack(**stack) for stack in data["stacks"]),
        unfolded=tuple(Stack(**stack) for stack in data["unfolded"]),
        sections=tuple(sections),
    )
    return Regime(
        points=tuple(Point(*point) for point in data["points"]),
        folded=folded,
        doubts=tuple(reader.conditions[index] for index in data["doubts"]),
    )
