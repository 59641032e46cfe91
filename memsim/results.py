"""What an estimate says: frozen data that saves to JSON, loads back and becomes a DataFrame."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from memsim.config import TrainingConfig
from memsim.errors import OutputError
from memsim.files import write_new
from memsim.optimizers import StateRow
from memsim.report.frames import frame_of
from memsim.step.held import Held, Peak
from memsim.step.peaks import PhasePeak
from memsim.typed import json_value, read_data

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
_STEP_COLUMNS = ("first_step_peak_bytes", "later_step_peak_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """Which model an estimate is about."""

    name: str
    """Catalog or hub id, folder, or class of a Python object."""
    source: str
    """Where its facts come from."""
    model_class: str
    """Class whose parameters were counted; empty if not known."""
    num_parameters: int
    """Elements of all parameters, tied ones once."""
    num_trainable_parameters: int
    """Elements of the parameters that get a gradient."""
    num_parameter_tensors: int
    """Number of parameters, tied ones once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSummary:
    """Which optimizer an estimate is about."""

    class_path: str
    """The real class."""
    source: str
    """Package, version, file and line that its rule was read from."""
    ignores: str
    """What the rule leaves out; empty if nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticMemory:
    """Bytes that exist from the first optimizer step to the end of training."""

    parameter_bytes: int
    """Parameters, tied ones once."""
    buffer_bytes: int
    """Buffers, persistent or not."""
    gradient_bytes: int
    """Gradients of the trainable parameters, in the parameters' dtype."""
    optimizer_state_bytes: int
    """Optimizer state on the parameters' device, every storage once."""
    optimizer_state_num_elements: int
    """Elements of every entry of `optimizer.state.values()`; a Python number counts as one."""
    optimizer_state_host_bytes: int
    """Optimizer state in host or unified memory (a CPU `step` tensor, paged state)."""

    @property
    def device_bytes(self) -> int:
        """Everything static on the device."""
        return self.parameter_bytes + self.buffer_bytes + self.gradient_bytes + self.optimizer_state_bytes


