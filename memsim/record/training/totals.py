"""Where PyTorch keeps no history of its allocator (MPS, XPU): what it says is allocated when each section ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memsim.errors import MemsimError
from memsim.record.job import RecordJob
from memsim.record.training.run import TrainingRun

DEVICE_TYPES = ("mps", "xpu", "cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionTotals:
    """Memory at the end of a section of a run; see `memsim.step.SectionStart` for their names."""

    name: str
    """Which section."""
    allocated_bytes: int
    """What tensors took when it ended: rounded to blocks on CUDA and XPU, as Metal counts it on MPS."""
    peak_allocated_bytes: int | None
    """The most within it; `None` on MPS, where PyTorch keeps no maximum."""


def record_totals(job: RecordJob, device_type: str) -> tuple[SectionTotals, ...]:
    """Run a job on a device of this process and return its totals, section by section.

    Raises:
        MissingPackageError: torch or transformers is not installed.
        MemsimError: there is no such device, or the model cannot be built or fails.
    """
    from memsim.record.architecture import import_transformers

    import_transformers()
    import torch

    if device_type not in DEVICE_TYPES:
        raise MemsimError(f"PyTorch says nothing about the memory of {device_type!r}: give {', '.join(DEVICE_TYPES)}.")
    backend = getattr(torch, device_type, None)
    available = torch.backends.mps.is_available() if device_type == "mps" else backend and backend.is_available()
    if not available:
        raise MemsimError(f"torch sees no {device_type} device here: record on an imaginary GPU or on the CPU.")
    totals = _Totals(device_type, backend)
    run = TrainingRun(job, device=device_type, tape=totals, weights="random")
    run.go()
    totals.section("")  # while the run still holds its model
    return tuple(totals.found)


class _Totals:
    """Takes the place of a tape: reads the totals whenever a section begins."""

    def __init__(self, device_type: str, backend: Any) -> None:
        self.found: list[SectionTotals] = []
        self._current = ""
        self._backend = backend
        keeps_maximum = device_type != "mps"
        # torch/mps/__init__.py `current_allocated_memory`; torch/xpu/memory.py and torch/cuda/memory.py @2.13
        self._allocated: Callable[[], int] = (
            backend.memory_allocated if keeps_maximum else backend.current_allocated_memory
        )
        self._peak: Callable[[], int] | None = backend.max_memory_allocated if keeps_maximum else None

    def section(self, name: str) -> None:
        """End the section before and begin `name`."""
        self._backend.synchronize()
        if self._current:
            peak = self._peak() if self._peak is not None else None
            self.found.append(
                SectionTotals(name=self._current, allocated_bytes=self._allocated(), peak_allocated_bytes=peak)
            )
        if self._peak is not None:
            self._backend.reset_peak_memory_stats()
        self._current = name
