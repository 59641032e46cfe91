"""Results as tables for a person's terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO

from rich import box
from rich.console import Console
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

    With `details`, every state entry of every parameter follows.
    """
    first = estimates[0]
    table = plain_table(
        (
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
    )
    for estimate in estimates:
        static = estimate.static
        table.add_row(
            estimate.config.optimizer.name,
            format_bytes(static.parameter_bytes),
            format_bytes(static.buffer_bytes),
            format_bytes(static.gradient_bytes),
            format_bytes(static.optimizer_state_bytes),
            Text(format_bytes(static.device_bytes), style="bold"),
            f"{estimate.bytes_per_parameter:.2f}",
            format_bytes(estimate.optimizer_step.later_step_peak_bytes) if estimate.optimizer_step else "not known",
            format_bytes(static.optimizer_state_host_bytes),
        )
    parts = (*_heading(first), table, *_notes(estimates), *(_details(estimates) if details else ()))
    return render_parts(parts, width=width, color=color)


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
    """Return tables and lines as text of at most `width` columns."""
    file = StringIO()
    console = Console(
        file=file,
        width=width or _PLAIN_WIDTH,
        force_terminal=color,
        no_color=not color,
        highlight=False,
        legacy_windows=False,
    )
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"
