"""What a program was doing at each event of a history, as far as the history tells.

PyTorch notes when `Optimizer.step` and `zero_grad` begin and end; before it did, the code that ran says as much. The
threads of backward begin in PyTorch's own code, if they run Python at all; an allocation without any code, in a
history that has code, is theirs too. What a module's `to` or `cuda` makes is loading. A step ends with the next
allocation after the optimizer's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from memsim.ledger import Phase
from memsim.snapshot_file.snapshot import Annotation, Frame, LoggedEvent


class Moment(NamedTuple):
    """Where an event belongs."""

    step: int
    phase: Phase


def tells_phases(events: Sequence[LoggedEvent]) -> bool:
    """Return whether a history was recorded with the code that ran."""
    return any(event.frames for event in events if event.action == "alloc")


def moments(events: Sequence[LoggedEvent], annotations: Sequence[Annotation]) -> list[Moment]:
    """Return step and phase of every event; without code in the history all of it is forward, but for the optimizer."""
    with_code = tells_phases(events)
    named = _named_spans(annotations)
    boundary = next(named, None)
    inside: Phase | None = None
    step, phase = 1, Phase.LOAD if with_code else Phase.FORWARD
    stepped = False
    result = []
    for event in events:
        while boundary is not None and boundary[0] <= event.time_us:
            inside = boundary[1]
            boundary = next(named, None)
        current = inside or (_phase_of(event, phase) if with_code else Phase.FORWARD)
        if event.action == "alloc" or inside is not None:
            if stepped and current in {Phase.FORWARD, Phase.BACKWARD}:
                step, stepped = step + 1, False
            stepped = stepped or current is Phase.OPTIMIZER_STEP
            phase = current
        result.append(Moment(step, phase))
    return result


def _named_spans(annotations: Iterable[Annotation]) -> Iterator[tuple[int, Phase | None]]:
    """Yield when the optimizer's work begins, with its phase, and when it ends, with none."""
    for annotation in sorted(annotations, key=lambda a: a.time_us):
        kind = annotation.name.partition("#")[0]
        phase = {"Optimizer.step": Phase.OPTIMIZER_STEP, "Optimizer.zero_grad": Phase.ZERO_GRAD}.get(kind)
        if phase is not None:
            yield annotation.time_us, phase if annotation.starts else None


def _phase_of(event: LoggedEvent, phase: Phase) -> Phase:
    if event.action != "alloc":
        return phase
    if not event.frames or "/torch/" in event.frames[-1].filename:
        return Phase.BACKWARD
    if any("/torch/optim/" in frame.filename and frame.name == "step" for frame in event.frames):
        return Phase.OPTIMIZER_STEP
    if any(_is_moving(frame) for frame in event.frames):
        return Phase.LOAD
    return Phase.FORWARD


def _is_moving(frame: Frame) -> bool:
    return frame.name == "_apply" and frame.filename.endswith("torch/nn/modules/module.py")
