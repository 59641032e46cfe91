"""`Chart`: what a picture of a timeline shows, whoever draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memsim.ledger import Category
from memsim.report.held import tensor_name
from memsim.step import StepTrace, TraceEvent
from memsim.step.held import Held
from memsim.step.peaks import HeldTensor
from memsim.step.timeline import Moment, Stretch, Timeline, timeline_of
from memsim.units import format_bytes

COLORS = {
    Category.PARAMETER: "#4c72b0",
    Category.BUFFER: "#8c8c8c",
    Category.OPTIMIZER_STATE: "#8172b3",
    Category.GRADIENT: "#dd8452",
    Category.ACTIVATION: "#55a868",
    Category.INPUT: "#64b5cd",
    Category.WORKSPACE: "#937860",
    Category.COMMUNICATION: "#da8bc3",
    Category.TEMPORARY: "#c44e52",
}
"""Category and colour, from the bottom of the stack to its top: what stays lies below what comes and goes."""

_NOT_KNOWN = ("not known", "#cccccc")

_NUM_MOMENTS = 1000
_NUM_TENSORS = 3
_MOST_TICKS = 6
_MOST_CHARACTERS = 110
"""Of a line in the picture: a dry run's title is a whole command."""
_FAR = 2
"""A capacity of more than so many times the peak would press everything else to the ground: it is only told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A part of the stack."""

    name: str
    """A category, or `not known`: what was there before the first event."""
    color: str
    """As `#rrggbb`."""
    lower_bytes: tuple[int, ...]
    """Where it begins, one for each moment."""
    upper_bytes: tuple[int, ...]
    """Where it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Allocated bytes by category and reserved bytes over the events of a run."""

    title: str
    """What ran."""
    timeline: Timeline
    """The run."""
    layers: tuple[Layer, ...]
    """Every category that has bytes, from the bottom."""
    top_bytes: int
    """Upper end of the axis of bytes."""
    tick_bytes: tuple[int, ...]
    """Where the axis has a label."""
    capacity_bytes: int | None
    """Where the device ends; `None` where that is not known or far above."""
    capacity_text: str
    """What is said of it; empty where it is not known."""
    marked: Moment
    """The moment that is told about: the peak, or the failed request."""
    note: tuple[str, ...]
    """What is told: how much it is and the largest tensors, a line each."""


def chart_of(title: str, trace: StepTrace, held: Held, *, capacity_bytes: int | None = None) -> Chart | None:
    """Return what to draw of a trace; `None` of one without an event.

    Args:
        title: what ran.
        trace: every event.
        held: who held memory at the peak, or when memory ran out.
        capacity_bytes: what the allocator can have of the device, where that is known.

    Raises:
        MemsimError: the trace is not whole.
    """
    timeline = timeline_of(trace, _NUM_MOMENTS)
    if not timeline.moments:
        return None
    highest = max(timeline.reserved_peak_bytes, timeline.peak.allocated_bytes, 1)
    at_end = held.moment == "out_of_memory"
    near = capacity_bytes is not None and (at_end or capacity_bytes <= _FAR * highest)
    top = max(highest, capacity_bytes if near and capacity_bytes is not None else 0)
    return Chart(
        title=_cut(title),
        timeline=timeline,
        layers=_layers(timeline.moments),
        top_bytes=top + top // 20,
        tick_bytes=_ticks(top),
        capacity_bytes=capacity_bytes if near else None,
        capacity_text=_capacity_text(capacity_bytes, near=near),
        marked=timeline.moments[-1] if at_end else timeline.peak,
        note=_note(held, trace.events[-1]),
    )


def _layers(moments: Sequence[Moment]) -> tuple[Layer, ...]:
    layers: list[Layer] = []
    lower = (0,) * len(moments)
    for name, color in (*((category.value, color) for category, color in COLORS.items()), _NOT_KNOWN):
        upper = tuple(low + _part(moment, name) for low, moment in zip(lower, moments, strict=True))
        if upper != lower:
            layers.append(Layer(name=name, color=color, lower_bytes=lower, upper_bytes=upper))
            lower = upper
    return tuple(layers)


def _part(moment: Moment, name: str) -> int:
    if name == _NOT_KNOWN[0]:
        return moment.allocated_bytes - sum(moment.by_category.values())
    return moment.by_category.get(name, 0)


def _ticks(top_bytes: int) -> tuple[int, ...]:
    """Return labels at multiples of a power of two, so that each is a short text: `4.00 GiB`."""
    step = 1
    while top_bytes // step > _MOST_TICKS:
        step *= 2
    return tuple(range(0, top_bytes + 1, step))


def _capacity_text(capacity_bytes: int | None, *, near: bool) -> str:
    if capacity_bytes is None:
        return ""
    return f"the allocator can have {format_bytes(capacity_bytes)}{'' if near else ' (above the picture)'}"


def _note(held: Held, last: TraceEvent) -> tuple[str, ...]:
    what = "peak" if held.moment == "peak" else "out of memory at"
    asked = f": {format_bytes(last.nbytes)} more asked" if last.action == "oom" else ""
    lines = (_told(tensor) for tensor in held.tensors[:_NUM_TENSORS])
    return f"{what} {format_bytes(held.allocated_bytes)}{asked}", *map(_cut, lines)


def _told(tensor: HeldTensor) -> str:
    holder, name = tensor.holder, tensor_name(tensor)
    words = [format_bytes(tensor.allocated_bytes), holder.category.value, "" if name == "-" else name]
    words += [f"{holder.dtype} {list(holder.shape)}"] if holder.shape is not None else []
    return " ".join(filter(None, words))


def _cut(text: str) -> str:
    """Return a text that every drawing can hold: short, and `?` for what cannot be printed."""
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."


def short_phase(phase: str, room: int) -> str:
    """Return as much of a phase's name as `room` characters hold, a whole one or an abbreviation of three or one."""
    return phase if len(phase) <= room else phase[: 3 if room >= 3 else max(room, 0)]


def step_starts(stretches: Sequence[Stretch]) -> tuple[Stretch, ...]:
    """Return the first stretch of every step."""
    return tuple(
        stretch for index, stretch in enumerate(stretches) if index == 0 or stretches[index - 1].step != stretch.step
    )
