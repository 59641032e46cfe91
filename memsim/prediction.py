"""`Prediction`: what a step is expected to hold, phase by phase, in the form that a measurement is held against."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from memsim.config import TrainingConfig
from memsim.ledger import Category, Phase
from memsim.model import ModelSpec, ParameterSpec
from memsim.optimizers import Assignment, assign_in_loop, state_of
from memsim.optimizers.gradients import clip_grad_norm_events
from memsim.optimizers.rules import StateEntry
from memsim.optimizers.state import OptimizerState
from memsim.optimizers.step import group_step_events, step_source
from memsim.optimizers.step_event import StepEvent
from memsim.step import AllocatorSettings, Holder, StepTrace
from memsim.step.peaks import HeldTensor, occupancy
from memsim.step.requests import Totals, block_bytes, requests_by_phase
from memsim.tensors import TensorSpec

STATIC = (Category.PARAMETER, Category.BUFFER, Category.GRADIENT, Category.OPTIMIZER_STATE)
"""Categories that follow from shapes alone."""

TRAINER_GRAD_NORM = 1.0
"""`max_grad_norm` of `transformers.TrainingArguments` (transformers 5.24, training_args.py)."""

_KERNELS = (
    "What kernels of the optimizer's step take inside themselves (the scratch of reductions, as in Adafactor's norms) "
    "is not predicted.",
)

_INNER = re.compile(r"[.\[]")
"""Where the path into a nested value begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedPhase:
    """The memory of one phase of one step, as far as it is predicted."""

    step: int
    """Training step, from 1."""
    phase: Phase
    """The phase."""
    peak: Totals | None = None
    """Bytes of blocks at the phase's peak; `None`, or a category that is not there: not predicted."""
    end: Totals | None = None
    """The same when the phase ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What is expected of a run, before it runs."""

    model: str
    """Name of the model."""
    config: TrainingConfig
    """Every choice, resolved."""
    phases: tuple[PredictedPhase, ...]
    """Phases of which something is predicted."""
    held: tuple[HeldTensor, ...]
    """Every tensor that is expected at one moment."""
    held_at: Literal["end", "peak"]
    """That moment: the end of the last optimizer step (of `STATIC` categories only), or the peak of the run."""
    optimizer_state: Mapping[str, int]
    """Bytes of the tensors of each key of `optimizer.state`, not rounded, every storage once."""
    peak_allocated_bytes: int | None = None
    """Most that live tensors take; `None`: not predicted."""
    peak_reserved_bytes: int | None = None
    """Most that the allocator holds; `None`: not predicted."""
    notes: tuple[str, ...] = ()
    """What was assumed and what is not predicted, in sentences."""

    @property
    def least_bytes(self) -> int:
        """The predicted peak; where there is none, the most that is predicted for one moment, so a lower bound."""
        if self.peak_reserved_bytes is not None or self.peak_allocated_bytes is not None:
            return max(self.peak_reserved_bytes or 0, self.peak_allocated_bytes or 0)
        moments = [totals for phase in self.phases for totals in (phase.peak, phase.end) if totals is not None]
        return max((sum(totals.values()) for totals in moments), default=0)


def prediction_of_trace(
    trace: StepTrace, *, model: str, config: TrainingConfig, notes: Sequence[str] = ()
) -> Prediction:
    """Return the prediction that a simulated run stands for: every category of every phase.

    Raises:
        MemsimError: the trace is not whole.
    """
    found = occupancy(trace)
    state: dict[str, int] = {}
    for event in trace.events:
        if event.action == "alloc" and event.holder is not None and event.holder.category is Category.OPTIMIZER_STATE:
            key = state_key(event.holder.name)
            state[key] = state.get(key, 0) + event.nbytes
    return Prediction(
        model=model,
        config=config,
        phases=tuple(
            PredictedPhase(
                step=phase.step,
                phase=phase.phase,
                peak={category: phase.peak.get(category, 0) for category in Category},
                end={category: phase.end.get(category, 0) for category in Category},
            )
            for phase in requests_by_phase(trace)
        ),
        held=found.held,
        held_at="peak",
        optimizer_state=state,
        peak_allocated_bytes=found.peak_allocated_bytes,
        peak_reserved_bytes=found.peak_reserved_bytes,
        notes=tuple(notes),
    )


