"""From folded sections to their events at a batch size, a length and a depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from memsim.ledger import Phase
from memsim.step.fit import Point, monomials_at
from memsim.step.fold import Body, Folded, FoldedSection, FoldedStack, HolderForm, PairForm, Run, Target
from memsim.step.layers import Text, name_of
from memsim.step.reduction import Processors, Scratch
from memsim.step.rules import bytes_of, scratch_of
from memsim.step.section import Section, SectionEvent
from memsim.step.trace import Holder
from memsim.tensors import Shape


class _Row(NamedTuple):
    """An event of a body, its numbers worked out."""

    action: Literal["alloc", "free"]
    local: int
    """Which of the body's allocations; -1 for the free of another body's or section's."""
    nbytes: int
    phase: Phase
    form: int
    """Which of the body's holders; -1: none."""
    text: int
    """Which of the body's slots; -1: none."""
    target: Target | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worked:
    """A body whose numbers are worked out."""

    rows: tuple[_Row, ...]
    """Its events."""
    forms: tuple[HolderForm, ...]
    """Its holders."""
    texts: tuple[Text, ...]
    """Its slots."""
    num_allocs: int
    """Allocations among them."""
    by_tag: Mapping[str, int]
    """Which of the allocations has a tag that others refer to."""


def expand(folded: Folded, point: Point, depths: Sequence[int], processors: Processors) -> tuple[Section, ...]:
    """Return the sections at a point, for stacks of these depths (in the order of `folded.stacks`)."""
    values = _Values(monomials_at(point), processors)
    writer = _Writer(folded.stacks, depths, values)
    return tuple(writer.section(section) for section in folded.sections)


class _Values:
    """Works bodies and shapes out at one point, each once."""

    def __init__(self, monomials: Sequence[int], processors: Processors) -> None:
        self._monomials = monomials
        self._processors = processors
        self._bodies: dict[int, _Worked] = {}
        self._shapes: dict[int, Shape | None] = {}

    def body(self, body: Body) -> _Worked:
        worked = self._bodies.get(id(body))
        if worked is None:
            worked = self._bodies[id(body)] = self._work_out(body)
        return worked

    def holder(self, form: HolderForm, module: str, name: str) -> Holder:
        if id(form) not in self._shapes:
            sizes = form.shape
            self._shapes[id(form)] = None if sizes is None else tuple(size.at(self._monomials) for size in sizes)
        known = form.holder
        return Holder(
            category=known.category,
            module=module,
            name=name,
            op=known.op,
            shape=self._shapes[id(form)],
            dtype=known.dtype,
        )

    def _work_out(self, body: Body) -> _Worked:
        rows: list[_Row] = []
        by_tag: dict[str, int] = {}
        forms: dict[HolderForm | None, int] = {None: -1}
        texts: dict[Text | None, int] = {None: -1}
        num_allocs = 0
        for form in body:
            if form.condition is not None and not form.condition.holds(self._monomials, self._processors):
                continue
            text = texts.setdefault(form.slot, len(texts) - 1)
            if form.nbytes is None:
                rows.append(_Row("free", -1, 0, form.phase, -1, text, form.target))
            else:
                nbytes = bytes_of(form.nbytes, self._monomials, self._processors)
                holder = forms.setdefault(form.holder, len(forms) - 1)
                rows.append(_Row("alloc", num_allocs, nbytes, form.phase, holder, text, None))
                by_tag[form.tag] = num_allocs
                num_allocs += 1
            for pair in form.pairs:
                holders = [forms.setdefault(h, len(forms) - 1) for h in (pair.outer_holder, pair.inner_holder)]
                for found in self._pairs(pair):
                    rows += _pair_rows(found, holders, form.phase, num_allocs)
                    num_allocs += 2
        return _Worked(
            rows=tuple(rows),
            forms=tuple(form for form in forms if form is not None),
            texts=tuple(text for text in texts if text is not None),
            num_allocs=num_allocs,
            by_tag=by_tag,
        )

    def _pairs(self, pair: PairForm) -> tuple[Scratch, ...]:
        if pair.reduction is not None:
            return scratch_of(pair.reduction, self._monomials, self._processors)
        assert pair.outer is not None
        assert pair.inner is not None
        both = (bytes_of(rule, self._monomials, self._processors) for rule in (pair.outer, pair.inner))
        return (Scratch(*both),)


