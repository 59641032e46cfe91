"""Layers that do the same are written once: a recording of few layers then stands for any number of them.

A section is cut where the first event of another layer comes: what follows, to the next cut, is that layer's body. The
layers of a stack are visited in runs, ascending in forward and descending in backward. Where middle layers have equal
bodies in all runs, with every reference to another layer counted from the layer itself, one period of them is kept, and
the layers before and after it as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from memsim.ledger import Phase
from memsim.step.fit import Polynomial
from memsim.step.fitted import FittedEvent, FittedSection, HolderRule, PairRule
from memsim.step.layers import Place, Stack, Text, place_of, repetition, stacks_in, text_of
from memsim.step.rules import Condition, ReductionRule, Rule
from memsim.step.section import SectionName
from memsim.step.trace import Holder


class HolderForm(NamedTuple):
    """A holder at any point and depth."""

    holder: Holder
    """All but module, name and shape."""
    module: Text
    name: Text
    shape: tuple[Polynomial, ...] | None


class PairForm(NamedTuple):
    """A pair of blocks, as in `PairRule`."""

    outer: Rule | None
    inner: Rule | None
    reduction: ReductionRule | None
    outer_holder: HolderForm | None
    inner_holder: HolderForm | None


class Target(NamedTuple):
    """The block that is let go."""

    run: int
    """The run that made it, counted in its section."""
    place: Place | None
    """The layer that made it; `None` in a run without layers."""
    tag: str
    """Which of the allocations there: its tag."""


class Form(NamedTuple):
    """An event of a body."""

    target: Target | None
    """For a free of a block of this section; `None` for an alloc, and for the free of what an earlier section left."""
    tag: str
    """Of an alloc: category, module within the layer, and how many of these came before it. A count of all would differ
    where the first layer alone makes something, a workspace for instance."""
    nbytes: Rule | None
    """Of an alloc."""
    phase: Phase
    holder: HolderForm | None
    """Of an alloc."""
    slot: Text | None
    condition: Condition | None
    pairs: tuple[PairForm, ...]


Body = tuple[Form, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedStack:
    """A stack with equal layers in its middle."""

    path: str
    """Path of the list that holds the layers."""
    num_recorded: int
    """Layers of the recording; a depth that differs from it by a multiple of `period` is covered."""
    head: int
    """Layers before the equal ones."""
    period: int
    """Layers after which the middle repeats."""
    tail: int
    """Layers after the equal ones."""

    def body_index(self, number: int, num_layers: int) -> int:
        """Return which of a run's bodies layer `number` of `num_layers` has: head, one period, tail."""
        if number < self.head:
            return number
        if number >= num_layers - self.tail:
            return self.head + self.period + number - (num_layers - self.tail)
        return self.head + (number - self.head) % self.period


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Visits of the layers of a stack in order, or a stretch without layers."""

    stack: int
    """Index of the stack; -1: no layers."""
    descending: bool
    """Whether it begins with the last layer."""
    bodies: tuple[Body, ...]
    """Of the head's layers, of one period and of the tail's layers; a single one without layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedSection:
    """A section at any point and depth."""

    name: SectionName
    """Which part."""
    runs: tuple[Run, ...]
    """In order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """All sections, and the stacks whose depth may change."""

    stacks: tuple[FoldedStack, ...]
    """What was folded."""
    unfolded: tuple[Stack, ...]
    """Lists of modules whose number cannot change, because they differ or are not used one after the other."""
    sections: tuple[FoldedSection, ...]
    """In the order of a run."""


class _Visit(NamedTuple):
    """Events from a layer's first to the next layer's first."""

    layer: tuple[int, int] | None
    """Stack and number."""
    start: int
    end: int


class _Unfoldable(Exception):  # noqa: N818 - it never leaves this module
    """A stack whose layers are not visited in order, or do not repeat."""

    def __init__(self, stack: int) -> None:
        super().__init__(stack)
        self.stack = stack


def fold(sections: Sequence[FittedSection], periods: Mapping[str, int] | None = None) -> Folded:
    """Return the sections with equal layers folded, of inner stacks where those of the outer one differ.

    Args:
        sections: of one recording, or of several laid side by side.
        periods: after how many layers the kinds of a stack repeat, by path, where that is known.
    """
    holders = [event.holder.holder for section in sections for event in section.events if event.holder is not None]
    found = stacks_in(holders)
    candidates = list(found)
    while True:
        stacks = [s for s in candidates if not any(s.path.startswith(c.prefix) for c in candidates if c is not s)]
        try:
            folded = _Folder(sections, stacks, periods or {}).folded()
        except _Unfoldable as error:
            candidates.remove(stacks[error.stack])
            continue
        prefixes = tuple(stack.prefix for stack in stacks)
        return replace(folded, unfolded=tuple(s for s in found if s not in stacks and not s.path.startswith(prefixes)))


class _Folder:
    """Folds the given stacks, all of them or none."""

    def __init__(self, sections: Sequence[FittedSection], stacks: Sequence[Stack], periods: Mapping[str, int]) -> None:
        self._periods = periods
        self._sections = sections
        self._stacks = stacks
        self._runs = [self._runs_of(section) for section in sections]
        self._made = [self._allocations(s, runs) for s, runs in zip(sections, self._runs, strict=True)]

    def folded(self) -> Folded:
        stacks = tuple(self._folded_stack(index) for index in range(len(self._stacks)))
        sections = [
            FoldedSection(name=section.name, runs=tuple(self._run(number, run, stacks) for run in self._runs[number]))
            for number, section in enumerate(self._sections)
        ]
        return Folded(stacks=stacks, unfolded=(), sections=tuple(sections))

    def _runs_of(self, section: FittedSection) -> list[list[_Visit]]:
        runs: list[list[_Visit]] = []
        for visit in self._with_sweeps(section.events, list(self._visits(section.events))):
            if runs and _follows(runs[-1], visit):
                runs[-1].append(visit)
            else:
                runs.append([visit])
        for run in runs:
            layer = run[0].layer
            if layer is not None and len(run) != self._stacks[layer[0]].num_layers:
                raise _Unfoldable(layer[0])
        return runs

    def _visits(self, events: Sequence[FittedEvent]) -> Iterable[_Visit]:
        layer: tuple[int, int] | None = None
        start = 0
        for index, event in enumerate(events):
            found = self._layer_of(event.holder.holder) if event.action == "alloc" and event.holder else None
            if index > start and event.phase is not events[index - 1].phase:
                yield _Visit(layer, start, index)  # forward ends and backward begins with the same layer
                layer, start = None, index
            if found is not None and found != layer:
                if index > start:
                    yield _Visit(layer, start, index)
                layer, start = found, index
        if len(events) > start:
            yield _Visit(layer, start, len(events))

    def _with_sweeps(self, events: Sequence[FittedEvent], visits: Sequence[_Visit]) -> Iterator[_Visit]:
        """Yield the visits, and those of a sweep apart: blocks of every layer let go one layer after the other.

        A key-value cache goes so at the end of forward, without anything made in between.
        """
        maker = {
            events[index].key: visit.layer
            for visit in visits
            for index in range(visit.start, visit.end)
            if events[index].action == "alloc"
        }
        for visit in visits:
            start = visit.start
            freed = [maker.get(e.key) if e.action == "free" else None for e in events[start : visit.end]]
            for sweep in _sweeps(freed, self._stacks):
                if visit.start + sweep[0].start > start:
                    yield _Visit(visit.layer if start == visit.start else None, start, visit.start + sweep[0].start)
                for part in sweep:
                    yield _Visit(part.layer, visit.start + part.start, visit.start + part.end)
                start = visit.start + sweep[-1].end
            if visit.end > start:
                yield _Visit(visit.layer if start == visit.start else None, start, visit.end)

    def _layer_of(self, holder: Holder) -> tuple[int, int] | None:
        for index, stack in enumerate(self._stacks):
            found = stack.number_in(holder.module)
            if found is not None:
                return index, found[0]
        return None

    def _allocations(
        self, section: FittedSection, runs: Sequence[Sequence[_Visit]]
    ) -> dict[int, tuple[int, tuple[int, int] | None, str]]:
        """Return for every key of a section the run, the layer and the tag of its allocation."""
        made = {}
        for number, run in enumerate(runs):
            for visit in run:
                counts: Counter[str] = Counter()
                for event in section.events[visit.start : visit.end]:
                    if event.action == "alloc":
                        label = self._label(event)
                        made[event.key] = (number, visit.layer, f"{label}:{counts[label]}")
                        counts[label] += 1
        return made

    def _label(self, event: FittedEvent) -> str:
        if event.holder is None:
            return ""
        module = event.holder.holder.module
        rest = next((f[1] for f in (stack.number_in(module) for stack in self._stacks) if f is not None), module)
        return f"{event.holder.holder.category.value}:{rest}"

    def _folded_stack(self, index: int) -> FoldedStack:
        """Return where the layers of a stack repeat, seen over all of its runs."""
        stack = self._stacks[index]
        contents: list[list[Body]] = [[] for _ in range(stack.num_layers)]
        for section, runs in enumerate(self._runs):
            for run in runs:
                if run[0].layer is not None and run[0].layer[0] == index:
                    for visit in run:
                        assert visit.layer is not None
                        contents[visit.layer[1]].append(self._body(section, visit, fixed=False))
        known: list[list[Body]] = []
        for content in contents:
            if content not in known:
                known.append(content)
        found = repetition([known.index(content) for content in contents], self._periods.get(stack.path))
        if found is None:
            raise _Unfoldable(index)
        head, period, end = found
        return FoldedStack(
            path=stack.path,
            num_recorded=stack.num_layers,
            head=head,
            period=period,
            tail=stack.num_layers - end,
        )

    def _run(self, section: int, run: Sequence[_Visit], stacks: Sequence[FoldedStack]) -> Run:
        layer = run[0].layer
        if layer is None:
            return Run(stack=-1, descending=False, bodies=(self._body(section, run[0], fixed=True),))
        stack = stacks[layer[0]]
        by_number = {visit.layer[1]: visit for visit in run if visit.layer is not None}
        middle = range(stack.head, stack.head + stack.period)
        numbers = [*range(stack.head), *middle, *range(stack.num_recorded - stack.tail, stack.num_recorded)]
        inner = {n: self._body(section, by_number[n], fixed=False) for n in middle}
        usual = frozenset(form.target for body in inner.values() for form in body if form.target is not None)
        return Run(
            stack=layer[0],
            descending=layer[1] > 0,
            bodies=tuple(
                inner[n] if n in inner else self._body(section, by_number[n], fixed=True, usual=usual) for n in numbers
            ),
        )

    def _body(self, section: int, visit: _Visit, *, fixed: bool, usual: frozenset[Target] = frozenset()) -> Body:
        """Return a visit's events; `usual` are the targets of middle layers, which a layer at an end has too."""
        events = self._sections[section].events[visit.start : visit.end]
        forms = []
        for event in events:
            form = self._form(section, event, visit.layer, fixed=fixed)
            if form.target is not None and usual:
                seen_from_here = self._target(section, event, visit.layer, fixed=False)
                form = form._replace(target=seen_from_here) if seen_from_here in usual else form
            forms.append(form)
        return tuple(forms)

    def _target(self, section: int, event: FittedEvent, here: tuple[int, int] | None, *, fixed: bool) -> Target:
        run, layer, tag = self._made[section][event.key]
        place = place_of(layer[1], layer[0], self._stacks, here, fixed=fixed) if layer is not None else None
        return Target(run, place, tag)

    def _form(self, section: int, event: FittedEvent, here: tuple[int, int] | None, *, fixed: bool) -> Form:
        slot = text_of(event.slot, self._stacks, here, fixed=fixed) if event.slot else None
        pairs = tuple(self._pair(pair, here, fixed=fixed) for pair in event.pairs)
        if event.action == "free":
            target = self._target(section, event, here, fixed=fixed) if event.key >= 0 else None
            return Form(target, "", None, event.phase, None, slot, event.condition, pairs)
        holder = self._holder(event.holder, here, fixed=fixed)
        tag = self._made[section][event.key][2]
        return Form(None, tag, event.nbytes, event.phase, holder, slot, event.condition, pairs)

    def _pair(self, pair: PairRule, here: tuple[int, int] | None, *, fixed: bool) -> PairForm:
        return PairForm(
            pair.outer,
            pair.inner,
            pair.reduction,
            self._holder(pair.outer_holder, here, fixed=fixed),
            self._holder(pair.inner_holder, here, fixed=fixed),
        )

    def _holder(self, rule: HolderRule | None, here: tuple[int, int] | None, *, fixed: bool) -> HolderForm | None:
        if rule is None:
            return None
        return HolderForm(
            replace(rule.holder, module="", name=""),
            text_of(rule.holder.module, self._stacks, here, fixed=fixed),
            text_of(rule.holder.name, self._stacks, here, fixed=fixed),
            rule.shape,
        )


