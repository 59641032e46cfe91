"""A chart as PNG, drawn by matplotlib."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

from memsim.errors import MissingPackageError
from memsim.report.chart import Chart, short_phase, step_starts
from memsim.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INCHES = (12.0, 6.4)
_DPI = 120
_CHARACTERS = 150
"""Small characters that the picture is wide."""
_PLAIN: dict[str, Any] = {"fontsize": 8, "parse_math": False}
"""Names may hold dollar signs, which matplotlib would read as formulas."""


def render_png(chart: Chart) -> bytes:
    """Return a chart as PNG.

    Raises:
        MissingPackageError: matplotlib is not there.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            f"a .png needs the package {error.name or 'matplotlib'!r}: pip install 'memsim[plot]', "
            "or write a .svg or .html, which need nothing."
        ) from error
    figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    _draw(figure.add_subplot(), chart)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in another script is drawn as boxes
        figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _draw(axes: Axes, chart: Chart) -> None:
    _draw_phases(axes, chart)
    _draw_bytes(axes, chart)
    _tell(axes, chart)
    num = chart.timeline.num_events
    axes.set_xlim(0, num)
    axes.set_ylim(0, chart.top_bytes)
    axes.set_yticks(chart.tick_bytes, [format_bytes(nbytes) for nbytes in chart.tick_bytes], fontsize=8)
    axes.set_xticks([])
    axes.set_xlabel(f"{num:,} events of the allocator, in order", fontsize=8)
    axes.set_title(chart.title, pad=18, fontsize=11, loc="left", parse_math=False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=6, fontsize=8, frameon=False)


def _draw_phases(axes: Axes, chart: Chart) -> None:
    timeline = chart.timeline
    for index, stretch in enumerate(timeline.stretches):
        axes.axvspan(stretch.first_event, stretch.end_event, color="#f0f0f0" if index % 2 else "#fafafa", zorder=0)
        share = (stretch.end_event - stretch.first_event) / timeline.num_events
        middle = (stretch.first_event + stretch.end_event) / 2
        name = short_phase(stretch.phase.value, int(share * _CHARACTERS))
        axes.text(middle, chart.top_bytes, name, ha="center", va="bottom", **_PLAIN)
    for stretch in step_starts(timeline.stretches):
        axes.axvline(stretch.first_event, color="#bbbbbb", linewidth=1, zorder=1)
        axes.annotate(
            f"step {stretch.step}",
            (stretch.first_event, 1),
            (4, -12),
            ("data", "axes fraction"),
            "offset points",
            fontsize=8,
        )


def _draw_bytes(axes: Axes, chart: Chart) -> None:
    moments = chart.timeline.moments
    edges = [*(moment.first_event for moment in moments), chart.timeline.num_events]
    for layer in chart.layers:
        lower, upper = ((*nbytes, nbytes[-1]) for nbytes in (layer.lower_bytes, layer.upper_bytes))
        axes.fill_between(edges, lower, upper, step="post", color=layer.color, linewidth=0, label=layer.name)
    reserved = [moment.reserved_bytes for moment in moments]
    axes.step(edges, [*reserved, reserved[-1]], where="post", color="#222222", linewidth=1, label="reserved")
    if chart.capacity_bytes is not None:
        axes.axhline(chart.capacity_bytes, color="#b00020", linestyle="--", linewidth=1, label=chart.capacity_text)
    elif chart.capacity_text:
        axes.plot([], [], color="#b00020", linestyle="--", linewidth=1, label=chart.capacity_text)


def _tell(axes: Axes, chart: Chart) -> None:
    """Write what is told of the marked moment beside it, on the sides that have more room."""
    mark = chart.marked
    to_left = mark.event_index > chart.timeline.num_events / 2
    upward = mark.allocated_bytes < chart.top_bytes / 2
    axes.annotate(
        "\n".join(chart.note),
        (mark.event_index, mark.allocated_bytes),
        xytext=(-12 if to_left else 12, 8 if upward else -8),
        textcoords="offset points",
        ha="right" if to_left else "left",
        va="bottom" if upward else "top",
        multialignment="left",
        bbox={"boxstyle": "round", "facecolor": "white", "edgecolor": "#bbbbbb", "alpha": 0.85},
        **_PLAIN,
    )
    axes.plot([mark.event_index], [mark.allocated_bytes], "o", color="#b00020", fillstyle="none")
