"""`memsim dry-run [--gpu NAME] -- COMMAND...`."""

from __future__ import annotations

import sys

import click

from memsim.cli.options import complete_gpu
from memsim.cli.output import CHECK_FAILED, Output, output_options
from memsim.dry_run.result import DryRun
from memsim.errors import MemsimError, UsageError
from memsim.report.dry_run import dry_run_chart, dry_run_page, render_dry_run


@click.command(
    "dry-run",
    short_help="Run any training command on an imaginary GPU.",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@click.option(
    "--gpu",
    metavar="NAME|SIZE",
    shell_complete=complete_gpu,
    help="GPU to imagine: a name ('RTX 4090', see 'memsim gpus') or a memory size (24GiB) [default: A100, 80 GB].",
)
@click.option("--steps", type=int, default=3, show_default=True, metavar="N", help="Optimizer steps; 0: to the end.")
@click.option("--timeout", type=float, metavar="SECONDS", help="End the command after this time.")
@click.option("--fits", is_flag=True, help="Exit with 3 if memory ran out, even where the command went on.")
@click.option("--details", is_flag=True, help="Keep every event of the allocator in the JSON.")
@output_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def command(
    *,
    gpu: str | None,
    steps: int,
    timeout: float | None,
    fits: bool,
    details: bool,
    output: Output,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND, unmodified, on a GPU that does not exist, and tell what its memory would have held.

    The command really runs, and really writes what it writes: let it save into a folder that you can throw away,
    since what it computes is zero. Everything it prints passes through; to stderr where --format asks for anything but
    a table on stdout. After --steps optimizer steps it is ended as sys.exit(0) would end it.
    -o FILE.pickle writes a snapshot for pytorch.org/memory_viz, FILE.svg, .png and .html its timeline.
    Exit code 3: it ran out of memory.
    """
    from memsim.dry_run.run import DEFAULT_GPU, Limits, run

    limits = Limits(max_steps=steps, timeout_seconds=timeout)
    if gpu is not None and not gpu.strip():
        raise UsageError("--gpu is empty: give a name ('memsim gpus' lists them) or a memory size such as 24GiB.")
    if command and gpu is None:
        output.note(f"memsim: no --gpu given, imagining the {DEFAULT_GPU} with 80 GB.")
    if command:
        output.note("memsim: the command really runs; what it saves (checkpoints, logs) is written, and holds zeros.")
    prints_to_stderr = output.path is None and output.file_format != "table"
    result = run(command, gpu=gpu or DEFAULT_GPU, limits=limits, prints_to_stderr=prints_to_stderr)
    sys.stdout.flush()
    write_dry_run(result, output, details=details)
    _exit(result, fits=fits)


def write_dry_run(result: DryRun, output: Output, *, details: bool) -> None:
    """Write a dry run in the asked format; `.pickle` is a snapshot for PyTorch's memory viewer, `.svg` a picture."""
    from memsim.snapshot import snapshot_bytes

    output.write(
        table=lambda width, color: render_dry_run(result, width=width, color=color),
        data=lambda: result.to_dict(details=details),
        frame=lambda: result.to_frame(details=details),
        snapshot=lambda: snapshot_bytes(result.whole_trace()),
        chart=lambda: dry_run_chart(result),
        page=lambda: dry_run_page(result),
    )


def _exit(result: DryRun, *, fits: bool) -> None:
    from memsim.dry_run.run import exit_text

    if result.ending == "out_of_memory" or (fits and not result.fits):
        sys.exit(CHECK_FAILED)
    if result.ending == "failed":
        raise MemsimError(f"the command failed ({exit_text(result.exit_code)}); the figures end where it did.")
    if result.ending == "timed_out":
        raise MemsimError("the command's time was up; the figures end there. Give it more with --timeout.")
