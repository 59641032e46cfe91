"""Where the program is at every position of the allocator's history.

A position is the number of allocations and frees so far, read from the allocator's own statistics. It needs no clock
and is exact for every thread: event number `n` of the history happened between two marks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple


class Mark(NamedTuple):
    """From `position` on, until the next mark."""

    position: int
    step: int
    phase: str
    module: str
    op: str


def add_mark(marks: list[Mark], mark: Mark) -> None:
    """Add a mark to those before it, unless it says nothing new."""
    last = marks[-1] if marks else None
    if last is not None and last[1:] == mark[1:]:
        return
    if last is not None and last[:3] == mark[:3]:
        marks[-1] = mark  # nothing was allocated in that module
    else:
        marks.append(mark)


class Tape:
    """The marks of one process."""

    def __init__(self, position: Callable[[], int]) -> None:
        self._position = position
        self.recording = False
        self.step = 1
        self.phase = "load"
        self.marks: list[Mark] = [Mark(0, 1, "load", "", "")]
        self.sections: list[tuple[int, str]] = []
        self._paths = threading.local()

    def position(self) -> int:
        """Return how many allocations and frees there were; 0 before anything is recorded."""
        return self._position() if self.recording else 0

    @property
    def modules(self) -> list[Any]:
        """The modules whose `forward` this thread is in, outermost first."""
        try:
            stack: list[Any] = self._paths.stack
        except AttributeError:
            stack = self._paths.stack = []
        return stack

    def mark(self, module: str, op: str = "") -> None:
        """Note that the program is in `module` now, or in the backward of one of its ops, in this phase and step."""
        add_mark(self.marks, Mark(self.position(), self.step, self.phase, module, op))

    def section(self, name: str) -> None:
        """Begin a part of a run; see `SectionStart` of memsim/step/trace.py."""
        self.sections.append((self.position(), name))
        if self.phase == "load" and name != "load":
            self.enter("gap")  # what is made now prepares the first forward

    def enter(self, phase: str) -> None:
        """Begin a phase, outside of any module."""
        self.phase = phase
        self.mark("")
