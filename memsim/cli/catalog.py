"""`memsim catalog [NAME]`."""

from __future__ import annotations

from typing import Any

import click

from memsim import catalog
from memsim.catalog import CatalogEntry
from memsim.cli.options import complete_model
from memsim.cli.output import Output, output_options
from memsim.errors import UnknownNameError
from memsim.report.frames import frame_of
from memsim.report.tables import render_facts, render_rows


@click.command("catalog", short_help="Models that need no download.")
@click.argument("name", required=False, shell_complete=complete_model)
@output_options
def command(*, name: str | None, output: Output) -> None:
    """List the models of the catalog, or those whose id or type contains NAME, or all facts of the model NAME."""
    if name is not None:
        try:
            entry = catalog.find(name)
        except UnknownNameError:
            entries = [e for e in catalog.entries() if name.lower() in f"{e.id} {e.model_type}".lower()]
            if not entries:
                raise
            _write_list(entries, output)
            return
        _write_entry(entry, output)
        return
    _write_list(list(catalog.entries()), output)


def _write_list(entries: list[CatalogEntry], output: Output) -> None:
    rows = [_row(entry) for entry in entries]
    output.write(
        table=lambda width, color: render_rows(
            ("model", "type", "task", "parameters", "dtype", "count"),
            [
                (r["id"], r["model_type"], r["task"], f"{r['num_parameters']:,}", r["dtype"] or "", r["confirmation"])
                for r in rows
            ],
            width=width,
            color=color,
        ),
        data=lambda: rows,
        frame=lambda: frame_of(rows),
    )


def _row(entry: CatalogEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "model_type": entry.model_type,
        "task": entry.task,
        "num_parameters": entry.num_parameters,
        "dtype": entry.dtype,
        "confirmation": entry.confirmation,
    }


def _write_entry(entry: CatalogEntry, output: Output) -> None:
    facts = _facts(entry)
    output.write(
        table=lambda width, color: render_facts(
            ((key.replace("_", " "), _text(value)) for key, value in facts.items()), width=width, color=color
        ),
        data=lambda: facts,
        frame=lambda: frame_of([{key: _cell(value) for key, value in facts.items()}]),
    )


def _facts(entry: CatalogEntry) -> dict[str, Any]:
    return {
        **_row(entry),
        "model_class": entry.model_class,
        "aliases": list(entry.aliases),
        "tasks": list(entry.tasks),
        "published_num_parameters": entry.published_num_parameters,
        "published_match": entry.published_match,
        "published_source": entry.published_source,
        "source": entry.source,
        "assumptions": list(entry.assumptions),
        "config": dict(entry.config),
    }


def _cell(value: Any) -> Any:
    """Return a value that a table's cell can hold: numbers stay numbers."""
    return _text(value) if isinstance(value, (list, dict)) else value


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, dict):
        return ", ".join(f"{key}={val}" for key, val in value.items())
    return str(value)
