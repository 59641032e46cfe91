"""`StepProgram`: a training step of one model as exact rules, good for any batch size, length and depth it covers.

What a program covers rests on how PyTorch chooses kernels: by thresholds, which a growing batch or length crosses once,
and by alignment, which a length repeats after at most `LENGTH_PERIOD`. A point is covered where two recorded points of
the same events, one at most and one at least as large in both, have lengths of the same class as it. Nothing else is:
where memsim does not know, it says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from memsim.errors import MemsimError
from memsim.step.align import Alignment, align
from memsim.step.expand import expand
from memsim.step.fit import Point, monomials_at
from memsim.step.fitted import NotFittedError, fitted
from memsim.step.fold import Folded, fold
from memsim.step.reduction import Processors
from memsim.step.rules import Condition
from memsim.step.section import Section, SectionEvent, in_order_of_birth

LENGTH_PERIOD = 64
"""Tokens after which every alignment repeats that a kernel asks for (tiles of attention and of matrix products)."""
SHOWN_REASONS = 2


class NotCoveredError(MemsimError):
    """A point or depth that a program cannot answer for; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """Points at which the same events happen, by the same rules."""

    points: tuple[Point, ...]
    """Where it was recorded."""
    folded: Folded
    """Its events."""
    doubts: tuple[Condition, ...] = ()
    """Where one of these holds, something happens that was not recorded."""

    def covers(self, point: Point, processors: Processors) -> bool:
        """Whether two recorded points with lengths of its class enclose a point, and nothing is in doubt there."""
        if any(doubt.holds(monomials_at(point), processors) for doubt in self.doubts):
            return False
        alike = [p for p in self.points if (p.seq_len - point.seq_len) % LENGTH_PERIOD == 0]
        below = any(p.batch_size <= point.batch_size and p.seq_len <= point.seq_len for p in alike)
        return below and any(p.batch_size >= point.batch_size and p.seq_len >= point.seq_len for p in alike)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgram:
    """Forward and backward of a model, without an optimizer."""

    processors: Processors
    """The device that it was recorded for."""
    regimes: tuple[Regime, ...]
    """What it knows; those with more points first."""
    depths: Mapping[str, int] = field(default_factory=dict)
    """Number of layers of the whole model, by the path of the stack, where the recording had fewer."""
    unexplained: tuple[str, ...] = ()
    """Numbers that follow no rule known here; the points they were recorded at are known all the same."""
    model_class: str = ""
    """Class of the recorded model."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of torch and transformers."""
    notes: tuple[str, ...] = ()
    """What was assumed or special about the recording, in sentences for the user."""

    def covers(self, batch_size: int, seq_len: int) -> str:
        """Return why a point is not covered; empty if it is."""
        point = Point(batch_size, seq_len)
        if any(regime.covers(point, self.processors) for regime in self.regimes):
            return ""
        known = ", ".join(f"{p.batch_size} x {p.seq_len}" for regime in self.regimes for p in regime.points)
        why = " ".join(self.unexplained[:SHOWN_REASONS])
        return f"batch size {batch_size} and length {seq_len} are not between recorded points ({known}). {why}".strip()

    def evaluate(self, batch_size: int, seq_len: int, layers: Mapping[str, int] | None = None) -> tuple[Section, ...]:
        """Return `load`, `first`, `accumulate` and `steady` at a batch size and a length.

        Args:
            batch_size: sequences of a micro-batch.
            seq_len: tokens of each; where the model takes none, the one that it was recorded with.
            layers: number of layers by the path of the stack, other than the model's own.

        Raises:
            NotCoveredError: nothing was recorded that would tell.
        """
        point = Point(batch_size, seq_len)
        regime = next((regime for regime in self.regimes if regime.covers(point, self.processors)), None)
        if regime is None:
            raise NotCoveredError(self.covers(batch_size, seq_len))
        depths = depths_for(regime.folded, {**self.depths, **(layers or {})})
        return expand(regime.folded, point, depths, self.processors)


def joined(known: StepProgram, more: StepProgram) -> StepProgram:
    """Return what two programs of one model and device tell together; `more` is asked first.

    Raises:
        ValueError: they are of different models, devices or versions.
    """
    of_known, of_more = ((p.processors, p.model_class, dict(p.versions)) for p in (known, more))
    if of_known != of_more:
        raise ValueError(f"programs of {of_known} and {of_more} cannot be joined")
    told = {point for regime in more.regimes for point in regime.points}
    kept = tuple(regime for regime in known.regimes if not told.issuperset(regime.points))
    return replace(more, regimes=(*more.regimes, *kept), depths={**known.depths, **more.depths})


