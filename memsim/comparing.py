"""From a prediction and a measured run to a `Comparison`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from memsim import __version__
from memsim.comparison import (
    DEFAULT_TOLERANCE,
    ComparedModule,
    ComparedPeak,
    ComparedRow,
    ComparedState,
    Comparison,
    MeasuredLoop,
    MeasuredOn,
    Moment,
    largest,
)
from memsim.errors import UsageError, shown
from memsim.ledger import Category, Phase
from memsim.prediction import STATIC, Prediction, state_key
from memsim.step import AllocatorSettings, OutOfMemory, StepTrace
from memsim.step.peaks import HeldTensor, Occupancy, by_module, held_at, occupancy
from memsim.step.requests import PhaseRequests, Totals, block_bytes, requests_by_phase, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Real steps, measured."""

    trace: StepTrace
    """Every event."""
    device: MeasuredOn
    """Where they ran."""
    loop: MeasuredLoop
    """Who ran them."""
    num_steps: int
    """Optimizer steps that were completed."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the packages that ran, by name."""
    notes: tuple[str, ...] = ()
    """What was special, in sentences."""
    oom: OutOfMemory | None = None
    """The allocation that failed and ended the run."""
    device_bytes: int | None = None
    """Used memory of the device as its driver said after the last step; `None`: not asked."""


def compare_run(prediction: Prediction, measured: Measurement, *, tolerance: float = DEFAULT_TOLERANCE) -> Comparison:
    """Return prediction and measurement side by side.

    Args:
        prediction: made before the run.
        measured: the run.
        tolerance: the largest difference that passes, as a fraction.

    Raises:
        MemsimError: the measured trace is not whole.
        UsageError: the tolerance is no fraction of at least 0.
    """
    if not isinstance(tolerance, (int, float)) or isinstance(tolerance, bool) or not 0 <= tolerance < float("inf"):
        raise UsageError(f"tolerance must be a fraction such as 0.01 (1%), not {shown(tolerance)}.")
    found = occupancy(measured.trace)
    return Comparison(
        memsim_version=__version__,
        model=prediction.model,
        device=measured.device,
        hardware=measured.trace.device,
        loop=measured.loop,
        versions=dict(measured.versions),
        num_steps=measured.num_steps,
        rows=tuple(_rows(prediction, requests_by_phase(measured.trace), measured.oom)),
        peak=ComparedPeak(
            predicted_bytes=prediction.peak_allocated_bytes,
            measured_bytes=found.peak_allocated_bytes,
            predicted_reserved_bytes=prediction.peak_reserved_bytes,
            measured_reserved_bytes=found.peak_reserved_bytes,
            measured_device_bytes=measured.device_bytes,
        ),
        optimizer_state=tuple(_state(prediction, measured)),
        modules=_modules(prediction, measured, found),
        tolerance=float(tolerance),
        notes=tuple(dict.fromkeys((*prediction.notes, *measured.notes, *_unsplit(measured, found)))),
        oom=measured.oom,
        trace=measured.trace,
    )


def _rows(prediction: Prediction, phases: Iterable[PhaseRequests], oom: OutOfMemory | None) -> Iterator[ComparedRow]:
    predicted = {(phase.step, phase.phase): phase for phase in prediction.phases}
    for phase in phases:
        expected = predicted.get((phase.step, phase.phase))
        if expected is None or (oom is not None and (phase.step, phase.phase) == (oom.step, oom.phase)):
            peak = end = None  # not predicted, or it came neither to its peak nor to its end
        else:
            peak, end = expected.peak, expected.end
        yield from _rows_of(phase, "peak", phase.peak, peak)
        yield from _rows_of(phase, "end", phase.end, end)


def _rows_of(phase: PhaseRequests, moment: Moment, measured: Totals, predicted: Totals | None) -> Iterator[ComparedRow]:
    predicted = predicted or {}
    total = sum(measured.values())
    for category in Category:
        there, expected = measured.get(category, 0), predicted.get(category)
        if there or expected:
            yield ComparedRow(
                step=phase.step,
                phase=phase.phase,
                moment=moment,
                category=category,
                predicted_bytes=expected,
                measured_bytes=there,
                measured_total_bytes=total,
            )


def _state(prediction: Prediction, measured: Measurement) -> Iterator[ComparedState]:
    there: Counter[str] = Counter()
    for tensor in _last_held(measured):
        if tensor.holder.category is Category.OPTIMIZER_STATE:
            there[state_key(tensor.holder.name)] += tensor.requested_bytes
    if not measured.num_steps:
        return
    for name in dict.fromkeys((*prediction.optimizer_state, *there)):
        expected = prediction.optimizer_state.get(name, 0)
        if expected or there[name]:
            yield ComparedState(name=name, predicted_bytes=expected, measured_bytes=there[name])


def _last_held(measured: Measurement) -> Sequence[HeldTensor]:
    """Return what was alive at the end of the last optimizer step that was completed; nothing without one."""
    ended = [
        index
        for index, event in enumerate(measured.trace.events)
        if event.phase is Phase.OPTIMIZER_STEP and event.step <= measured.num_steps
    ]
    begun = [
        span.event_index - 1
        for span in measured.trace.spans
        if span.phase is Phase.OPTIMIZER_STEP and span.step <= measured.num_steps
    ]
    return held_at(measured.trace, max(ended + begun)) if ended or begun else ()


def _modules(prediction: Prediction, measured: Measurement, found: Occupancy) -> tuple[ComparedModule, ...]:
    if measured.oom is not None:  # neither moment came
        return ()
    there: Iterable[HeldTensor] = found.held
    if prediction.held_at == "end":
        there = [tensor for tensor in _last_held(measured) if tensor.holder.category in STATIC]
    settings = settings_of(measured.trace)
    expected, real = _by_module(prediction.held, settings), _by_module(there, settings)
    return largest(
        ComparedModule(
            module=module,
            category=Category(name),
            predicted_bytes=expected.get((module, name), 0),
            measured_bytes=real.get((module, name), 0),
        )
        for module, name in {**expected, **real}
    )


def _by_module(tensors: Iterable[HeldTensor], settings: AllocatorSettings | None) -> dict[tuple[str, str], int]:
    rounded = [replace(t, allocated_bytes=block_bytes(t.requested_bytes, settings)) for t in tensors]
    return {(row.module, name): nbytes for row in by_module(rounded) for name, nbytes in row.by_category.items()}


def _unsplit(measured: Measurement, found: Occupancy) -> Iterator[str]:
    """Yield a sentence about what blocks at the peak took beyond their rounded requests."""
    settings = settings_of(measured.trace)
    rest = found.peak_allocated_bytes - sum(block_bytes(t.requested_bytes, settings) for t in found.held)
    if rest > 0:
        yield (
            f"{rest:,} bytes of the measured peak are the rest of larger blocks that PyTorch did not split; they are "
            "in no category."
        )
