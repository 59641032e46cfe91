"""`memsim estimate MODEL`."""

from __future__ import annotations

import sys

import click

from memsim.cli.options import check_options, model_argument, step_options, step_source_option
from memsim.cli.output import CHECK_FAILED, Output, output_options
from memsim.cli.progress import progress
from memsim.config import TrainingConfig
from memsim.errors import MemsimError
from memsim.estimator import estimate_all
from memsim.gpus import find_gpu
from memsim.programs import StepSource, default_source
from memsim.report.estimates import render_estimates
from memsim.results import Estimates


@click.command("estimate", short_help="Memory of one training step.")
@model_argument
@step_options
@step_source_option
@click.option("--details", is_flag=True, help="List every phase, and every state entry of every parameter.")
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
    """Tell how much memory one training step of MODEL takes, before anything runs: its peak, and what holds it.

    MODEL is a catalog name (distilbert-base-cased; see 'memsim catalog'), a hub id (org/name, org/name@revision) or
    a folder that holds config.json. Several --optimizer or --alloc-conf compare side by side. Forward and backward are
    recorded once on an imaginary GPU ('memsim imaginary-gpu install') and kept; other batches, lengths of the same
    remainder by 64, optimizers and GPUs of the same kind then need no new recording.
    """
    with progress(output) as tell:
        estimates = estimate_all(model, configs, step=step, progress=tell)
    for reason in dict.fromkeys(e.unmodeled[0].reason for e in estimates if e.whole_step is None and e.unmodeled):
        if step != "off" and default_source() != "off":
            output.note(f"memsim: only what stays between steps is in the figures: {reason}")
    if strict:
        require_certainty(estimates)
    output.write(
        table=lambda width, color: render_estimates(estimates, details=details, width=width, color=color),
        data=lambda: (estimates[0] if len(estimates) == 1 else estimates).to_dict(details=details),
        frame=lambda: estimates.to_frame(details=details),
    )
    if fits:
        _require_fit(estimates)


def _require_fit(estimates: Estimates) -> None:
    """End with exit code 3 where an estimate does not fit, and as an error where that is not known."""
    unknown = [estimate for estimate in estimates if estimate.fit is None]
    if any(e.static.device_bytes > find_gpu(e.config.gpu).memory_bytes for e in unknown if e.config.gpu is not None):
        sys.exit(CHECK_FAILED)  # what stays between steps is too much already
    if unknown:
        raise MemsimError(f"--fits: whether it fits is not known. {unknown[0].unmodeled[0].reason}")
    if not all(estimate.fit.fits for estimate in estimates if estimate.fit is not None):
        sys.exit(CHECK_FAILED)


def require_certainty(estimates: Estimates) -> None:
    """Raise an error if anything was assumed or is not modelled, for `--strict`."""
    unsure = [s for e in estimates for s in (*e.assumptions, *(f"Not modelled: {u.what}." for u in e.unmodeled))]
    if unsure:
        raise MemsimError(f"--strict: {' '.join(dict.fromkeys(unsure))}\nLeave --strict out to get the figures.")
