"""Where a command's result goes: the terminal, a pipe, a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memsim.errors import OutputError, UsageError
from memsim.files import check_new, write_new
from memsim.report.ascii import ASCII
from memsim.report.formats import (
    BINARY_FORMATS,
    FORMATS,
    PICTURES,
    format_of_suffix,
    render_frame,
    render_json,
    render_picture,
)

if TYPE_CHECKING:
    import pandas as pd

    from memsim.report.chart import Chart

_OF_EVENTS = "shows the allocator's events, which this result does not have: use 'memsim simulate' or 'memsim dry-run'."


CHECK_FAILED = 3
"""Exit code where a check that was asked for (`--fits`, `--tolerance`) failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The output options of one call."""

    file_format: str
    """One of `FORMATS`."""
    path: str | None
    """File to write; `None` is stdout."""
    force: bool
    """Whether an existing file may be overwritten."""
    quiet: bool
    """Whether notes on stderr are left out."""

    def write(
        self,
        *,
        table: Callable[[int | None, bool], str],
        data: Callable[[], Any],
        frame: Callable[[], pd.DataFrame],
        snapshot: Callable[[], bytes] | None = None,
        chart: Callable[[], Chart | None] | None = None,
        page: Callable[[], str] | None = None,
    ) -> None:
        """Render the result in the asked format and write it.

        Args:
            table: makes the text for people, from a width in columns (`None`: unlimited) and whether to colour it.
            data: makes the JSON object.
            frame: makes the DataFrame for every other format.
            snapshot: makes the file for PyTorch's memory viewer; `None` where there are no events to view.
            chart: makes what a picture shows; `None` where there are no events to draw.
            page: makes a web page; `None` where the DataFrame makes it.

        Raises:
            UsageError: a snapshot or a picture was asked of a result that has no events.
        """
        content: str | bytes
        if self.file_format == "table":
            content = table(*self._terminal())
        elif self.file_format == "json":
            content = render_json(data())
        elif self.file_format == "snapshot":
            if snapshot is None:
                raise UsageError(f"a .pickle snapshot {_OF_EVENTS}")
            content = snapshot()
        elif self.file_format in PICTURES:
            content = _picture(chart, self.file_format)
        elif self.file_format == "html" and page is not None:
            content = page()
        else:
            content = render_frame(frame(), self.file_format)
        if self.path is not None:
            write_new(self.path, content, force=self.force)
            self.note(f"wrote {self.path}")
            return
        _print(content)

    def note(self, sentence: str) -> None:
        """Tell the user something on stderr, unless notes are not wanted."""
        if not self.quiet:
            click.echo(sentence, err=True)

    def _terminal(self) -> tuple[int | None, bool]:
        import os
        import shutil

        if self.path is not None or not _is_terminal():
            return None, False
        return max(shutil.get_terminal_size().columns, 40), "NO_COLOR" not in os.environ


def _picture(chart: Callable[[], Chart | None] | None, file_format: str) -> bytes:
    if chart is None:
        raise UsageError(f"a .{file_format} picture {_OF_EVENTS}")
    drawn = chart()
    if drawn is None:
        raise OutputError("nothing was allocated, so there is nothing to draw.")
    return render_picture(drawn, file_format)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _print(content: str | bytes) -> None:
    """Write to stdout; what its encoding lacks becomes ASCII."""
    if sys.stdout is None:
        raise OutputError("stdout is closed: write to a file with -o FILE.")
    encoding = sys.stdout.encoding or "ascii"
    if isinstance(content, str):
        try:
            content.encode(encoding)
        except UnicodeEncodeError:
            content = content.translate(ASCII).encode(encoding, "replace").decode(encoding)
    click.echo(content, nl=False, color=True)


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--format`, `--output` and `--force`; the command gets one `output: Output`."""

    def wrapped(*, file_format: str | None, output: str | None, force: bool, quiet: bool, **rest: Any) -> Any:
        return command(output=_output(file_format, output, force=force, quiet=quiet), **rest)

    options = (
        click.option("-q", "--quiet", is_flag=True, help="No notes on stderr."),
        click.option("-f", "--force", is_flag=True, help="Overwrite FILE if it exists."),
        click.option(
            "-o",
            "--output",
            type=click.Path(),
            metavar="FILE",
            help="Write to FILE; its suffix decides the format (- is stdout).",
        ),
        click.option(
            "--format",
            "file_format",
            type=click.Choice(FORMATS),
            help="Format of the result [default: table, or by FILE's suffix].",
        ),
    )
    return with_options(wrapped, command, options)


def with_options(
    wrapped: Callable[..., Any], command: Callable[..., Any], options: Iterable[Callable[..., Any]]
) -> Callable[..., Any]:
    """Return `wrapped` in the place of `command`: its name, help and options, and the given options behind them."""
    wrapped.__name__ = command.__name__
    wrapped.__doc__ = command.__doc__
    wrapped.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in options:
        option(wrapped)
    return wrapped


def _output(file_format: str | None, path: str | None, *, force: bool, quiet: bool) -> Output:
    if path == "-":
        path = None
    if path is not None:
        check_new(path, force=force)  # before the work, not after it
        file_format = file_format or format_of_suffix(Path(path).suffix)
    file_format = file_format or "table"
    if path is None and file_format in BINARY_FORMATS and _is_terminal():
        raise UsageError(f"{file_format} is binary: write it to a file with -o FILE, or pipe it.")
    return Output(file_format=file_format, path=path, force=force, quiet=quiet)