def state_key(name: str) -> str:
    """Return the key of `optimizer.state[p]` in a holder's name or an entry's (`exp_avg.codes of h.0.attn.weight`)."""
    return _INNER.split(name.partition(" of ")[0], maxsplit=1)[0]


def static_prediction(
    spec: ModelSpec,
    config: TrainingConfig,
    *,
    num_steps: int = 2,
    settings: AllocatorSettings | None = None,
    has_state: bool = False,
) -> Prediction:
    """Return what follows from shapes alone: parameters, buffers, gradients, optimizer state, the optimizer's step.

    Args:
        spec: the model, its frozen parameters marked.
        config: the training; its optimizer decides state and step.
        num_steps: training steps that will be measured.
        settings: of CUDA's caching allocator, which rounds every tensor to a block; `None` for the CPU.
        has_state: whether the optimizer has stepped before, so that its state exists already.

    Raises:
        UsageError: the optimizer does not take a parameter that it is given.
    """
    parts = assign_in_loop(config.optimizer, spec.table, in_trainer=config.loop == "trainer")
    static = _Static(spec=spec, parts=parts, state=state_of(parts), settings=settings)
    clip = config.max_grad_norm if config.max_grad_norm is not None or config.loop != "trainer" else TRAINER_GRAD_NORM
    reasons = tuple(_unmodelled(parts))
    steady = static.of_step(first=False, clips=bool(clip), with_peak=not reasons)
    first = steady if has_state else static.of_step(first=True, clips=bool(clip), with_peak=not reasons)
    phases = [PredictedPhase(step=1, phase=Phase.LOAD, end=static.loaded(has_state=has_state))]
    for step in range(1, num_steps + 1):
        phases += [replace(phase, step=step) for phase in (first if step == 1 else steady)]
    return Prediction(
        model=spec.name,
        config=config,
        phases=tuple(phases),
        held=tuple(sorted(static.held(), key=lambda tensor: -tensor.allocated_bytes)),
        held_at="end",
        optimizer_state=static.bytes_by_key(),
        notes=(*spec.assumptions, *reasons, *(_KERNELS if settings is not None and not reasons else ())),
    )


