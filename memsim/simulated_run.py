"""`SimulatedRun`: loading and two steps as a timeline of the caching allocator, beside the estimate of the step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsim.allocator import AllocatorConfig
from memsim.cuda_context import cuda_context
from memsim.errors import OutputError
from memsim.files import write_new
from memsim.report.frames import frame_of, phase_row
from memsim.results import Estimate, estimates_of
from memsim.simulation import Script, Simulation
from memsim.step import OutOfMemory, StepTrace, TraceEvent, trace_of
from memsim.step.timeline import running_bytes
from memsim.typed import json_value, read_data
from memsim.whole_step import NO_LIMIT_BYTES, chosen_gpu, simulate_on

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
KIND = "simulation"

_FIGURES = ("peak", "held", "why", "phases", "oom", "num_retries")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """Every event of the allocator while a model is loaded and trained for two steps."""

    estimate: Estimate
    """The same step without its events; where it does not fit, its peak is that of a GPU without end."""
    simulation: Simulation
    """Peak, phases and holders of this run; it ends where memory runs out. `device_bytes` has the CUDA context."""

    @property
    def trace(self) -> StepTrace:
        """Every event of the allocator."""
        assert self.simulation.trace is not None, "a run is made with its events"
        return self.simulation.trace

    @property
    def oom(self) -> OutOfMemory | None:
        """The request that failed; `None` where everything fits."""
        return self.simulation.oom

    @property
    def capacity_bytes(self) -> int | None:
        """What the allocator can have of the GPU that was named; `None` where none was."""
        fit = self.estimate.fit
        if fit is None:
            return None
        share = AllocatorConfig.parse(self.estimate.config.alloc_conf).per_process_memory_fraction
        return min(fit.total_bytes - fit.context_bytes, int(share * fit.total_bytes))

    def to_dict(self, *, details: bool = False) -> dict[str, Any]:
        """Return the JSON object, with every event; with every state entry of the estimate if `details`."""
        trace = self.trace.to_dict()
        allocated, reserved = running_bytes(self.trace)
        trace["events"] |= {"allocated_bytes": allocated.tolist(), "reserved_bytes": reserved.tolist()}
        return {
            "schema": SCHEMA,
            "kind": KIND,
            "memsim_version": self.estimate.memsim_version,
            **{name: _plain(getattr(self.simulation, name)) for name in _FIGURES},
            "estimate": self.estimate.to_dict(details=details),
            "trace": trace,
        }

    def to_frame(self, *, details: bool = False) -> pd.DataFrame:
        """Return one row per phase of each step, or one row per event of the allocator if `details`."""
        return frame_of([*self._event_rows()] if details else [*map(phase_row, self.simulation.phases)])

    def _event_rows(self) -> Iterator[dict[str, Any]]:
        allocated, reserved = running_bytes(self.trace)
        for index, event in enumerate(self.trace.events):
            yield {
                "index": index,
                "step": event.step,
                "phase": event.phase.value,
                "action": event.action,
                "address": event.address,
                "nbytes": event.nbytes,
                "allocated_bytes": allocated[index],
                "reserved_bytes": reserved[index],
                **_holder_columns(event),
            }

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the run, with every event and every state entry, as JSON that `memsim.load` reads.

        Raises:
            OutputError: the file exists and `force` is not set, is a folder, or cannot be written.
        """
        write_new(path, json.dumps(self.to_dict(details=True)), force=force)


def simulated_run(estimate: Estimate, script: Script) -> SimulatedRun:
    """Replay the script of an estimate's step with every event, on the GPU that was named or on one without end.

    Raises:
        OutputError: the estimate has no whole step.
        UsageError: a setting of the allocator that PyTorch does not take.
    """
    if estimate.whole_step is None:
        raise OutputError("there is no step to simulate: this estimate has only what stays between steps.")
    config = estimate.config
    gpu = chosen_gpu(config)
    context_bytes = cuda_context(gpu.name).nbytes
    limited = config.gpu is not None
    simulation = simulate_on(
        script,
        config,
        estimate.whole_step.recorded,
        total_bytes=gpu.memory_bytes if limited else NO_LIMIT_BYTES,
        context_bytes=context_bytes if limited else 0,
        keep_events=True,
    )
    peak = replace(simulation.peak, device_bytes=simulation.peak.reserved_bytes + context_bytes)
    return SimulatedRun(estimate=estimate, simulation=replace(simulation, peak=peak))


def simulated_run_of(data: Mapping[str, Any]) -> SimulatedRun:
    """Return the run that `SimulatedRun.to_dict` gave.

    Raises:
        OutputError: its events are missing or wrong.
        ValueError: it is not such an object; the message says where.
    """
    estimate = estimates_of(data["estimate"])
    if not isinstance(estimate, Estimate):
        raise ValueError("estimate must be one estimate, not several")
    simulation = read_data(Simulation, {**data, "trace": None})
    return SimulatedRun(estimate=estimate, simulation=replace(simulation, trace=trace_of(data["trace"])))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return json_value(asdict(value)) if hasattr(value, "__dataclass_fields__") else value


def _holder_columns(event: TraceEvent) -> dict[str, Any]:
    holder = event.holder
    if holder is None:
        return dict.fromkeys(("category", "name", "module", "op", "shape", "dtype"))
    return {
        "category": holder.category.value,
        "name": holder.name,
        "module": holder.module,
        "op": holder.op,
        "shape": list(holder.shape) if holder.shape is not None else None,
        "dtype": holder.dtype,
    }
