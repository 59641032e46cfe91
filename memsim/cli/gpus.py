"""`memsim gpus [NAME]`."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from memsim.cli.output import Output, output_options
from memsim.errors import UnknownNameError
from memsim.gpus import GPU, all_gpus, find_gpu
from memsim.report.frames import frame_of
from memsim.report.tables import render_facts, render_rows
from memsim.units import format_bytes


def complete_gpu(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the GPU names that begin with what was typed."""
    names = [name for gpu in all_gpus() for name in (gpu.name, *gpu.aliases)]
    return [CompletionItem(name) for name in names if name.lower().startswith(incomplete.lower())]


@click.command("gpus", short_help="GPUs that memsim knows.")
@click.argument("name", required=False, shell_complete=complete_gpu)
@output_options
def command(*, name: str | None, output: Output) -> None:
    """List the GPUs, or those whose name contains NAME, or all that is known of the GPU that NAME means."""
    if name is None:
        _write_list(list(all_gpus()), output)
        return
    try:
        gpu = find_gpu(name)
    except UnknownNameError:
        matching = [gpu for gpu in all_gpus() if name.lower() in " ".join((gpu.name, *gpu.aliases)).lower()]
        if not matching:
            raise
        _write_list(matching, output)
        return
    _write_facts(gpu, output)


def _facts(gpu: GPU) -> dict[str, Any]:
    return {
        "name": gpu.name,
        "aliases": list(gpu.aliases),
        "memory_bytes": gpu.memory_bytes,
        "compute_capability": gpu.capability_text,
        "num_multiprocessors": gpu.num_multiprocessors,
        "l2_bytes": gpu.l2_bytes,
        "memory_source": gpu.memory_source,
        "assumptions": list(gpu.assumptions),
    }


def _write_list(gpus: list[GPU], output: Output) -> None:
    rows = [_facts(gpu) for gpu in gpus]
    output.write(
        table=lambda width, color: render_rows(
            ("GPU", "memory", "compute capability", "multiprocessors", "other names"),
            [
                (
                    gpu.name,
                    format_bytes(gpu.memory_bytes),
                    gpu.capability_text,
                    str(gpu.num_multiprocessors),
                    ", ".join(gpu.aliases),
                )
                for gpu in gpus
            ],
            width=width,
            color=color,
        ),
        data=lambda: rows,
        frame=lambda: frame_of([{**row, "aliases": ", ".join(row["aliases"]), "assumptions": ""} for row in rows]),
    )


def _write_facts(gpu: GPU, output: Output) -> None:
    facts = _facts(gpu)
    shown = {
        **facts,
        "aliases": ", ".join(gpu.aliases),
        "memory_bytes": f"{gpu.memory_bytes:,} ({format_bytes(gpu.memory_bytes)})",
        "l2_bytes": f"{gpu.l2_bytes:,} ({format_bytes(gpu.l2_bytes)})",
        "assumptions": "; ".join(gpu.assumptions),
    }
    output.write(
        table=lambda width, color: render_facts(
            ((key.replace("_", " "), str(value)) for key, value in shown.items()), width=width, color=color
        ),
        data=lambda: facts,
        frame=lambda: frame_of([{key: str(value) for key, value in shown.items()}]),
    )