def _unmodelled(parts: Assignment) -> Iterator[str]:
    for optimizer, parameters in parts:
        trained = [p for p in parameters if p.requires_grad]
        reason = step_source(optimizer, trained).reason if trained else ""
        if reason:
            yield f"Temporaries of {optimizer.name}.step() are not predicted: {reason}."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Static:
    """What of a step follows from shapes."""

    spec: ModelSpec
    parts: Assignment
    state: OptimizerState
    settings: AllocatorSettings | None

    @property
    def on_cpu(self) -> bool:
        return self.settings is None

    def of_step(self, *, first: bool, clips: bool, with_peak: bool) -> tuple[PredictedPhase, ...]:
        before, after = self.before_step(first=first), self.before_step(first=False)
        peak = self.step_peak(before, first=first, clips=clips) if with_peak else None
        return (
            PredictedPhase(step=1, phase=Phase.BACKWARD, end=before),
            PredictedPhase(step=1, phase=Phase.OPTIMIZER_STEP, peak=peak, end=after),
        )

    def loaded(self, *, has_state: bool = False) -> Totals:
        table = self.spec.table
        made = sum(block for _, _, block, constructor in self._entries() if constructor or has_state)
        return {
            Category.PARAMETER: sum(self._block(p.tensor) for p in table.unique),
            Category.BUFFER: sum(self._block(b.tensor) for b in table.buffers),
            Category.OPTIMIZER_STATE: made,
        }

    def before_step(self, *, first: bool) -> Totals:
        gradients = sum(self._block(p.tensor) for p in self._with_gradient())
        return {**self.loaded(has_state=not first), Category.GRADIENT: gradients}

    def step_peak(self, before: Totals, *, first: bool, clips: bool) -> Totals:
        """Return the categories at the worst moment of clipping and `step()`; nothing else changes in between."""
        groups = [(optimizer, [p for p in parameters if p.requires_grad]) for optimizer, parameters in self.parts]
        groups = [group for group in groups if group[1]]
        events: list[StepEvent] = []
        if clips:
            events += _ended(clip_grad_norm_events(self._with_gradient(), on_cpu=self.on_cpu))
        events += group_step_events(groups, first_step=first, on_cpu=self.on_cpu)
        live = dict.fromkeys(("temporary", "optimizer_state"), 0)
        peak = dict(live)
        for event in events:
            sign = 1 if event.action == "alloc" else -1
            live[event.category] += sign * self._block(event.tensor)
            if sum(live.values()) > sum(peak.values()):
                peak = dict(live)
        # State that this step has but does not make (bitsandbytes' tables on the CPU) is there before.
        there = self.loaded(has_state=True)[Category.OPTIMIZER_STATE] - live["optimizer_state"]
        return {
            **before,
            Category.OPTIMIZER_STATE: there + peak["optimizer_state"],
            Category.TEMPORARY: peak["temporary"],
        }

    def held(self) -> Iterator[HeldTensor]:
        table = self.spec.table
        for category, name, tensor in (
            *((Category.PARAMETER, p.name, p.tensor) for p in table.unique),
            *((Category.BUFFER, b.name, b.tensor) for b in table.buffers),
            *((Category.GRADIENT, p.name, p.tensor) for p in self._with_gradient()),
        ):
            yield _held(category, name, name, tensor, self._block(tensor))
        for owner, entry, block, _ in self._entries():
            yield _held(
                Category.OPTIMIZER_STATE, f"{entry.name} of {owner}", owner, entry.storage or entry.tensor, block
            )

    def bytes_by_key(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        for _, entry, _, _ in self._entries():
            key = state_key(entry.name)
            totals[key] = totals.get(key, 0) + entry.nbytes
        return totals

    def _with_gradient(self) -> list[ParameterSpec]:
        kept = {
            p.name
            for optimizer, parameters in self.parts
            for p in parameters
            if p.requires_grad and not optimizer.gradients_live_one_at_a_time
        }
        return [p for p in self.spec.table.unique if p.name in kept]

    def _entries(self) -> Iterator[tuple[str, StateEntry, int, bool]]:
        """Yield every storage of the state once: its parameter, its bytes, and whether the constructor makes it."""
        constructed = {
            p.name
            for optimizer, parameters in self.parts
            if optimizer.rule.created == "constructor"
            for p in parameters
        }
        shared: set[str] = set()
        for parameter, entries in self.state.by_parameter:
            for entry in entries:
                tensor = entry.storage or entry.tensor
                if tensor.is_python_number or entry.shared in shared or not self._is_here(tensor):
                    continue
                if entry.shared is not None:
                    shared.add(entry.shared)
                yield parameter.name, entry, self._block(tensor), parameter.name in constructed

    def _is_here(self, tensor: TensorSpec) -> bool:
        """Whether the measured allocator has it: on the CPU all that is there is host memory."""
        return self.on_cpu or tensor.device == "device"

    def _block(self, tensor: TensorSpec) -> int:
        return block_bytes(tensor.nbytes, self.settings) if self._is_here(tensor) else 0


def _held(category: Category, name: str, owner: str, tensor: TensorSpec, allocated_bytes: int) -> HeldTensor:
    holder = Holder(
        category=category,
        module=owner.rpartition(".")[0],
        name=name,
        shape=tensor.shape,
        dtype=tensor.dtype,
    )
    return HeldTensor(allocated_bytes=allocated_bytes, requested_bytes=tensor.nbytes, holder=holder)


def _ended(events: Iterable[StepEvent]) -> list[StepEvent]:
    """Return the events, and the end of what they hand on: the plain loop does not keep the norm."""
    events = list(events)
    freed = {event.key for event in events if event.action == "free"}
    left = [event for event in events if event.action == "alloc" and event.key not in freed]
    return [*events, *(event._replace(action="free") for event in left)]
