"""A dry run as text: how it ended, what held the memory, and the peaks of its phases."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from memsim.dry_run.result import DryRun
from memsim.report.chart import Chart, chart_of
from memsim.report.held import held_parts, oom_lines, phase_parts
from memsim.report.page import render_page
from memsim.report.tables import render_parts
from memsim.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table

_ENDINGS = {
    "stopped": "ended by memsim after {steps}",
    "finished": "came to its end after {steps}",
    "out_of_memory": "ran out of memory after {steps}",
    "failed": "failed after {steps} (exit code {code})",
    "timed_out": "was ended when its time was up, after {steps}",
}


def render_dry_run(run: DryRun, *, width: int | None = None, color: bool = False) -> str:
    """Return the peaks, who held them, the ten largest tensors, every phase, and what was assumed."""
    return render_parts((*_heading(run), *_rest(run)), width=width, color=color)


def dry_run_page(run: DryRun) -> str:
    """Return the same as a web page, with the run's timeline if its events are there."""
    chart = [found for found in (dry_run_chart(run),) if found is not None] if run.trace is not None else []
    return render_page(shlex.join(run.command), (*_heading(run), *chart, *_rest(run)))


def dry_run_chart(run: DryRun) -> Chart | None:
    """Return the picture of a run's timeline; `None` where nothing was allocated.

    Raises:
        OutputError: the run was read from a file without its events.
    """
    trace = run.whole_trace()
    return chart_of(f"{shlex.join(run.command)} on {run.device.name}", trace, run.held, capacity_bytes=None)


def _rest(run: DryRun) -> Iterator[Table | Text]:
    yield from _failure(run)
    yield from held_parts(run.held)
    yield from phase_parts(run.phases)
    yield from _notes(run)


def _heading(run: DryRun) -> Iterator[Text]:
    device, peak = run.device, run.peak
    steps = f"{run.num_steps} optimizer step{'' if run.num_steps == 1 else 's'}"
    yield Text(shlex.join(run.command), style="bold")
    yield Text(_ENDINGS[run.ending].format(steps=steps, code=run.exit_code))
    yield Text(
        f"imaginary {device.name}, {format_bytes(device.total_bytes)}, compute capability "
        f"{device.compute_capability}; torch {device.torch_version}\n"
    )
    share = f"{peak.device_bytes / device.total_bytes:.1%} of the GPU"
    yield Text(f"peak allocated  {format_bytes(peak.allocated_bytes)}  (step {peak.step}, {peak.phase.value})")
    yield Text(f"peak reserved   {format_bytes(peak.reserved_bytes)}  ({share}; nvidia-smi adds the CUDA context)")
    growth = run.growth_bytes
    if growth is not None:
        last = run.num_steps
        text = "the same peak" if not growth else f"{format_bytes(abs(growth))} {'more' if growth > 0 else 'less'}"
        yield Text(
            f"training step {last - 1} to {last}  {text}{': later steps may take more still' if growth > 0 else ''}"
        )


def _failure(run: DryRun) -> Iterator[Text]:
    oom = run.oom
    if oom is None:
        return
    if run.ending != "out_of_memory":
        times = "once" if run.num_ooms == 1 else f"{run.num_ooms} times"
        yield Text(f"\nRan out of memory {times}, and went on", style="bold yellow")
    else:
        yield Text("\nOut of memory", style="bold red")
    yield from oom_lines(oom)
    for index, sentence in enumerate(run.advice):
        yield Text(f"  {'change first' if index == 0 else '            '}  {sentence}")


def _notes(run: DryRun) -> Iterator[Text]:
    yield Text("\nAssumed", style="bold")
    yield from (Text(f"  - {sentence}") for sentence in run.assumptions)
    yield Text("\nNot in these figures", style="bold yellow")
    yield from (Text(f"  - {gap.what} ({gap.where}): {gap.reason}") for gap in run.unmodeled)
