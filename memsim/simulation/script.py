"""`Script`: every request of a training run to the allocator, in order, whatever the allocator makes of them.

The sections of a step program give loading, forward and backward; the rules of the optimizers give `step()`, clipping
and unscaling. What joins them is the loop: gradients are freed in the order of the parameters by `zero_grad`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from memsim.config import TrainingConfig
from memsim.errors import MemsimError
from memsim.ledger import Category, Phase
from memsim.optimizers import Assignment, state_of
from memsim.optimizers.gradients import check_inf_events, clip_grad_norm_events, unscale_events
from memsim.optimizers.step import group_step_events, step_source
from memsim.optimizers.step_event import StepEvent
from memsim.step.section import Section, SectionName
from memsim.step.trace import Holder, Span
from memsim.tensors import TensorSpec

EMPTY_CACHE = -1
"""Key of the request that is none: `torch.cuda.empty_cache()`."""

_SCALAR = TensorSpec((), "float32")
_CATEGORIES = {"temporary": Category.TEMPORARY, "optimizer_state": Category.OPTIMIZER_STATE}


class Request(NamedTuple):
    """A block is asked for, or let go."""

    key: int
    """The block: the same for its alloc and its free."""
    nbytes: int
    """Requested bytes; 0 for the free of a block."""
    holder: Holder | None
    """What it is for; `None` for a free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A whole run."""

    requests: Sequence[Request]
    """Every alloc and free in order."""
    spans: Sequence[Span]
    """Where each phase begins, as an index into `requests`."""
    num_keys: int
    """How many blocks are asked for."""


def compose(
    sections: Mapping[SectionName, Section], parts: Assignment, config: TrainingConfig, *, num_steps: int = 2
) -> Script:
    """Return the requests of loading a model and of `num_steps` optimizer steps.

    Args:
        sections: the four sections of a step program, evaluated at one batch size and sequence length.
        parts: every optimizer with its parameters, in the model's order.
        config: the loop: accumulation, clipping, how gradients are zeroed.
        num_steps: 1 for the step that creates the state, 2 for a steady one after it.

    Raises:
        MemsimError: a section lets go of something that no section before it left.
    """
    writer = _Writer()
    left_out = set(without_gradient(sections, parts))
    trained = [(opt, [p for p in given if p.requires_grad and p.name not in left_out]) for opt, given in parts]
    writer.begin(1, Phase.LOAD)
    writer.section(sections["load"])
    _create_early_state(writer, parts)
    for step in range(1, num_steps + 1):
        for micro_step in range(config.gradient_accumulation_steps):
            kept = micro_step > 0 or (step > 1 and not config.zero_grad_set_to_none)
            name: SectionName = "accumulate" if kept else "steady" if step > 1 else "first"
            writer.section(sections[name], step, empties=_empties(config, step))
        writer.begin(step, Phase.OPTIMIZER_STEP)
        _optimizer_step(writer, [part for part in trained if part[1]], config, first_step=step == 1)
        writer.begin(step, Phase.ZERO_GRAD)
        if config.zero_grad_set_to_none:
            writer.free_gradients(p.name for _, parameters in trained for p in parameters)
    return Script(requests=writer.requests, spans=writer.spans, num_keys=writer.num_keys)


def without_gradient(sections: Mapping[SectionName, Section], parts: Assignment) -> list[str]:
    """Return the trained parameters that the loss does not reach: they get neither gradient nor state.

    Poolers whose output a task does not read are of this kind, and experts to which no token is sent.
    """
    reached = {slot.removeprefix("gradient:") for slot in sections["first"].left if slot.startswith("gradient:")}
    return [p.name for _, given in parts for p in given if p.requires_grad and p.name not in reached]


def _empties(config: TrainingConfig, step: int) -> bool:
    """Whether the Trainer empties the cache before backward; its global step begins at 0 (trainer.py @5.24)."""
    return config.empty_cache_steps is not None and (step - 1) % config.empty_cache_steps == 0


@dataclass(slots=True)
class _Writer:
    """Requests while they are written."""

    requests: list[Request] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    num_keys: int = 0
    left: dict[str, int] = field(default_factory=dict)
    """Key of every block that a section left, by slot."""
    state: dict[tuple[str, str], int] = field(default_factory=dict)
    """Key of every state entry, by parameter and name."""

    def begin(self, step: int, phase: Phase) -> None:
        self.spans.append(Span(step=step, phase=phase, event_index=len(self.requests)))

    def alloc(self, nbytes: int, holder: Holder | None) -> int:
        key = self.num_keys
        self.num_keys += 1
        self.requests.append(Request(key, nbytes, holder))
        return key

    def free(self, key: int) -> None:
        self.requests.append(Request(key, 0, None))

    def free_all(self, keys: Iterable[int]) -> None:
        for key in keys:
            self.free(key)

    def scalar(self, name: str) -> int:
        holder = Holder(
            category=Category.TEMPORARY, name=name, op="GradScaler.step", shape=_SCALAR.shape, dtype=_SCALAR.dtype
        )
        return self.alloc(_SCALAR.nbytes, holder)

    def section(self, section: Section, step: int = 1, *, empties: bool = False) -> None:
        first_key, before = self.num_keys, dict(self.left)
        self.num_keys += section.num_keys
        phase: Phase | None = None
        requests = self.requests
        for event in section.events:
            if event.phase is not phase:
                phase = event.phase
                if phase is Phase.BACKWARD and empties:
                    requests.append(Request(EMPTY_CACHE, 0, None))
                if phase is not Phase.LOAD:
                    self.begin(step, phase)
            if event.action == "alloc":
                requests.append(Request(first_key + event.key, event.nbytes, event.holder))
            elif event.key >= 0:
                requests.append(Request(first_key + event.key, 0, None))
            else:
                requests.append(Request(self._taken(event.slot, before), 0, None))
        self.left.update({slot: first_key + key for slot, key in section.left.items()})

    def _taken(self, slot: str, before: dict[str, int]) -> int:
        key = before.pop(slot, None)
        if key is None:
            raise MemsimError(f"the step program lets go of {slot!r}, which nothing before it left: record it anew.")
        if self.left.get(slot) == key:
            del self.left[slot]
        return key

    def free_gradients(self, names: Iterable[str]) -> None:
        for name in names:
            key = self.left.pop(f"gradient:{name}", None)
            if key is not None:
                self.free(key)


def _create_early_state(writer: _Writer, parts: Assignment) -> None:
    """Allocate the state that constructors make, before the first step."""
    for part in parts:
        if part[0].rule.created == "constructor" and part[1]:
            _create_state(writer, [part])


def _create_state(writer: _Writer, parts: Assignment) -> None:
    shared: set[str] = set()
    for parameter, entries in state_of(parts).by_parameter:
        for entry in entries:
            tensor = entry.storage or entry.tensor
            if tensor.is_python_number or tensor.device != "device" or entry.shared in shared:
                continue
            if entry.shared is not None:
                shared.add(entry.shared)
            event = StepEvent("alloc", 0, tensor, "optimizer_state", parameter.name, entry.name)
            writer.state[parameter.name, entry.name] = writer.alloc(tensor.nbytes, _holder(event, ""))


def _optimizer_step(writer: _Writer, parts: Assignment, config: TrainingConfig, *, first_step: bool) -> None:
    """Unscale, clip, step and update the scale, as `torch.amp.GradScaler` does where gradients are scaled."""
    parameters = [p for _, given in parts for p in given]
    scaled, clips = config.autocast == "float16", config.max_grad_norm is not None
    until_update: list[int] = []
    if scaled and clips:
        until_update += _write(writer, unscale_events(parameters), "GradScaler.unscale_")
    if clips:
        writer.free_all(_write(writer, clip_grad_norm_events(parameters), "clip_grad_norm_"))
    for run in _runs(parts):
        fused = scaled and bool(run[0][0].args.get("fused"))
        if scaled and not clips:
            given = [p for _, some in run for p in some]
            events = check_inf_events(given) if fused else unscale_events(given)
            until_update += _write(writer, events, "GradScaler.step")
        # A fused optimizer gets the scale and whether a gradient was infinite as new tensors.
        handed = [writer.scalar("found_inf")] if fused else []
        handed += [writer.scalar("grad_scale")] if fused and not clips else []
        _step(writer, run, first_step=first_step)
        writer.free_all(reversed(handed))
    writer.free_all(until_update)


def _step(writer: _Writer, run: Assignment, *, first_step: bool) -> None:
    if all(step_source(optimizer, given).rule is not None for optimizer, given in run):
        events = group_step_events(run, first_step=first_step)
        writer.free_all(_write(writer, events, f"{run[0][0].name}.step"))
    elif first_step:  # its temporaries are not known, its state is
        _create_state(writer, [part for part in run if part[0].rule.created == "first step"])


def _runs(parts: Assignment) -> list[Assignment]:
    """Return the groups of each optimizer together: neighbours of one class belong to one object."""
    runs: list[Assignment] = []
    for part in parts:
        if runs and runs[-1][0][0].rule is part[0].rule:
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def _write(writer: _Writer, events: Iterable[StepEvent], op: str) -> list[int]:
    """Write the events of a rule, and return the keys of the temporaries that it hands on."""
    keys: dict[int, int] = {}
    temporary: dict[int, int] = {}
    before = dict(writer.state)
    for event in events:
        if event.tensor.device != "device" or not event.tensor.nbytes:
            continue
        name = (event.parameter, event.name)
        if event.action == "alloc":
            key = keys[event.key] = writer.alloc(event.tensor.nbytes, _holder(event, op))
            if event.category == "optimizer_state":
                writer.state[name] = key
            else:
                temporary[event.key] = key
        else:  # of this step, or a state entry of an earlier one
            temporary.pop(event.key, None)
            writer.free(keys[event.key] if event.key in keys else before.pop(name))
    return list(temporary.values())


def _holder(event: StepEvent, op: str) -> Holder:
    name = f"{event.name} of {event.parameter}" if event.parameter else event.name
    return Holder(
        category=_CATEGORIES[event.category],
        module=event.parameter.rpartition(".")[0] if event.category == "optimizer_state" else "",
        name=name,
        op="" if event.category == "optimizer_state" else op,
        shape=event.tensor.shape,
        dtype=event.tensor.dtype,
    )
