"""Results as tables for a person's terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from memsim.results import Estimate, Estimates
from memsim.units import format_bytes

_PLAIN_WIDTH = 400
"""Columns of output that goes to a file or a pipe: wide enough that nothing is folded."""


def render_estimates(
    estimates: Estimates, *, details: bool = False, width: int | None = None, color: bool = False
) -> str:
    """Return one line per optimizer, and under them what was assumed and what is missing.

    Where the lines do not fit into `width` columns, each optimizer has a block of its own. With `details`, every state
    entry of every parameter follows.
    """
    table = plain_table(_COLUMNS)
    for estimate in estimates:
        table.add_row(*_cells(estimate))
    figures = (table,) if _fits(table, width) else tuple(_block(estimate) for estimate in estimates)
    parts = (*_heading(estimates[0]), *figures, *_notes(estimates), *(_details(estimates) if details else ()))
    return render_parts(parts, width=width, color=color)


_COLUMNS = (
    "optimizer",
    "parameters",
    "buffers",
    "gradients",
    "state",
    "static total",
    "bytes/param",
    "step() adds",
    "on host",
)


def _cells(estimate: Estimate) -> tuple[str | Text, ...]:
    static, step = estimate.static, estimate.optimizer_step
    return (
        estimate.config.optimizer.name,
        format_bytes(static.parameter_bytes),
        format_bytes(static.buffer_bytes),
        format_bytes(static.gradient_bytes),
        format_bytes(static.optimizer_state_bytes),
        Text(format_bytes(static.device_bytes), style="bold"),
        f"{estimate.bytes_per_parameter:.2f}",
        format_bytes(step.later_step_peak_bytes) if step else "not known",
        format_bytes(static.optimizer_state_host_bytes),
    )


def _block(estimate: Estimate) -> Table:
    """Return the figures of one optimizer below each other."""
    block = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    block.add_column(no_wrap=True)
    block.add_column(justify="right", no_wrap=True)
    name, *figures = _cells(estimate)
    block.add_row(Text(str(name), style="bold"))
    for column, figure in zip(_COLUMNS[1:], figures, strict=True):
        block.add_row(f"  {column}", figure)
    return block


def _fits(table: Table, width: int | None) -> bool:
    if width is None:
        return True
    console = Console(width=_PLAIN_WIDTH, file=StringIO())
    return Measurement.get(console, console.options, table).maximum <= width


def _heading(estimate: Estimate) -> tuple[Text, ...]:
    model, config = estimate.model, estimate.config
    kind = f"{model.model_class or 'class not known'}{f' ({config.task})' if config.task else ''}, {config.dtype}"
    counts = f"{model.num_parameters:,} parameters in {model.num_parameter_tensors:,} tensors"
    if model.num_trainable_parameters != model.num_parameters:
        counts += f", {model.num_trainable_parameters:,} of them trained"
    return Text(model.name, style="bold"), Text(f"{kind}; {counts}\n")


def _notes(estimates: Estimates) -> Iterable[Text]:
    """Yield the assumptions and the gaps of all estimates, each sentence once."""
    assumptions = dict.fromkeys(sentence for estimate in estimates for sentence in estimate.assumptions)
    if assumptions:
        yield Text("\nAssumed", style="bold")
        yield from (Text(f"  - {sentence}") for sentence in assumptions)
    gaps = dict.fromkeys(f"{gap.what} ({gap.where}): {gap.reason}" for est in estimates for gap in est.unmodeled)
    if gaps:
        yield Text("\nNot in these figures", style="bold yellow")
        yield from (Text(f"  - {gap}") for gap in gaps)


def _details(estimates: Estimates) -> Iterable[Table | Text]:
    for estimate in estimates:
        yield Text(
            f"\nOptimizer state, {estimate.config.optimizer.name} ({estimate.optimizer.class_path})", style="bold"
        )
        table = plain_table(("parameter", "entry", "shape", "dtype", "device", "bytes"))
        for row in estimate.state_rows():
            table.add_row(row.parameter, row.name, str(list(row.shape)), row.dtype, row.device, f"{row.nbytes:,}")
        yield table


def render_rows(columns: Sequence[str], rows: Iterable[Sequence[str]], *, width: int | None, color: bool) -> str:
    """Return a plain table: the first column to the left, numbers to the right."""
    table = plain_table(columns)
    for row in rows:
        table.add_row(*row)
    return render_parts((table,), width=width, color=color)


def render_facts(facts: Iterable[tuple[str, str]], *, width: int | None, color: bool) -> str:
    """Return `name  value` lines, names aligned; empty values are left out."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        if value:
            table.add_row(name, value)
    return render_parts((table,), width=width, color=color)


def plain_table(columns: Sequence[str]) -> Table:
    """Return an empty table: the first column to the left, the others to the right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index == 0 else "right", overflow="fold")
    return table


def render_parts(parts: Iterable[Table | Text], *, width: int | None, color: bool) -> str:
    """Return tables and lines as text; sentences wrap at `width` columns, tables keep their own."""
    file = StringIO()
    console = Console(
        file=file,
        width=width or _PLAIN_WIDTH,
        force_terminal=color,
        no_color=not color,
        highlight=False,
        markup=False,  # names in square brackets are names
        legacy_windows=False,
    )
    for part in parts:
        # A figure that is broken in two is worse than a line that the terminal wraps.
        console.print(part, width=_PLAIN_WIDTH if isinstance(part, Table) else None, crop=False)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"
