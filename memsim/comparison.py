"""`Comparison`: what was predicted of a step, held against what a real one took."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from memsim.errors import OutputError
from memsim.files import write_new
from memsim.ledger import Category, Phase
from memsim.prediction import STATIC
from memsim.report.frames import frame_of
from memsim.step import OutOfMemory, StepTrace, TraceDevice, trace_of
from memsim.typed import json_value, read_data
from memsim.units import format_bytes

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
KIND = "comparison"
DEFAULT_TOLERANCE = 0.01

Moment = Literal["peak", "end"]
"""A phase's peak, or its end."""

MeasuredOn = Literal["cuda", "imaginary", "cpu", "mps", "xpu"]
"""A real GPU, PyTorch's CUDA build on an imaginary one, or a device on which the step is really computed."""

MeasuredLoop = Literal["plain", "accelerate", "trainer", "own"]
"""Who ran the step; `own`: the user's code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One category at one moment of a phase."""

    step: int
    """Training step, from 1."""
    phase: Phase
    """The phase."""
    moment: Moment
    """Its peak or its end."""
    category: Category
    """What the memory is for."""
    predicted_bytes: int | None
    """Bytes of blocks that were predicted; `None`: not predicted, so not judged."""
    measured_bytes: int
    """Bytes of the blocks that the requests were rounded up to; what PyTorch did not split off is not in them."""
    measured_total_bytes: int
    """The same of all categories."""

    @property
    def difference_bytes(self) -> int | None:
        """Predicted minus measured; `None` where nothing was predicted."""
        return None if self.predicted_bytes is None else self.predicted_bytes - self.measured_bytes

    @property
    def error(self) -> float | None:
        """The difference over the measured bytes, over the predicted ones where nothing was there."""
        return relative_error(self.predicted_bytes, self.measured_bytes)

    def within(self, tolerance: float) -> bool | None:
        """Whether the difference is at most `tolerance` (a fraction); `None` where nothing was predicted.

        Parameters, buffers, gradients and optimizer state follow from shapes, so each is held against its own bytes;
        what a step makes and drops (activations, temporaries, inputs) against everything there at that moment.
        """
        difference = self.difference_bytes
        if difference is None or self.predicted_bytes is None:
            return None
        whole = self.measured_bytes if self.category in STATIC else self.measured_total_bytes
        return abs(difference) <= tolerance * (whole or self.predicted_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPeak:
    """The most memory of the run."""

    predicted_bytes: int | None
    """Most allocated bytes that were predicted; `None`: not predicted."""
    measured_bytes: int
    """Most allocated bytes."""
    predicted_reserved_bytes: int | None = None
    """Most that the allocator was to hold; `None`: not predicted."""
    measured_reserved_bytes: int = 0
    """Most that the allocator held."""
    measured_device_bytes: int | None = None
    """Used memory of the device as its driver said after the last step; `None`: not asked."""

    @property
    def error(self) -> float | None:
        """The difference of the allocated bytes over the measured ones."""
        return relative_error(self.predicted_bytes, self.measured_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedState:
    """One key of `optimizer.state[p]` over all parameters."""

    name: str
    """The key (`exp_avg`)."""
    predicted_bytes: int | None
    """Bytes of its tensors, not rounded to blocks, every storage once; `None`: not predicted."""
    measured_bytes: int
    """The same, measured after the last step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedModule:
    """One category in modules of one kind, where prediction and measurement differ."""

    module: str
    """Path with the numbers of equal layers as `*`."""
    category: Category
    """What the memory is for."""
    predicted_bytes: int
    """Bytes of blocks that were predicted."""
    measured_bytes: int
    """Bytes of blocks that were there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A prediction and a measurement of the same steps, side by side."""

    memsim_version: str
    """Version that made it."""
    model: str
    """Name of the model."""
    device: MeasuredOn
    """Where it was measured."""
    hardware: TraceDevice
    """The device itself, and the torch that ran."""
    loop: MeasuredLoop
    """Who ran the steps."""
    versions: dict[str, str]
    """Versions of the packages that ran, by name."""
    num_steps: int
    """Optimizer steps that were completed."""
    rows: tuple[ComparedRow, ...]
    """Every category at every phase's peak and end, in order."""
    peak: ComparedPeak
    """The most memory."""
    optimizer_state: tuple[ComparedState, ...]
    """Optimizer state by key."""
    modules: tuple[ComparedModule, ...]
    """The ten largest differences by module; empty where there are none."""
    tolerance: float
    """The largest difference that passes, as a fraction."""
    notes: tuple[str, ...]
    """What was assumed, what the loop adds, what is not predicted, in sentences."""
    oom: OutOfMemory | None
    """The allocation that failed and ended the run; the rows end there."""
    trace: StepTrace | None = None
    """Every measured event; `None` where the result was saved without it."""

    @property
    def judged(self) -> tuple[ComparedRow, ...]:
        """Rows of which something was predicted."""
        return tuple(row for row in self.rows if row.predicted_bytes is not None)

    @property
    def wrong(self) -> tuple[ComparedRow, ...]:
        """Rows outside the tolerance, the largest difference first."""
        rows = [row for row in self.rows if row.within(self.tolerance) is False]
        return tuple(sorted(rows, key=lambda row: -abs(row.difference_bytes or 0)))

    @property
    def wrong_state(self) -> tuple[ComparedState, ...]:
        """Keys of the optimizer state outside the tolerance."""
        errors = (
            (state, relative_error(state.predicted_bytes, state.measured_bytes)) for state in self.optimizer_state
        )
        return tuple(state for state, error in errors if error is not None and abs(error) > self.tolerance)

    @property
    def wrong_categories(self) -> tuple[Category, ...]:
        """Categories that are outside the tolerance somewhere, the largest difference first."""
        state = (Category.OPTIMIZER_STATE,) if self.wrong_state else ()
        return tuple(dict.fromkeys((*(row.category for row in self.wrong), *state)))

    @property
    def worst(self) -> ComparedRow | None:
        """The row with the largest difference in bytes; `None` where nothing was predicted."""
        return max(self.judged, key=lambda row: abs(row.difference_bytes or 0), default=None)

    @property
    def passed(self) -> bool:
        """Whether something was predicted, all of it within the tolerance, and an out-of-memory error, if any, too."""
        return self._num_judged > 0 and not self.wrong_categories and self._peak_is_right and self._oom_is_right

    @property
    def verdict(self) -> str:
        """One sentence: passed, or what is wrong where."""
        if self.oom is not None and not self._oom_is_right:
            return f"It ran out of memory in step {self.oom.step}, {self.oom.phase.value}; {self._expected_peak}."
        if not self._num_judged:
            return "Nothing was predicted, so nothing was judged."
        limit = f"{self.tolerance * 100:g}%"
        if self.passed:
            if not self.judged:
                return f"The predicted peak is within {limit} of what was measured."
            return f"All {self._num_judged} predicted figures are within {limit} of what was measured."
        largest_of = {row.category: row for row in reversed(self.wrong)}
        told = [_told(largest_of[kind]) for kind in self.wrong_categories if kind in largest_of]
        if not self.wrong:
            told += [
                f"optimizer state {state.name!r} ({_both(state.predicted_bytes or 0, state.measured_bytes)})"
                for state in self.wrong_state
            ]
        if not self._peak_is_right:
            told.append(f"the peak ({_both(self.peak.predicted_bytes or 0, self.peak.measured_bytes)})")
        return f"Outside {limit}: {'; '.join(told)}."

    @property
    def _num_judged(self) -> int:
        return len(self.judged) + (self.peak.predicted_bytes is not None)

    @property
    def _peak_is_right(self) -> bool:
        error = self.peak.error
        return error is None or self.oom is not None or abs(error) <= self.tolerance

    @property
    def _oom_is_right(self) -> bool:
        """Whether memory ran out exactly where the prediction says that it does not fit."""
        predicted = self.peak.predicted_reserved_bytes or self.peak.predicted_bytes
        return self.oom is None or (predicted is not None and predicted > self.hardware.total_bytes)

    @property
    def _expected_peak(self) -> str:
        predicted = self.peak.predicted_bytes
        if predicted is None:
            return "a peak was not predicted"
        return f"the predicted peak is {format_bytes(predicted)} of {format_bytes(self.hardware.total_bytes)}"

    def to_dict(self, *, details: bool = False) -> dict[str, Any]:
        """Return the JSON object of INTERFACE's `verify`, with every measured event if `details`."""
        data: dict[str, Any] = {"schema": SCHEMA, "kind": KIND}
        data |= {f.name: json_value(_plain(getattr(self, f.name))) for f in fields(self) if f.name != "trace"}
        data["peak"]["error"] = self.peak.error
        data |= {"passed": self.passed, "verdict": self.verdict}
        if details:
            data["trace"] = self.whole_trace().to_dict()
        return data

    def whole_trace(self) -> StepTrace:
        """Return every measured event.

        Raises:
            OutputError: the result was read from a file that does not have them.
        """
        if self.trace is None:
            raise OutputError("this comparison was saved without its events: make it again with --details.")
        return self.trace

    def to_frame(self, *, details: bool = False) -> pd.DataFrame:
        """Return one row per step, phase, moment and category, or one per differing module if `details`."""
        if details:
            return frame_of([_frame_row(module, {}) for module in self.modules])
        return frame_of([_frame_row(row, {"within_tolerance": row.within(self.tolerance)}) for row in self.rows])

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the comparison, with every event it has, as JSON that `memsim.load` reads.

        Raises:
            OutputError: the file exists and `force` is not set, is a folder, or cannot be written.
        """
        write_new(path, json.dumps(self.to_dict(details=self.trace is not None)), force=force)


def relative_error(predicted_bytes: int | None, measured_bytes: int) -> float | None:
    """Return the difference over the measured bytes, over the predicted ones where nothing was measured."""
    if predicted_bytes is None:
        return None
    whole = measured_bytes or predicted_bytes
    return (predicted_bytes - measured_bytes) / whole if whole else 0.0


def comparison_of(data: Mapping[str, Any]) -> Comparison:
    """Return the comparison that `Comparison.to_dict` gave.

    Raises:
        ValueError: it is not such an object; the message says where.
    """
    trace = data.get("trace")
    saved = read_data(Comparison, {key: value for key, value in data.items() if key != "trace"})
    return replace(saved, trace=trace_of(trace)) if trace is not None else saved


def _told(row: ComparedRow) -> str:
    moment = "at the end" if row.moment == "end" else "at the peak"
    where = f"{moment} of {row.phase.value} in step {row.step}"
    return f"{row.category.value} {where} ({_both(row.predicted_bytes or 0, row.measured_bytes)})"


def _both(predicted: int, measured: int) -> str:
    return f"predicted {format_bytes(predicted)}, measured {format_bytes(measured)}, {predicted - measured:+,} bytes"


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value


def _frame_row(row: ComparedRow | ComparedModule, more: Mapping[str, Any]) -> dict[str, Any]:
    values = json_value(asdict(row))
    error = relative_error(row.predicted_bytes, row.measured_bytes)
    difference = None if row.predicted_bytes is None else row.predicted_bytes - row.measured_bytes
    return {**values, "difference_bytes": difference, "error": error, **more}


def largest(modules: Iterable[ComparedModule], num: int = 10) -> tuple[ComparedModule, ...]:
    """Return the modules that differ, the largest difference first, at most `num`."""
    differing = [m for m in modules if m.predicted_bytes != m.measured_bytes]
    differing.sort(key=lambda m: (-abs(m.predicted_bytes - m.measured_bytes), m.module, m.category.value))
    return tuple(differing[:num])
