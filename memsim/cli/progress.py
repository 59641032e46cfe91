"""Tells on stderr what takes long: a moving bar on a terminal, a line per new kind of work elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from memsim.cli.output import Output


@contextmanager
def progress(output: Output) -> Iterator[Callable[[str], None]]:
    """Give a function that is told what begins; with `--quiet` nothing is shown."""
    if output.quiet:
        yield lambda _text: None
    elif sys.stderr is not None and sys.stderr.isatty():
        with _bar() as tell:
            yield tell
    else:
        yield _Lines(output).tell


class _Lines:
    """Sentences on stderr; of work that repeats, the first."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._told: set[str] = set()

    def tell(self, text: str) -> None:
        kind = text.partition(" batch ")[0]
        if kind not in self._told:
            self._told.add(kind)
            self._output.note(f"memsim: {text}" if text[:1].islower() else text)


@contextmanager
def _bar() -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(bar_width=20), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None, visible=False)

        def tell(text: str) -> None:
            if text[:1].islower():
                bar.update(task, description=text, visible=True)
            else:  # a sentence that is to stay
                console.print(text, markup=False, highlight=False)

        yield tell
