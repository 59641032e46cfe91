"""One recording after the other on a CUDA device of this process, each from a clean allocator."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from memsim.errors import MemsimError
from memsim.record.job import RecordJob
from memsim.record.training.optimizer import forget_overrides
from memsim.record.training.run import RunWeights, TrainingRun, draw_alike
from memsim.record.watch.functions import Doubts, seeing_functions
from memsim.record.watch.history import History
from memsim.record.watch.hooks import Watch
from memsim.record.watch.ticks import Ticks
from memsim.record.watch.values import Values
from memsim.record.watch.writing import write_recording

DEVICE = "cuda:0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a recording says beside its file."""

    model_class: str
    """Class of the model."""
    assumptions: tuple[str, ...]
    """What was assumed about the batch and the model, in sentences."""
    seconds: float
    """Time that it took."""
    used_bytes: int | None
    """What the whole device held at the end, other programs and the CUDA context too; `None` on an imaginary GPU."""


class Session:
    """The watch over the first CUDA device, for any number of recordings.

    Raises:
        MemsimError: torch sees no CUDA device.
    """

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise MemsimError("torch sees no CUDA device here: record on an imaginary GPU or on the CPU.")
        self._torch = torch
        self._imaginary = "MEMSIM_GPU" in os.environ
        torch.cuda.init()
        self._values = Values(torch) if self._imaginary else None
        self._history = History(torch, ticks=Ticks(torch) if Ticks.exist(torch) else None)
        self._watch = Watch(torch, position=self._history.position)
        self._watch.install()

    def close(self) -> None:
        """Take all hooks away again."""
        self._watch.uninstall()

    def left_bytes(self) -> int:
        """Give back what recordings left, and return the bytes of the device that something still holds."""
        return self._history.clean()

    def record(self, job: RecordJob, path: Path) -> Made:
        """Record a job into a file; that memory runs out is a result too.

        Raises:
            ModelError: the model cannot be built, cannot take such a batch, or fails.
            MemsimError: something holds memory of the device already, or cannot be done as asked.
        """
        begun = time.perf_counter()
        left = self.left_bytes()
        if left:
            raise MemsimError(f"{left:,} bytes of the device are held by something else: record in a fresh process.")
        draw_alike()
        with self._recording(with_lines=job.with_lines):
            weights: RunWeights = "none" if self._imaginary else "random"
            run = TrainingRun(job, device=DEVICE, tape=self._watch.tape, weights=weights)
            doubts = Doubts(self._torch, lambda: self._watch.where()["module"])
            by_oom = self._ran_out(run, doubts)
            used = self._used_bytes()
            self._write(path, ended_by_oom=by_oom, notes=doubts.notes if self._imaginary else [])
        return Made(
            model_class=run.model_class,
            assumptions=run.assumptions,
            seconds=time.perf_counter() - begun,
            used_bytes=used,
        )

    @contextmanager
    def _recording(self, *, with_lines: bool) -> Iterator[None]:
        self._watch.begin()
        self._watch.tape.recording = True
        self._history.start(where=self._watch.where, before_oom=self._watch.see_owners, with_stacks=with_lines)
        try:
            yield
        finally:
            forget_overrides()
            self._history.stop()
            self._watch.begin()  # which records nothing, and forgets names and addresses

    def _ran_out(self, run: TrainingRun, doubts: Doubts) -> bool:
        """Run a job; return whether memory ran out."""
        try:
            with seeing_functions(self._torch, self._watch.sightings, doubts):
                run.go()
        except self._torch.cuda.OutOfMemoryError:
            return True
        return False

    def _write(self, path: Path, *, ended_by_oom: bool, notes: list[str]) -> None:
        sightings = self._watch.sightings
        sightings.gradients(sightings.all_parameters())
        sightings.living()
        if self._values is not None and not self._values.num_operators:
            notes.append("With torch before 2.9, token ids and masks had the value 0 like everything else.")
        write_recording(path, self._watch, self._history, ended="finished", ended_by_oom=ended_by_oom, notes=notes)

    def _used_bytes(self) -> int | None:
        if self._imaginary:
            return None
        free, total = self._torch.cuda.mem_get_info(DEVICE)  # the driver's own count of the device, as NVML's
        return int(total - free)
