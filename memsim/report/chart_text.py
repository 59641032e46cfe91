"""A timeline drawn with characters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from memsim.report.chart import step_starts
from memsim.step import StepTrace
from memsim.step.timeline import Moment, Timeline, timeline_of
from memsim.units import format_bytes

_EIGHTHS = "▁▂▃▄▅▆▇█"
_NUM_ROWS = 10
_USUAL_COLUMNS = 100
"""Columns of a drawing that goes to a file or a pipe."""
_LABEL_COLUMNS = 12


def timeline_parts(trace: StepTrace, width: int | None) -> Iterator[Text]:
    """Yield a drawing of allocated and reserved bytes over the events of a trace, phases and steps below.

    Raises:
        MemsimError: the trace is not whole.
    """
    room = min(width or _USUAL_COLUMNS, _USUAL_COLUMNS * 2) - _LABEL_COLUMNS - 1
    timeline = timeline_of(trace, room)
    if not timeline.moments:
        yield Text("\nNothing was allocated.")
        return
    yield Text(f"\nAllocated █ and reserved ░ over {timeline.num_events:,} events of the allocator", style="bold")
    times = room // len(timeline.moments)
    yield from map(Text, _rows(timeline, times))
    yield Text(f"{'0 B':>{_LABEL_COLUMNS - 1}} └{'─' * (times * len(timeline.moments))}")
    names = [(stretch.first_event, stretch.phase.value) for stretch in timeline.stretches]
    steps = [(stretch.first_event, f"step {stretch.step}") for stretch in step_starts(timeline.stretches)]
    for marks in (names, steps):
        yield Text(" " * (_LABEL_COLUMNS + 1) + _marked(marks, timeline.moments, times))


def _rows(timeline: Timeline, times: int) -> Iterator[str]:
    """Yield the rows from the top; a column is full up to its bytes, in eighths of a row, and drawn `times` times."""
    top = max(timeline.reserved_peak_bytes, timeline.peak.allocated_bytes, 1)
    allocated = [-(-moment.allocated_bytes * _NUM_ROWS * 8 // top) for moment in timeline.moments]
    reserved = [-(-moment.reserved_bytes * _NUM_ROWS // top) for moment in timeline.moments]
    for row in reversed(range(_NUM_ROWS)):
        cells = (times * _cell(level - 8 * row, rows > row) for level, rows in zip(allocated, reserved, strict=True))
        label = format_bytes(top) if row == _NUM_ROWS - 1 else format_bytes(top // 2) if row == _NUM_ROWS // 2 else ""
        yield f"{label:>{_LABEL_COLUMNS - 1}} {'┤' if label else '│'}{''.join(cells)}".rstrip()


def _cell(eighths: int, is_reserved: bool) -> str:
    if eighths > 0:
        return _EIGHTHS[min(eighths, 8) - 1]
    return "░" if is_reserved else " "


def _marked(marks: Sequence[tuple[int, str]], moments: Sequence[Moment], times: int) -> str:
    """Return a line with a bar and a word where each range of events begins, cut where the next one does."""
    starts = [times * _column(event, moments) for event, _ in marks]
    num_columns = times * len(moments)
    line = [" "] * num_columns
    for index, (start, (_, word)) in enumerate(zip(starts, marks, strict=True)):
        end = starts[index + 1] if index + 1 < len(starts) else num_columns
        text = f"│{word}"[: max(end - start, 1)]
        line[start : start + len(text)] = text
    return "".join(line).rstrip()


def _column(event_index: int, moments: Sequence[Moment]) -> int:
    """Return the column that shows an event."""
    return max((column for column, moment in enumerate(moments) if moment.first_event <= event_index), default=0)
