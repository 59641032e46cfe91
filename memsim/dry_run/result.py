"""What a dry run found: frozen data that saves to JSON, loads back and becomes a DataFrame."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from memsim.errors import OutputError, shown
from memsim.files import write_new
from memsim.ledger import Phase
from memsim.report.frames import frame_of, phase_row
from memsim.results import Unmodeled
from memsim.step import OutOfMemory, StepTrace, TraceDevice, trace_of
from memsim.step.held import Held, Peak
from memsim.step.peaks import HeldTensor, PhasePeak
from memsim.typed import json_value, read_data

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
KIND = "dry_run"

Ending = Literal["stopped", "finished", "out_of_memory", "failed", "timed_out"]
"""`stopped`: ended by memsim after the asked steps; `finished`: the command came to its own end with exit code 0."""

_TRAINING = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER_STEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """The memory of a command that ran on an imaginary GPU."""

    memsim_version: str
    """Version that made it."""
    command: tuple[str, ...]
    """The command and its arguments."""
    device: TraceDevice
    """The imaginary GPU and the torch that ran on it."""
    ending: Ending
    """How the command ended."""
    exit_code: int
    """Its exit code; negative: the signal that ended it."""
    num_steps: int
    """Optimizer steps that were completed."""
    peak: Peak
    """The most memory."""
    held: Held
    """Whose it was: at the peak, or when memory ran out."""
    phases: tuple[PhasePeak, ...]
    """Every phase of every step, in order."""
    oom: OutOfMemory | None
    """The last allocation that failed, if any did."""
    num_ooms: int
    """How many allocations failed; a program may catch the error and go on."""
    advice: tuple[str, ...]
    """What to change first where memory ran out, in sentences."""
    assumptions: tuple[str, ...]
    """What was assumed, in sentences."""
    unmodeled: tuple[Unmodeled, ...]
    """What takes memory and is in none of the figures."""
    trace: StepTrace | None
    """Every event; `None` where the result was saved without it."""

    @property
    def fits(self) -> bool:
        """Whether no allocation failed."""
        return self.num_ooms == 0

    @property
    def growth_bytes(self) -> int | None:
        """How far the last training step's peak lies above that of the step before it; `None` before the third step.

        The first step creates the optimizer's state, so the second is the first to compare with.
        """
        peaks: dict[int, int] = {}
        for phase in self.phases:
            if phase.phase in _TRAINING:
                peaks[phase.step] = max(peaks.get(phase.step, 0), phase.peak_allocated_bytes)
        last = self.num_steps
        return peaks[last] - peaks[last - 1] if last >= 3 and {last, last - 1} <= peaks.keys() else None

    def to_dict(self, *, details: bool = False) -> dict[str, Any]:
        """Return the JSON object, with every event of the allocator if `details`."""
        data: dict[str, Any] = {
            "schema": SCHEMA,
            "kind": KIND,
            "memsim_version": self.memsim_version,
            "command": list(self.command),
            "device": asdict(self.device),
            "ending": self.ending,
            "exit_code": self.exit_code,
            "num_steps": self.num_steps,
            "peak": json_value(asdict(self.peak)),
            "held": json_value(asdict(self.held)),
            "phases": [json_value(asdict(phase)) for phase in self.phases],
            "oom": json_value(asdict(self.oom)) if self.oom is not None else None,
            "num_ooms": self.num_ooms,
            "advice": list(self.advice),
            "assumptions": list(self.assumptions),
            "unmodeled": [asdict(item) for item in self.unmodeled],
        }
        if details:
            data["trace"] = self.whole_trace().to_dict()
        return data

    def whole_trace(self) -> StepTrace:
        """Return every event.

        Raises:
            OutputError: the result was read from a file that does not have them.
        """
        if self.trace is None:
            raise OutputError("this dry run was saved without its events: make it again with --details, or in Python.")
        return self.trace

    def to_frame(self, *, details: bool = False) -> pd.DataFrame:
        """Return one row per step and phase, or one row per large tensor if `details`."""
        return frame_of([*map(_tensor_row, self.held.tensors)] if details else [*map(phase_row, self.phases)])

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the result, with every event, as JSON that `memsim.load` reads.

        Raises:
            OutputError: the file exists and `force` is not set, is a folder, or cannot be written.
        """
        write_new(path, json.dumps(self.to_dict(details=self.trace is not None)), force=force)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SavedDryRun:
    """A `DryRun` as JSON holds it, beside its trace and its exit code, which a signal makes negative."""

    memsim_version: str
    command: tuple[str, ...]
    device: TraceDevice
    ending: Ending
    num_steps: int
    peak: Peak
    held: Held
    phases: tuple[PhasePeak, ...]
    oom: OutOfMemory | None
    num_ooms: int
    advice: tuple[str, ...]
    assumptions: tuple[str, ...]
    unmodeled: tuple[Unmodeled, ...]


def dry_run_of(data: Mapping[str, Any]) -> DryRun:
    """Return the result that `DryRun.to_dict` gave.

    Raises:
        ValueError: it is not such an object; the message says where.
    """
    saved = read_data(_SavedDryRun, data)
    trace, exit_code = data.get("trace"), data.get("exit_code")
    if not isinstance(exit_code, int):
        raise ValueError(f"exit_code must be a whole number, not {shown(exit_code)}")
    return DryRun(
        **{field.name: getattr(saved, field.name) for field in fields(saved)},
        exit_code=exit_code,
        trace=trace_of(trace) if trace is not None else None,
    )


def _tensor_row(tensor: HeldTensor) -> dict[str, Any]:
    holder = tensor.holder
    return {
        "allocated_bytes": tensor.allocated_bytes,
        "requested_bytes": tensor.requested_bytes,
        "category": holder.category.value,
        "name": holder.name,
        "module": holder.module,
        "op": holder.op,
        "shape": list(holder.shape) if holder.shape is not None else None,
        "dtype": holder.dtype,
        "line": holder.line,
        "library_line": holder.library_line,
    }