def _sweeps(layers: Sequence[tuple[int, int] | None], stacks: Sequence[Stack]) -> Iterator[list[_Visit]]:
    """Yield the stretches in which all layers of a stack come one after the other, first to last or last to first."""
    groups: list[_Visit] = []
    for index, layer in enumerate(layers):
        if groups and groups[-1].layer == layer:
            groups[-1] = groups[-1]._replace(end=index + 1)
        else:
            groups.append(_Visit(layer, index, index + 1))
    place = 0
    while place < len(groups):
        layer = groups[place].layer
        length = stacks[layer[0]].num_layers if layer is not None else 1
        found = groups[place : place + length]
        if layer is not None and [group.layer for group in found] in _orders(layer[0], length):
            yield found
            place += length
        else:
            place += 1


def _orders(stack: int, length: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    ascending = [(stack, number) for number in range(length)]
    return ascending, ascending[::-1]


def _follows(run: Sequence[_Visit], visit: _Visit) -> bool:
    """Whether a visit goes on with a run: the same stack, the next layer in the same direction."""
    last = run[-1].layer
    if last is None or visit.layer is None or last[0] != visit.layer[0]:
        return False
    step = visit.layer[1] - last[1]
    before = run[-2].layer if len(run) > 1 else None
    return abs(step) == 1 if before is None else step == last[1] - before[1]
