"""A chart as SVG: nothing but text, no font or script from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence

from memsim.report.chart import Chart, short_phase, step_starts
from memsim.step.timeline import Stretch
from memsim.units import format_bytes

_WIDTH, _HEIGHT = 1200, 640
_LEFT, _RIGHT, _TOP, _BOTTOM = 100, 1180, 80, 560
_CHARACTER = 6.6
"""Width of a character of 11 pixels, to tell whether a word has room."""
_RESERVED = "#222222"
_CAPACITY = "#b00020"


def render_svg(chart: Chart) -> str:
    """Return a chart as an SVG document; every name in it is escaped."""
    parts = [
        *_phases(chart),
        *_axes(chart),
        *_stack(chart),
        *_reserved(chart),
        *_capacity(chart),
        *_mark(chart),
        *_legend(chart),
    ]
    title = _text(_LEFT, 28, chart.title, size=16, more=' font-weight="bold"')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'font-family="sans-serif">\n<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>\n'
        + "\n".join([title, *parts])
        + "\n</svg>\n"
    )


def escaped(text: str) -> str:
    """Return a text for HTML and SVG; what cannot be shown, which XML forbids in part, becomes a question mark."""
    return html.escape("".join(character if character.isprintable() else "?" for character in text))


def _x(chart: Chart, event_index: int) -> float:
    return round(_LEFT + (_RIGHT - _LEFT) * event_index / chart.timeline.num_events, 1)


def _y(chart: Chart, nbytes: int) -> float:
    return round(_BOTTOM - (_BOTTOM - _TOP) * nbytes / chart.top_bytes, 1)


def _text(x: float, y: float, text: str, *, size: int = 11, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"{more}>{escaped(text)}</text>'


def _phases(chart: Chart) -> Iterator[str]:
    """Yield a band for every phase, every second one shaded, with as much of its name as it has room for."""
    for index, stretch in enumerate(chart.timeline.stretches):
        x, end = _x(chart, stretch.first_event), _x(chart, stretch.end_event)
        fill = "#f0f0f0" if index % 2 else "#fafafa"
        yield (
            f'<rect x="{x:g}" y="{_TOP}" width="{end - x:.1f}" height="{_BOTTOM - _TOP}" fill="{fill}">'
            f"<title>{escaped(_phase_text(stretch))}</title></rect>"
        )
        name = short_phase(stretch.phase.value, int((end - x) / _CHARACTER))
        if name:
            yield _text((x + end) / 2, _TOP - 6, name, anchor="middle")
    yield from _steps(chart)


def _phase_text(stretch: Stretch) -> str:
    return f"step {stretch.step}, {stretch.phase.value}"


def _steps(chart: Chart) -> Iterator[str]:
    """Yield a line and a label where each step begins."""
    for stretch in step_starts(chart.timeline.stretches):
        x = _x(chart, stretch.first_event)
        yield f'<path d="M{x:g} {_TOP - 34}V{_BOTTOM}" stroke="#bbbbbb" fill="none"/>'
        yield _text(x + 4, _TOP - 22, f"step {stretch.step}")


def _axes(chart: Chart) -> Iterator[str]:
    for nbytes in chart.tick_bytes:
        y = _y(chart, nbytes)
        yield f'<path d="M{_LEFT} {y:g}H{_RIGHT}" stroke="#dddddd" fill="none"/>'
        yield _text(_LEFT - 8, y + 4, format_bytes(nbytes), anchor="end")
    num = chart.timeline.num_events
    yield _text((_LEFT + _RIGHT) / 2, _BOTTOM + 20, f"{num:,} events of the allocator, in order", anchor="middle")


def _stack(chart: Chart) -> Iterator[str]:
    for layer in chart.layers:
        upper = _stairs(chart, layer.upper_bytes)
        lower = reversed(_stairs(chart, layer.lower_bytes))
        points = " ".join(f"{x:g},{y:g}" for x, y in (*upper, *lower))
        yield f'<polygon points="{points}" fill="{layer.color}"><title>{layer.name}</title></polygon>'


def _stairs(chart: Chart, nbytes: Sequence[int]) -> list[tuple[float, float]]:
    """Return the corners of a line that is level over each moment; level ones in a row have two corners."""
    corners: list[tuple[float, float]] = []
    ends = [*(moment.first_event for moment in chart.timeline.moments[1:]), chart.timeline.num_events]
    for moment, end, value in zip(chart.timeline.moments, ends, nbytes, strict=True):
        y = _y(chart, value)
        if corners and corners[-1][1] == y:
            corners[-1] = (_x(chart, end), y)
        else:
            corners += [(_x(chart, moment.first_event), y), (_x(chart, end), y)]
    return corners


def _reserved(chart: Chart) -> Iterator[str]:
    corners = _stairs(chart, [moment.reserved_bytes for moment in chart.timeline.moments])
    points = " ".join(f"{x:g},{y:g}" for x, y in corners)
    yield f'<polyline points="{points}" fill="none" stroke="{_RESERVED}"><title>reserved</title></polyline>'


def _capacity(chart: Chart) -> Iterator[str]:
    if chart.capacity_bytes is not None:
        y = _y(chart, chart.capacity_bytes)
        yield f'<path d="M{_LEFT} {y:g}H{_RIGHT}" stroke="{_CAPACITY}" stroke-dasharray="8 4" fill="none"/>'


def _mark(chart: Chart) -> Iterator[str]:
    """Yield a ring at the told moment, and what is told beside it, on the side that has more room."""
    x, y = _x(chart, chart.marked.event_index), _y(chart, chart.marked.allocated_bytes)
    yield f'<circle cx="{x:g}" cy="{y:g}" r="5" fill="none" stroke="{_CAPACITY}" stroke-width="2"/>'
    right = x > (_LEFT + _RIGHT) / 2
    longest = max(map(len, chart.note)) * _CHARACTER + 12
    left = x - longest - 12 if right else x + 12
    top = min(max(y, _TOP + 4), _BOTTOM - 16 * len(chart.note) - 12)
    yield (
        f'<rect x="{left:.1f}" y="{top:g}" width="{longest:.1f}" height="{16 * len(chart.note) + 8}" '
        f'fill="#ffffff" fill-opacity="0.85" stroke="#bbbbbb"/>'
    )
    for index, line in enumerate(chart.note):
        weight = "" if index else ' font-weight="bold"'
        yield _text(round(left + 6, 1), top + 17 + 16 * index, line, more=weight)


def _legend(chart: Chart) -> Iterator[str]:
    entries = [(layer.color, layer.name) for layer in chart.layers]
    entries.append((_RESERVED, "reserved"))
    entries += [(_CAPACITY, chart.capacity_text)] if chart.capacity_text else []
    yield from _entries(entries)


def _entries(entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    x = float(_LEFT)
    for color, name in entries:
        yield f'<rect x="{x:g}" y="{_BOTTOM + 40}" width="12" height="12" fill="{color}"/>'
        yield _text(x + 17, _BOTTOM + 50, name)
        x = round(x + 17 + _CHARACTER * len(name) + 16, 1)
