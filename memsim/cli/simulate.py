"""`memsim simulate MODEL`."""

from __future__ import annotations

import sys

import click

from memsim.cli.estimate import require_certainty
from memsim.cli.options import check_options, model_argument, step_options, step_source_option
from memsim.cli.output import CHECK_FAILED, Output, output_options
from memsim.cli.progress import progress
from memsim.cli.report import write_simulated_run
from memsim.config import TrainingConfig
from memsim.errors import UsageError
from memsim.programs import StepSource
from memsim.results import Estimates
from memsim.simulator import simulate


@click.command("simulate", short_help="The same step as a timeline: every alloc and free.")
@model_argument
@step_options
@step_source_option
@click.option("--details", is_flag=True, help="List the allocator's events, in CSV and its like instead of the phases.")
@check_options
@output_options
def command(
    *,
    model: str,
    configs: list[TrainingConfig],
    step: StepSource | None,
    fits: bool,
    details: bool,
    strict: bool,
    output: Output,
) -> None:
    """Replay the loading of MODEL and two training steps, alloc by alloc, through PyTorch's caching allocator.

    On the terminal the timeline is drawn with characters. -o FILE writes it as .svg, .png or .html, every event as
    .json or (with --details) .csv or .parquet, and a snapshot for pytorch.org/memory_viz as .pickle. Where memory of
    the --gpu runs out, the timeline ends there.
    """
    config = _the_one(configs)
    with progress(output) as tell:
        run = simulate(model, config, step=step, progress=tell)
    if strict:
        require_certainty(Estimates((run.estimate,)))
    write_simulated_run(run, output, details=details)
    if fits and run.oom is not None:
        sys.exit(CHECK_FAILED)


def _the_one(configs: list[TrainingConfig]) -> TrainingConfig:
    if len(configs) > 1:
        raise UsageError(
            f"memsim simulate shows one step, and {len(configs)} were asked for: give one --optimizer and one "
            "--alloc-conf.\nmemsim estimate compares several side by side."
        )
    return configs[0]
