"""`memsim report FILE`."""

from __future__ import annotations

import click

from memsim.cli.dry_run import write_dry_run
from memsim.cli.output import Output, output_options
from memsim.comparison import Comparison
from memsim.dry_run.result import DryRun
from memsim.report.chart import Chart, chart_of
from memsim.report.comparison import render_comparison
from memsim.report.estimates import render_estimates
from memsim.report.simulated_run import render_simulated_run, simulated_run_chart, simulated_run_page
from memsim.results import Estimates
from memsim.saved import load
from memsim.simulated_run import SimulatedRun
from memsim.snapshot import snapshot_bytes
from memsim.step.held import held
from memsim.step.peaks import occupancy


@click.command("report", short_help="Render a saved result again.")
@click.argument("file", type=click.Path())
@click.option("--details", is_flag=True, help="List every state entry of every parameter, or every large tensor.")
@output_options
def command(*, file: str, details: bool, output: Output) -> None:
    """Render FILE, a result that memsim saved as JSON, in another format."""
    result = load(file)
    if isinstance(result, DryRun):
        write_dry_run(result, output, details=details)
        return
    if isinstance(result, SimulatedRun):
        write_simulated_run(result, output, details=details)
        return
    if isinstance(result, Comparison):
        write_comparison(result, output, details=details)
        return
    estimates = result if isinstance(result, Estimates) else Estimates((result,))
    output.write(
        table=lambda width, color: render_estimates(estimates, details=details, width=width, color=color),
        data=lambda: result.to_dict(details=details),
        frame=lambda: estimates.to_frame(details=details),
    )


def write_comparison(comparison: Comparison, output: Output, *, details: bool) -> None:
    """Write a comparison in the asked format; `.pickle` is a snapshot of what was measured, `.svg` a picture."""
    output.write(
        table=lambda width, color: render_comparison(comparison, details=details, width=width, color=color),
        data=lambda: comparison.to_dict(details=details),
        frame=lambda: comparison.to_frame(details=details),
        snapshot=lambda: snapshot_bytes(comparison.whole_trace()),
        chart=lambda: _chart(comparison),
    )


def write_simulated_run(run: SimulatedRun, output: Output, *, details: bool) -> None:
    """Write a simulated run in the asked format."""
    output.write(
        table=lambda width, color: render_simulated_run(run, details=details, width=width, color=color),
        data=lambda: run.to_dict(details=details),
        frame=lambda: run.to_frame(details=details),
        snapshot=lambda: snapshot_bytes(run.trace),
        chart=lambda: simulated_run_chart(run),
        page=lambda: simulated_run_page(run),
    )


def _chart(comparison: Comparison) -> Chart | None:
    trace = comparison.whole_trace()
    title = f"{comparison.model}, measured on {trace.device.name}"
    return chart_of(title, trace, held(occupancy(trace).held, "peak"))
