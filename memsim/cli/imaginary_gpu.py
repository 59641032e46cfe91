"""`memsim imaginary-gpu status|install`."""

from __future__ import annotations

import sys

import click

from memsim.cli.output import Output, output_options
from memsim.report.frames import frame_of
from memsim.report.tables import render_facts


@click.group("imaginary-gpu", short_help="Run CUDA PyTorch without a GPU.")
def command() -> None:
    """Run PyTorch's CUDA build without a GPU: what is there, and fetching what is missing."""


@command.command("status", short_help="What is there, and what is missing.")
@output_options
def status(*, output: Output) -> None:
    """Say whether the imaginary GPU works here, and if not, why and what to do. Exit code 3 when it does not."""
    from memsim.imaginary_gpu.status import status as current_status

    facts = current_status().facts()
    shown = {key: "yes" if value is True else "no" if value is False else value or "" for key, value in facts.items()}
    output.write(
        table=lambda width, color: render_facts(
            ((key.replace("_", " "), text) for key, text in shown.items() if text), width=width, color=color
        ),
        data=lambda: facts,
        frame=lambda: frame_of([shown]),
    )
    if not facts["works"]:
        sys.exit(3)


@command.command("install", short_help="Fetch PyTorch's CUDA build.")
@click.option("--torch", "version", metavar="VERSION", help="Version to fetch [default: the environment's].")
def install(*, version: str | None) -> None:
    """Fetch PyTorch's CUDA build (the torch wheel alone, 0.5 to 0.9 GB) into memsim's cache and build the stand-ins."""
    from memsim.imaginary_gpu import build
    from memsim.imaginary_gpu.fetch import fetch

    click.echo("fetching torch with pip ...", err=True)
    installation = fetch(version)
    build(installation)
    click.echo(
        f"torch {installation.torch_version} (CUDA {installation.cuda_version}) is in {installation.torch_path}; "
        "the imaginary GPU is ready."
    )