def depths_for(folded: Folded, wanted: Mapping[str, int]) -> list[int]:
    """Return the depth of each folded stack.

    Raises:
        NotCoveredError: a stack was recorded with another number of layers and is not folded, or does not repeat so.
    """
    known = {stack.path: stack for stack in folded.stacks}
    for path, depth in wanted.items():
        stack = known.get(path)
        if stack is None:
            recorded = next((one.num_layers for one in folded.unfolded if one.path == path), depth)
            if recorded != depth:
                raise NotCoveredError(f"{path} was recorded with {recorded} layers, which do not repeat, not {depth}.")
        elif (depth - stack.num_recorded) % stack.period or depth < stack.head + stack.period + stack.tail:
            least = stack.head + stack.period + stack.tail
            raise NotCoveredError(
                f"{path} repeats after {stack.period} layers, from {least} up: {depth} layers are not "
                f"{stack.num_recorded} and a multiple of {stack.period}."
            )
    return [wanted.get(stack.path, stack.num_recorded) for stack in folded.stacks]


def regimes_of(
    recordings: Mapping[Point, Sequence[Section]], processors: Processors, periods: Mapping[str, int] | None = None
) -> tuple[tuple[Regime, ...], tuple[str, ...]]:
    """Return what recordings of one model at several points tell, and what could not be explained.

    Points with the same events are one regime if one set of rules fits them all; else those with a single sequence, and
    those of each class of lengths, are tried apart. A point that fits nowhere is known as it was recorded.
    """
    regimes: list[Regime] = []
    unexplained: list[str] = []
    for alignment in align(recordings):
        for part in _parts(alignment, recordings, processors, periods or {}):
            if isinstance(part, str):
                unexplained.append(part)
            else:
                regimes.append(part)
    regimes.sort(key=lambda regime: -len(regime.points))
    return tuple(regimes), tuple(unexplained)


def _parts(
    alignment: Alignment,
    recordings: Mapping[Point, Sequence[Section]],
    processors: Processors,
    periods: Mapping[str, int],
) -> Iterator[Regime | str]:
    todo = [alignment]
    while todo:
        current = todo.pop(0)
        try:
            found = fitted(current, processors)
            yield Regime(points=current.points, folded=fold(found.sections, periods), doubts=found.doubts)
        except NotFittedError as error:
            parts = _split(current.points, error.apart)
            if max(map(len, parts)) == 1:
                yield str(error)
            for points in parts:
                todo += align({point: recordings[point] for point in points})


def _is_single(point: Point) -> bool:
    return point.batch_size == 1


def _length_class(point: Point) -> int:
    return point.seq_len % LENGTH_PERIOD


def _itself(point: Point) -> Point:
    return point


def _split(points: Sequence[Point], apart: Sequence[bool]) -> list[list[Point]]:
    """Return the points in smaller groups: as `apart` says, else single sequences, else by class of length, or each."""
    if apart:
        pairs = list(zip(points, apart, strict=True))
        return [[point for point, here in pairs if here], [point for point, here in pairs if not here]]
    keys: tuple[Callable[[Point], object], ...] = (_is_single, _length_class, _itself)
    for key in keys:
        groups: dict[object, list[Point]] = defaultdict(list)
        for point in points:
            groups[key(point)].append(point)
        if len(groups) > 1:
            return list(groups.values())
    raise AssertionError("a single point always has constants")


def _told(event: SectionEvent) -> tuple[object, ...]:
    holder = event.holder
    about = (holder.category, holder.module, holder.name) if holder is not None else None
    return (event.action, event.key, event.nbytes, event.phase, event.slot, about)


def _shown(event: SectionEvent) -> str:
    of = f" of {event.holder.category.value} in {event.holder.module or 'no module'}" if event.holder else ""
    return f"{event.action} of {event.nbytes:,} bytes{of}{f' ({event.slot})' if event.slot else ''}"


def difference(program: StepProgram, point: Point, recorded: Sequence[Section], layers: Mapping[str, int]) -> str:
    """Return how a program differs from a recording at a point and depth; empty if it tells every event.

    Holders are compared by category, module and name, shapes where both are known; see also `in_order_of_birth`.
    """
    try:
        told = program.evaluate(*point, layers)
    except NotCoveredError as error:
        return str(error)
    for mine, theirs in zip(told, recorded, strict=True):
        both = zip(in_order_of_birth(mine.events), in_order_of_birth(theirs.events), strict=False)
        for index, (one, other) in enumerate(both):
            if _told(one) != _told(other):
                return f"event {index} of {mine.name} is {_shown(one)}, recorded was {_shown(other)}."
            mine_shape, their_shape = (event.holder.shape if event.holder else None for event in (one, other))
            if mine_shape and their_shape and mine_shape != their_shape:
                return f"event {index} of {mine.name} has the shape {mine_shape}, recorded was {their_shape}."
        if len(mine.events) != len(theirs.events) or dict(mine.left) != dict(theirs.left):
            return f"{mine.name} has {len(mine.events)} events, recorded were {len(theirs.events)}."
    return ""
