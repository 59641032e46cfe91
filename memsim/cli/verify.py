"""`memsim verify MODEL`."""

from __future__ import annotations

import sys
from typing import Any, get_args

import click

from memsim.cli.options import model_argument, step_options, step_source_option
from memsim.cli.output import CHECK_FAILED, Output, output_options
from memsim.cli.progress import progress
from memsim.cli.report import write_comparison
from memsim.comparison import DEFAULT_TOLERANCE
from memsim.config import TrainingConfig
from memsim.errors import UsageError
from memsim.programs import StepSource, default_source
from memsim.verifying import VerifyDevice, VerifyOptions, verify_by_name, verify_snapshot


@click.command("verify", short_help="One real step against the prediction.")
@model_argument
@step_options
@click.option(
    "--device",
    type=click.Choice(get_args(VerifyDevice)),
    help="Where the steps run: a real GPU, PyTorch's CUDA build on an imaginary one, or really computed on the CPU "
    "[default: the first that is there].",
)
@click.option("--steps", type=int, default=2, show_default=True, metavar="N", help="Optimizer steps.")
@click.option(
    "--tolerance",
    metavar="PERCENT",
    default=f"{DEFAULT_TOLERANCE:.0%}",
    show_default=True,
    help="Largest difference that passes: 1% or 0.01.",
)
@click.option(
    "--snapshot",
    type=click.Path(),
    metavar="FILE",
    help="Compare with a log of your own GPU (torch.cuda.memory._dump_snapshot) instead of running anything.",
)
@step_source_option
@click.option("--details", is_flag=True, help="List what was measured and not predicted, and keep every event in JSON.")
@output_options
def command(
    *,
    model: str,
    configs: list[TrainingConfig],
    snapshot: str | None,
    step: StepSource | None,
    details: bool,
    output: Output,
    **how: Any,
) -> None:
    """Run real training steps of MODEL, measure them, and compare with what was predicted before.

    The model is built from its configuration with random weights; nothing is downloaded but the configuration.
    Exit code 3: a figure lies outside --tolerance.
    """
    if len(configs) > 1:
        raise UsageError("verify runs one training at a time: give one --optimizer and one --alloc-conf.")
    options = _options(**how)
    source = default_source() if step is None else step
    with progress(output) as tell:
        if snapshot is not None:
            comparison = verify_snapshot(model, configs[0], options, snapshot, source=source, progress=tell)
        else:
            comparison = verify_by_name(model, configs[0], options, source=source, progress=tell)
    write_comparison(comparison, output, details=details)
    if not comparison.passed:
        sys.exit(CHECK_FAILED)


def _options(*, device: VerifyDevice | None, steps: int, tolerance: str) -> VerifyOptions:
    return VerifyOptions(device=device, num_steps=steps, tolerance=_fraction(tolerance))


def _fraction(text: str) -> float:
    """Return `1%` and `0.01` as the fraction that they are."""
    percent = text.strip().endswith("%")
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        raise UsageError(f"--tolerance {text!r} is no number: give 1% or 0.01.") from None
    value = value / 100 if percent else value
    if not 0 <= value < 1:
        raise UsageError(f"--tolerance {text!r}: give 0% to 100%, as in 1% or 0.01.")
    return value
