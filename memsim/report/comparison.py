"""A comparison as text: the verdict, what was predicted and measured, the state by key, where they differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from memsim.comparison import ComparedRow, Comparison, relative_error
from memsim.report.tables import plain_table, render_parts
from memsim.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table

_DEVICES = {"cuda": "", "imaginary": "imaginary ", "cpu": "", "mps": "", "xpu": ""}
_LOOPS = {"plain": "plain loop", "accelerate": "Accelerate loop", "trainer": "Trainer loop", "own": "your own loop"}


def render_comparison(
    comparison: Comparison, *, details: bool = False, width: int | None = None, color: bool = False
) -> str:
    """Return the verdict, every judged figure, the optimizer state by key, the differences by module, the notes.

    With `details`, what was measured but not predicted is listed too.
    """
    parts: tuple[Table | Text, ...] = (
        *_heading(comparison),
        *_failure(comparison),
        *_rows(comparison, details=details),
        *_state(comparison),
        *_modules(comparison),
        *_notes(comparison),
    )
    return render_parts(parts, width=width, color=color)


def _heading(comparison: Comparison) -> Iterator[Text]:
    device, peak = comparison.hardware, comparison.peak
    yield Text(comparison.model, style="bold")
    versions = ", ".join(f"{name} {version}" for name, version in comparison.versions.items())
    steps = f"{comparison.num_steps} optimizer step{'' if comparison.num_steps == 1 else 's'}"
    yield Text(f"{_LOOPS[comparison.loop]}, {steps}, on {_DEVICES[comparison.device]}{device.name}; {versions}")
    yield Text(comparison.verdict, style="bold green" if comparison.passed else "bold red")
    yield Text("")
    predicted = "not predicted" if peak.predicted_bytes is None else f"predicted {format_bytes(peak.predicted_bytes)}"
    yield Text(f"peak allocated  {format_bytes(peak.measured_bytes)}  ({predicted})")
    if peak.measured_reserved_bytes != peak.measured_bytes:
        reserved = peak.predicted_reserved_bytes
        predicted = "not predicted" if reserved is None else f"predicted {format_bytes(reserved)}"
        yield Text(f"peak reserved   {format_bytes(peak.measured_reserved_bytes)}  ({predicted})")
    if peak.measured_device_bytes is not None:
        yield Text(f"device in use   {format_bytes(peak.measured_device_bytes)}  (as its driver says)")


def _failure(comparison: Comparison) -> Iterator[Text]:
    oom = comparison.oom
    if oom is None:
        return
    where = f"step {oom.step}, {oom.phase.value}{f', {oom.module}' if oom.module else ''}"
    yield Text("\nOut of memory", style="bold red")
    yield Text(f"  asked  {format_bytes(oom.asked_bytes)} in {where}")
    yield Text(f"  free   {format_bytes(oom.free_bytes)} of {format_bytes(oom.total_bytes)}")
    yield Text(f"  held   {format_bytes(oom.allocated_bytes)} in tensors")


def _rows(comparison: Comparison, *, details: bool) -> Iterable[Table | Text]:
    if comparison.judged:
        yield Text("\nPredicted and measured", style="bold")
        table = plain_table(("phase", "step", "moment", "category", "predicted", "measured", "difference", "", ""))
        for row in comparison.judged:
            table.add_row(*_place(row), *_figures(row.predicted_bytes, row.measured_bytes), _judgement(row, comparison))
        yield table
    others = [row for row in comparison.rows if row.predicted_bytes is None]
    if details and others:
        yield Text("\nMeasured, not predicted", style="bold")
        table = plain_table(("phase", "step", "moment", "category", "measured"))
        for row in others:
            table.add_row(*_place(row), format_bytes(row.measured_bytes))
        yield table


def _place(row: ComparedRow) -> tuple[str, ...]:
    return row.phase.value, str(row.step), row.moment, row.category.value


def _judgement(row: ComparedRow, comparison: Comparison) -> Text:
    return Text("ok") if row.within(comparison.tolerance) else Text("wrong", style="bold red")


def _figures(predicted: int | None, measured: int) -> tuple[str, ...]:
    """Return the cells predicted, measured, difference and its share."""
    if predicted is None:
        return "not predicted", format_bytes(measured), "", ""
    error = relative_error(predicted, measured) or 0.0
    return format_bytes(predicted), format_bytes(measured), f"{predicted - measured:+,}", f"{error:+.2%}"


def _state(comparison: Comparison) -> Iterable[Table | Text]:
    if not comparison.optimizer_state:
        return
    yield Text("\nOptimizer state by key (bytes of its tensors)", style="bold")
    table = plain_table(("key", "predicted", "measured", "difference", ""))
    for state in comparison.optimizer_state:
        table.add_row(state.name, *_figures(state.predicted_bytes, state.measured_bytes))
    yield table


def _modules(comparison: Comparison) -> Iterable[Table | Text]:
    if not comparison.modules:
        return
    yield Text("\nLargest differences by module", style="bold")
    table = plain_table(("module", "category", "predicted", "measured", "difference", ""))
    for module in comparison.modules:
        table.add_row(module.module, module.category.value, *_figures(module.predicted_bytes, module.measured_bytes))
    yield table


def _notes(comparison: Comparison) -> Iterator[Text]:
    if comparison.notes:
        yield Text("\nTo know", style="bold")
        yield from (Text(f"  - {sentence}") for sentence in comparison.notes)
