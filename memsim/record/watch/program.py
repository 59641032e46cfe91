"""The watch over a user's program: from its first use of CUDA to its end, or to the asked number of steps."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import threading
from pathlib import Path
from typing import Any

from .generation import Generation
from .history import History
from .hooks import Watch
from .values import Values
from .writing import write_recording

STOPPED = "stopped"
FINISHED = "finished"

_current: list[Program] = []


def current() -> Program | None:
    """Return the watch over this process, if torch was imported."""
    return _current[0] if _current else None


class Program:
    """A process that runs a user's program."""

    def __init__(self, torch: Any, *, folder: Path, max_steps: int) -> None:
        self.torch = torch
        self.folder = folder
        self.max_steps = max_steps
        self.notes: list[str] = []
        self.generation = Generation(self.notes)
        self.history = History(torch)
        self.watch = Watch(torch, position=self.history.position, after_step=self._after_step)
        self._pid = 0
        self._ended = False

    def install(self) -> None:
        """Put the hooks in place; CUDA stays as untouched as it is."""
        _current[:] = [self]
        self.torch.cuda._lazy_call(self._cuda_is_used)
        self.watch.install()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """A fork is another process: it has no GPU until it starts CUDA itself."""
        if self.watch.tape.recording:
            self._ended = True  # torch refuses CUDA in a fork of a process that uses it
        else:
            self.watch.begin()

    def _cuda_is_used(self) -> None:
        torch = self.torch
        self._pid = os.getpid()
        (self.folder / f"used-{self._pid}").touch()
        self.history.start(where=self.watch.where, before_oom=self.watch.see_owners)
        torch.cuda.memory._record_memory_history = self._history_is_taken
        self.values = Values(torch)  # it computes as long as it is held
        if not self.values.num_operators:
            self.notes.append("With torch before 2.9, token ids and masks had the value 0 like everything else.")
        self.watch.tape.recording = True
        if multiprocessing.parent_process() is None:
            atexit.register(self._exit)
        else:  # such a process leaves by os._exit, past atexit
            from multiprocessing.util import Finalize

            Finalize(None, self._exit, exitpriority=100)

    def _history_is_taken(self, *_args: Any, **_kwargs: Any) -> None:
        self.notes.append("The program's own calls of _record_memory_history were left out: memsim records.")

    def _after_step(self, num_steps: int) -> None:
        """End the program as `sys.exit(0)` in the training loop would: finally, with and atexit run."""
        if not self.max_steps or num_steps < self.max_steps:
            return
        self._write(STOPPED)
        note = self.folder / f"stopping-{os.getpid()}"
        note.touch()
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(0)
        # Else memsim, which sees the note, interrupts the main thread from outside.

    def _exit(self) -> None:
        if self.watch.tape.recording and os.getpid() == self._pid:
            self._write(FINISHED)

    def _write(self, ended: str) -> None:
        if self._ended:
            return
        self._ended = True
        self.watch.sightings.gradients(self.watch.sightings.all_parameters())
        self.watch.sightings.living()
        path = self.folder / f"recording-{os.getpid()}.json"
        by_oom = isinstance(getattr(sys, "last_value", None), self.torch.cuda.OutOfMemoryError)
        write_recording(path, self.watch, self.history, ended=ended, ended_by_oom=by_oom, notes=self.notes)