class OptimizerStep(Protocol):
    """What `optimizer.step()` holds on the device above what it finds there."""

    @property
    def first_step_peak_bytes(self) -> int:
        """At the first step: temporaries and the state that it creates."""

    @property
    def later_step_peak_bytes(self) -> int:
        """At every later step: temporaries alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedOptimizerStep:
    """An `OptimizerStep` that was read from a file."""

    first_step_peak_bytes: int
    """At the first step: temporaries and the state that it creates."""
    later_step_peak_bytes: int
    """At every later step: temporaries alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmodeled:
    """Something that takes memory and is in none of the figures."""

    what: str
    """What it is (`activations`)."""
    where: str
    """Which figure lacks it."""
    reason: str
    """Why, and what would give it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the forward and backward of a step were recorded with."""

    torch: str
    """Version of torch."""
    transformers: str
    """Version of transformers."""
    compute_capability: str
    """Of the imaginary GPU, `"8.0"`: kernels are chosen by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a step fits on a GPU."""

    gpu: str
    """The driver's name of the GPU."""
    total_bytes: int
    """Memory of the GPU."""
    context_bytes: int
    """What the CUDA context takes of it."""
    needed_bytes: int
    """Reserved memory at its peak and the context, on a GPU without limit where it does not fit on this one."""
    fits: bool
    """Whether no allocation fails."""
    num_retries: int
    """How often cached memory had to be given back before an allocation succeeded: each one stops the GPU."""

    @property
    def left_bytes(self) -> int:
        """What is left at the peak, 0 where it does not fit."""
        return max(self.total_bytes - self.needed_bytes, 0) if self.fits else 0

    @property
    def missing_bytes(self) -> int:
        """What is missing where it does not fit."""
        return 0 if self.fits else max(self.needed_bytes - self.total_bytes, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeStep:
    """Forward, backward and optimizer step, replayed through the caching allocator."""

    peak: Peak
    """The most memory; `device_bytes` is what nvidia-smi would show."""
    phases: tuple[PhasePeak, ...]
    """Every phase of step 1 and of a steady step, in order."""
    held: Held
    """Whose memory it was at the peak."""
    why: str
    """Where the peak is and what makes it, in a sentence."""
    recorded: Recorded
    """What forward and backward were recorded with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The memory of one training step, before anything runs."""

    memsim_version: str
    """Version that made it."""
    model: ModelSummary
    """The model."""
    config: TrainingConfig
    """Every choice, resolved: no `auto`, every optimizer argument."""
    optimizer: OptimizerSummary
    """The optimizer's class and where its rule comes from."""
    assumptions: tuple[str, ...]
    """What was assumed, in sentences."""
    unmodeled: tuple[Unmodeled, ...]
    """What is not in the figures."""
    static: StaticMemory
    """Parameters, buffers, gradients, optimizer state."""
    optimizer_step: OptimizerStep | None
    """What `step()` needs on top for a moment; `None` where that is not known (see `unmodeled`)."""
    optimizer_state: Iterable[StateRow] | None
    """Every state entry of every parameter; `None` where the estimate was saved without them."""
    whole_step: WholeStep | None = None
    """The whole step; `None` where none was recorded (see `unmodeled`)."""
    fit: Fit | None = None
    """Whether it fits on the GPU that was named; `None` where none was named, or no step was recorded."""

    @property
    def peak(self) -> Peak | None:
        """The peak of the whole step; `None` where none was recorded (see `unmodeled`)."""
        return self.whole_step.peak if self.whole_step is not None else None

    @property
    def phases(self) -> tuple[PhasePeak, ...]:
        """Every phase of step 1 and of a steady step; empty where none was recorded."""
        return self.whole_step.phases if self.whole_step is not None else ()

    @property
    def bytes_per_parameter(self) -> float:
        """Static bytes on the device over all parameters (0 for a model without parameters)."""
        return self.static.device_bytes / self.model.num_parameters if self.model.num_parameters else 0.0

    def to_dict(self, *, details: bool = False) -> dict[str, Any]:
        """Return the JSON object of INTERFACE's `estimate`, with every state entry if `details`."""
        data: dict[str, Any] = {
            "schema": SCHEMA,
            "memsim_version": self.memsim_version,
            "model": asdict(self.model),
            "config": asdict(self.config),
            "optimizer": asdict(self.optimizer),
            "assumptions": list(self.assumptions),
            "unmodeled": [asdict(item) for item in self.unmodeled],
            "static": asdict(self.static),
            "optimizer_step": _step_json(self.optimizer_step),
            **_whole_json(self.whole_step),
            "fit": _fit_json(self.fit),
        }
        if details:
            data["optimizer_state"] = [row._asdict() for row in self.state_rows()]
        return data

    def state_rows(self) -> Iterable[StateRow]:
        """Return every state entry.

        Raises:
            OutputError: the estimate was read from a file that does not have them.
        """
        if self.optimizer_state is None:
            raise OutputError("this result was saved without details: make it again with --details, or in Python.")
        return self.optimizer_state

    def to_frame(self, *, details: bool = False) -> pd.DataFrame:
        """Return one row with every total, or one row per state entry if `details`."""
        return Estimates((self,)).to_frame(details=details)

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the estimate, with every state entry, as JSON that `memsim.load` reads.

        Raises:
            OutputError: the file exists and `force` is not set, is a folder, or cannot be written.
        """
        write_new(path, json.dumps(self.to_dict(details=True)), force=force)


@dataclass(frozen=True, slots=True)
class Estimates:
    """Several estimates, side by side."""

    results: tuple[Estimate, ...]
    """One per optimizer, in the order asked."""

    def __iter__(self) -> Iterator[Estimate]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: int) -> Estimate:
        return self.results[index]

    def to_dict(self, *, details: bool = False) -> dict[str, Any]:
        """Return the JSON object: a single estimate's own, else `{"schema", "results"}`."""
        return {"schema": SCHEMA, "results": [estimate.to_dict(details=details) for estimate in self.results]}

    def to_frame(self, *, details: bool = False) -> pd.DataFrame:
        """Return one row per estimate, or one row per state entry of each if `details`."""
        if details:
            return frame_of([row for estimate in self.results for row in _detail_rows(estimate)])
        return frame_of([_total_row(estimate) for estimate in self.results])

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write all of them, with every state entry, as JSON that `memsim.load` reads.

        Raises:
            OutputError: the file exists and `force` is not set, is a folder, or cannot be written.
        """
        write_new(path, json.dumps(self.to_dict(details=True)), force=force)


def _whole_json(whole: WholeStep | None) -> dict[str, Any]:
    if whole is None:
        return {"peak": None, "phases": [], "held": None, "why": "", "recorded": None}
    data: dict[str, Any] = json_value(asdict(whole))
    return data


def _fit_json(fit: Fit | None) -> dict[str, Any] | None:
    return {**asdict(fit), "left_bytes": fit.left_bytes, "missing_bytes": fit.missing_bytes} if fit else None


def _step_json(step: OptimizerStep | None) -> dict[str, int] | None:
    if step is None:
        return None
    return {
        "first_step_peak_bytes": step.first_step_peak_bytes,
        "later_step_peak_bytes": step.later_step_peak_bytes,
    }


def _total_row(estimate: Estimate) -> dict[str, Any]:
    config = estimate.config
    return {
        "model": estimate.model.name,
        "task": config.task,
        "dtype": config.dtype,
        "optimizer": config.optimizer.name,
        "num_parameters": estimate.model.num_parameters,
        "num_trainable_parameters": estimate.model.num_trainable_parameters,
        "num_parameter_tensors": estimate.model.num_parameter_tensors,
        **asdict(estimate.static),
        **(_step_json(estimate.optimizer_step) or dict.fromkeys(_STEP_COLUMNS)),
        "static_device_bytes": estimate.static.device_bytes,
        "bytes_per_parameter": estimate.bytes_per_parameter,
        **_peak_columns(estimate),
    }


def _peak_columns(estimate: Estimate) -> dict[str, Any]:
    peak, fit = estimate.peak, estimate.fit
    names = ("requested_bytes", "allocated_bytes", "reserved_bytes", "device_bytes")
    return {
        **{f"peak_{name}": getattr(peak, name) if peak else None for name in names},
        "peak_step": peak.step if peak else None,
        "peak_phase": peak.phase.value if peak else None,
        "gpu": fit.gpu if fit else None,
        "fits": fit.fits if fit else None,
    }


def _detail_rows(estimate: Estimate) -> Iterator[dict[str, Any]]:
    for row in estimate.state_rows():
        yield {
            "model": estimate.model.name,
            "optimizer": estimate.config.optimizer.name,
            **row._asdict(),
            "shape": list(row.shape),
        }


def estimates_of(data: Mapping[str, Any]) -> Estimate | Estimates:
    """Return the estimate, or the estimates, that `to_dict` gave.

    Raises:
        ValueError: it is not such an object; the message says where.
    """
    if "results" not in data:
        return _estimate_of(data)
    results = data["results"]
    if not isinstance(results, list) or not results:
        raise ValueError("results must be a list of at least one result")
    return Estimates(tuple(_estimate_of(item) for item in results))


def _estimate_of(data: Mapping[str, Any]) -> Estimate:
    saved = read_data(_SavedEstimate, data)
    whole = read_data(WholeStep, data) if data.get("peak") is not None else None
    return Estimate(**{field.name: getattr(saved, field.name) for field in fields(saved)}, whole_step=whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SavedEstimate:
    """An `Estimate` as JSON holds it, beside the whole step, whose fields stand among its own."""

    memsim_version: str
    model: ModelSummary
    config: TrainingConfig
    optimizer: OptimizerSummary
    assumptions: tuple[str, ...]
    unmodeled: tuple[Unmodeled, ...]
    static: StaticMemory
    optimizer_step: SavedOptimizerStep | None
    optimizer_state: tuple[StateRow, ...] | None = None
    fit: Fit | None = None
