"""`memsim estimate MODEL`."""

from __future__ import annotations

import click

from memsim.cli.options import model_argument, step_options
from memsim.cli.output import Output, output_options
from memsim.config import TrainingConfig
from memsim.errors import MemsimError
from memsim.estimator import estimate_all
from memsim.report.estimates import render_estimates
from memsim.results import Estimates


@click.command("estimate", short_help="Memory of one training step.")
@model_argument
@step_options
@click.option("--details", is_flag=True, help="List every state entry of every parameter.")
@click.option(
    "--strict", is_flag=True, help="Fail if anything was assumed or is not modelled (activations never are, so far)."
)
@output_options
def command(*, model: str, configs: list[TrainingConfig], details: bool, strict: bool, output: Output) -> None:
    """Tell how much memory one training step of MODEL takes, before anything runs.

    MODEL is a catalog name (distilbert-base-cased; see 'memsim catalog'), a hub id (org/name, org/name@revision) or
    a folder that holds config.json. Several --optimizer compare side by side.
    """
    estimates = estimate_all(model, configs, progress=output.note)
    if strict:
        require_certainty(estimates)
    output.write(
        table=lambda width, color: render_estimates(estimates, details=details, width=width, color=color),
        data=lambda: (estimates[0] if len(estimates) == 1 else estimates).to_dict(details=details),
        frame=lambda: estimates.to_frame(details=details),
    )


def require_certainty(estimates: Estimates) -> None:
    """Raise an error if anything was assumed or is not modelled, for `--strict`."""
    unsure = [s for e in estimates for s in (*e.assumptions, *(f"Not modelled: {u.what}." for u in e.unmodeled))]
    if unsure:
        raise MemsimError(f"--strict: {' '.join(dict.fromkeys(unsure))}\nLeave --strict out to get the figures.")
