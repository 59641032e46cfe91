"""The same recording on a CUDA device that a user's own program is using already.

PyTorch's history begins in the midst of things. What its allocator holds at that moment is the trace's start, and
whose that is follows from the tensors seen at its addresses, like everything else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from memsim.allocator.state import SegmentState
from memsim.errors import MemsimError
from memsim.record.recording import Recording, recording_of
from memsim.record.watch.history import History
from memsim.record.watch.hooks import Watch
from memsim.record.watch.writing import gathered
from memsim.snapshot_file.reading import checked_snapshot


class CudaRecording:
    """Records what this process does with the memory of the first CUDA device while it is entered.

    Args:
        with_lines: whether each allocation's line of code is recorded.
        after_step: called with the number of completed optimizer steps after each.

    Raises:
        MemsimError: the program records PyTorch's memory history itself.
    """

    def __init__(self, *, with_lines: bool = True, after_step: Callable[[int], None] | None = None) -> None:
        import torch

        self._torch = torch
        self._with_lines = with_lines
        self._history = History(torch)
        self._start: tuple[SegmentState, ...] = ()
        self._num_before = 0
        self.watch = Watch(torch, position=self._position, after_step=after_step)

    @property
    def is_imaginary(self) -> bool:
        """Whether the device is an imaginary GPU."""
        return "MEMSIM_GPU" in os.environ

    def __enter__(self) -> CudaRecording:
        snapshot = self._torch.cuda.memory._snapshot()
        if any(snapshot["device_traces"]):
            raise MemsimError(
                "PyTorch's memory history is being recorded already, and there is only one: end that first with "
                "torch.cuda.memory._record_memory_history(None)."
            )
        self._start = checked_snapshot(snapshot).devices[0].segments
        self._num_before = self._history.position()
        self.watch.install()
        self.watch.tape.recording = True
        self._history.start(where=self.watch.where, before_oom=self.watch.see_owners, with_stacks=self._with_lines)
        return self

    def __exit__(self, *error: Any) -> None:
        self._history.stop()
        self.watch.tape.recording = False
        self.watch.uninstall()

    def find(self, module: Any, optimizer: Any = None) -> None:
        """See what a module and its optimizer hold already."""
        self.watch.sightings.find(module, optimizer)

    def recording(self) -> Recording:
        """Return what was recorded so far; only while it is entered."""
        sightings = self.watch.sightings
        sightings.gradients(sightings.all_parameters())
        sightings.living()
        by_oom = bool(self._history.ooms)
        data = gathered(self.watch, self._history, ended="finished", ended_by_oom=by_oom, notes=())
        ooms = [{**oom, "position": oom["position"] - self._num_before} for oom in data["ooms"]]
        return recording_of({**data, "ooms": ooms}, self._start)

    def used_bytes(self) -> int | None:
        """Return what the whole device holds, as its driver says; `None` on an imaginary GPU."""
        if self.is_imaginary:
            return None
        free, total = self._torch.cuda.mem_get_info(0)
        return int(total - free)

    def _position(self) -> int:
        return self._history.position() - self._num_before
