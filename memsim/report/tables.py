"""Tables and lines as text for a person's terminal, a pipe or a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

if TYPE_CHECKING:
    from rich.text import Text

_PLAIN_WIDTH = 400
"""Columns of output that goes to a file or a pipe: wide enough that nothing is folded."""


def fits(table: Table, width: int | None) -> bool:
    """Return whether a table's lines fit into `width` columns; `None` is no limit."""
    if width is None:
        return True
    console = Console(width=_PLAIN_WIDTH, file=StringIO())
    return Measurement.get(console, console.options, table).maximum <= width


def render_rows(columns: Sequence[str], rows: Iterable[Sequence[str]], *, width: int | None, color: bool) -> str:
    """Return a plain table: the first column to the left, numbers to the right."""
    table = plain_table(columns)
    for row in rows:
        table.add_row(*row)
    return render_parts((table,), width=width, color=color)


def render_facts(facts: Iterable[tuple[str, str]], *, width: int | None, color: bool) -> str:
    """Return `name  value` lines, names aligned; empty values are left out."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        if value:
            table.add_row(name, value)
    return render_parts((table,), width=width, color=color)


def plain_table(columns: Sequence[str]) -> Table:
    """Return an empty table: the first column to the left, the others to the right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index == 0 else "right", overflow="fold")
    return table


def render_parts(parts: Iterable[Table | Text], *, width: int | None, color: bool) -> str:
    """Return tables and lines as text; sentences wrap at `width` columns, tables keep their own."""
    file = StringIO()
    console = Console(
        file=file,
        width=_PLAIN_WIDTH,
        force_terminal=color,
        no_color=not color,
        highlight=False,
        markup=False,  # names in square brackets are names
        legacy_windows=False,
    )
    for part in parts:
        # A figure that is broken in two is worse than a line that the terminal wraps.
        console.print(part, width=None if isinstance(part, Table) else width, crop=False)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"
