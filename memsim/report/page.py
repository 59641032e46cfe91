"""A result as a web page of its own: everything is in the one file, and every name in it is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.table import Table

from memsim.report.chart import Chart
from memsim.report.chart_svg import escaped, render_svg

if TYPE_CHECKING:
    from rich.text import Text

_STYLE = """
body { font-family: sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; }
p { margin: 0.3em 0; white-space: pre-wrap; }
table { border-collapse: collapse; font-size: 0.85em; }
th, td { padding: 0.2em 0.8em; text-align: right; border-bottom: 1px solid #ddd; overflow-wrap: anywhere; }
th:first-child, td:first-child { text-align: left; }
svg { width: 100%; height: auto; margin: 1em 0; }
"""


def render_page(title: str, parts: Iterable[Table | Text | Chart]) -> str:
    """Return an HTML document: what the terminal shows, with pictures as inline SVG.

    Args:
        title: of the window.
        parts: headings (bold text), lines, tables and charts in order.
    """
    body = "\n".join(_part(index, part) for index, part in enumerate(parts))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escaped(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _part(index: int, part: Table | Text | Chart) -> str:
    if isinstance(part, Chart):
        return render_svg(part)
    if isinstance(part, Table):
        return "\n".join(("<table>", *_rows(part), "</table>"))
    lines = "\n".join(map(escaped, part.plain.strip("\n").splitlines()))
    if "bold" not in str(part.style):
        return f"<p>{lines}</p>"
    return f"<h1>{lines}</h1>" if index == 0 else f"<h2>{lines}</h2>"


def _rows(table: Table) -> Iterator[str]:
    if table.show_header:
        yield _row("th", (str(column.header) for column in table.columns))
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        yield _row("td", map(str, cells))


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escaped(cell)}</{tag}>' for cell in cells)}</tr>"
