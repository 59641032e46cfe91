"""A simulated run as text, as a web page and as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from rich.text import Text

from memsim.report.chart import Chart, chart_of
from memsim.report.chart_text import timeline_parts
from memsim.report.estimates import heading, notes, verdict
from memsim.report.held import held_parts, oom_lines, phase_parts
from memsim.report.page import render_page
from memsim.report.tables import plain_table, render_parts
from memsim.results import Estimates
from memsim.simulated_run import SimulatedRun
from memsim.step import TraceEvent
from memsim.step.timeline import running_bytes
from memsim.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table

_MOST_EVENTS = 1000
"""Events that a table lists; a step of a large model has tens of thousands."""


def render_simulated_run(
    run: SimulatedRun, *, details: bool = False, width: int | None = None, color: bool = False
) -> str:
    """Return the run's timeline drawn with characters, its phases and where its peak is; with `details` its events."""
    parts = (
        *_figures(run),
        *timeline_parts(run.trace, width),
        *phase_parts(run.simulation.phases),
        *(held_parts(run.simulation.held) if run.oom is not None else ()),
        *notes(Estimates((run.estimate,))),
        *(_events(run) if details else ()),
    )
    return render_parts(parts, width=width, color=color)


def simulated_run_page(run: SimulatedRun) -> str:
    """Return the run as a web page of its own: timeline, phases, who held the peak, the largest tensors."""
    chart = simulated_run_chart(run)
    parts = (
        *_figures(run),
        *([chart] if chart is not None else []),
        *phase_parts(run.simulation.phases),
        *held_parts(run.simulation.held),
        *notes(Estimates((run.estimate,))),
    )
    return render_page(_title(run), parts)


def simulated_run_chart(run: SimulatedRun) -> Chart | None:
    """Return the picture of the run; `None` where nothing was allocated."""
    return chart_of(_title(run), run.trace, run.simulation.held, capacity_bytes=run.capacity_bytes)


def _title(run: SimulatedRun) -> str:
    config = run.estimate.config
    length = f" x {config.seq_len} tokens" if config.seq_len is not None else ""
    return f"{run.estimate.model.name}, batch {config.batch_size}{length}, {config.optimizer.name}"


def _figures(run: SimulatedRun) -> Iterator[Text]:
    """Yield the model, the peaks, where they are, and whether all of it fits."""
    estimate, peak = run.estimate, run.simulation.peak
    yield from heading(estimate)
    config = estimate.config
    settings = f"settings {config.alloc_conf}" if config.alloc_conf else "default settings"
    yield Text(f"{config.optimizer.name}; allocator of torch {run.trace.device.torch_version}, {settings}\n")
    yield Text(f"peak allocated  {format_bytes(peak.allocated_bytes)}  (step {peak.step}, {peak.phase.value})")
    yield Text(f"peak reserved   {format_bytes(peak.reserved_bytes)}")
    yield Text(f"nvidia-smi      {format_bytes(peak.device_bytes)}")
    yield Text(f"\n{run.simulation.why}")
    yield from verdict(estimate.fit)
    if run.oom is not None:
        yield Text("\nOut of memory", style="bold red")
        yield from oom_lines(run.oom)


def _events(run: SimulatedRun) -> Iterator[Table | Text]:
    events = run.trace.events
    allocated, reserved = running_bytes(run.trace)
    yield Text("\nEvents of the allocator", style="bold")
    table = plain_table(("event", "step", "phase", "action", "bytes", "allocated", "reserved", "what"))
    for index, event in enumerate(islice(events, _MOST_EVENTS)):
        table.add_row(
            str(index),
            str(event.step),
            event.phase.value,
            event.action,
            f"{event.nbytes:,}",
            f"{allocated[index]:,}",
            f"{reserved[index]:,}",
            _what(event),
        )
    yield table
    if len(events) > _MOST_EVENTS:
        yield Text(f"{len(events) - _MOST_EVENTS:,} more events: --details -o FILE.csv writes all of them.")


def _what(event: TraceEvent) -> str:
    holder = event.holder
    if holder is None:
        return ""
    shape = f"{holder.dtype} {list(holder.shape)}" if holder.shape is not None else ""
    return " ".join(filter(None, (holder.category.value, holder.name or holder.module, holder.op, shape)))
