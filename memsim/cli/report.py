"""`memsim report FILE`."""

from __future__ import annotations

import click

from memsim.cli.dry_run import write_dry_run
from memsim.cli.output import Output, output_options
from memsim.comparison import Comparison
from memsim.dry_run.result import DryRun
from memsim.report.comparison import render_comparison
from memsim.report.estimates import render_estimates
from memsim.results import Estimates
from memsim.saved import load


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
    """Write a comparison in the asked format; `.pickle` is a snapshot of what was measured."""
    from memsim.snapshot import snapshot_bytes

    output.write(
        table=lambda width, color: render_comparison(comparison, details=details, width=width, color=color),
        data=lambda: comparison.to_dict(details=details),
        frame=lambda: comparison.to_frame(details=details),
        snapshot=lambda: snapshot_bytes(comparison.whole_trace()),
    )