def _pair_rows(nbytes: Scratch, holders: Sequence[int], phase: Phase, first: int) -> list[_Row]:
    return [
        _Row("alloc", first, nbytes[0], phase, holders[0], -1, None),
        _Row("alloc", first + 1, nbytes[1], phase, holders[1], -1, None),
        _Row("free", first + 1, 0, phase, -1, -1, None),
        _Row("free", first, 0, phase, -1, -1, None),
    ]


class _Begun(NamedTuple):
    """A body that was written for a layer."""

    base: int
    """Key of its first allocation."""
    worked: _Worked


class _Writer:
    """Writes the sections out, layer by layer."""

    def __init__(self, stacks: Sequence[FoldedStack], depths: Sequence[int], values: _Values) -> None:
        self._stacks = stacks
        self._depths = depths
        self._values = values
        self._holders: dict[tuple[int, str, str], Holder] = {}
        self._runs: Sequence[Run] = ()
        self._begun: list[dict[int, _Begun]] = []
        self._made: list[tuple[int, Holder | None]] = []
        self._events: list[SectionEvent] = []
        self._left: dict[str, int] = {}

    def section(self, section: FoldedSection) -> Section:
        self._runs, self._begun, self._made, self._events, self._left = section.runs, [], [], [], {}
        for run in section.runs:
            self._begun.append({})
            for here, body in self._visits(run):
                worked = self._values.body(body)
                self._begun[-1][here] = _Begun(len(self._made), worked)
                self._write(worked, here, len(self._made))
        return Section(name=section.name, events=tuple(self._events), num_keys=len(self._made), left=self._left)

    def _visits(self, run: Run) -> list[tuple[int, Body]]:
        if run.stack < 0:
            return [(0, run.bodies[0])]
        stack, depth = self._stacks[run.stack], self._depths[run.stack]
        numbers = range(depth - 1, -1, -1) if run.descending else range(depth)
        return [(number, run.bodies[stack.body_index(number, depth)]) for number in numbers]

    def _write(self, worked: _Worked, here: int, base: int) -> None:
        holders = [self._holder(form, here) for form in worked.forms]
        slots = [name_of(text, here, self._depths) for text in worked.texts]
        made, append = self._made, self._events.append
        new = partial(tuple.__new__, SectionEvent)
        for action, local, nbytes, phase, form, text, target in worked.rows:
            slot = slots[text] if text >= 0 else ""
            if action == "alloc":
                key = base + local
                holder = holders[form] if form >= 0 else None
                if slot:
                    self._left[slot] = key
                made.append((nbytes, holder))
                append(new((action, key, nbytes, phase, holder, slot)))
            elif local < 0 and target is None:
                append(new((action, -1, 0, phase, None, slot)))
            else:
                key = base + local if target is None else self._key_of(target, here)
                append(new((action, key, made[key][0], phase, made[key][1], slot)))

    def _key_of(self, target: Target, here: int) -> int:
        run, place, tag = target
        number = place.number(here, self._depths[self._runs[run].stack]) if place is not None else 0
        base, worked = self._begun[run][number]
        return base + worked.by_tag[tag]

    def _holder(self, form: HolderForm, here: int) -> Holder:
        module, name = name_of(form.module, here, self._depths), name_of(form.name, here, self._depths)
        holder = self._holders.get((id(form), module, name))
        if holder is None:
            holder = self._holders[id(form), module, name] = self._values.holder(form, module, name)
        return holder
