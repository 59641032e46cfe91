"""`StepTrace`: every event of PyTorch's caching allocator in order, and whose memory it was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from memsim.allocator.state import BlockState, SegmentState
from memsim.errors import OutputError
from memsim.ledger import Category, Phase
from memsim.tensors import Shape

SCHEMA = 1
KIND = "step_trace"

Action = Literal[
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
]
"""PyTorch's own words for what its allocator does (torch/cuda/memory.py `_snapshot` @2.13)."""

_ACTIONS: tuple[Action, ...] = get_args(Action)
_PHASES = tuple(Phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """What a block of memory was for."""

    category: Category
    """Its category over its whole life."""
    module: str = ""
    """Path of the module in whose `forward` it was made, or that owns the parameter; empty outside of any module."""
    name: str = ""
    """Name of the parameter or buffer, of a gradient's parameter, or `exp_avg of ...`; empty for other tensors."""
    op: str = ""
    """The autograd node that kept it for backward, or made it there (`MmBackward0`), else the function of torch that
    made it (`float`); empty where none is known."""
    shape: Shape | None = None
    """Shape of a tensor that was seen to fill this block; `None` where none was seen."""
    dtype: str | None = None
    """Its dtype, PyTorch's name without `torch.`."""
    line: str = ""
    """`file:line in function` of the user's own code; empty for the threads of backward, which have no Python code."""
    library_line: str = ""
    """The innermost Python line outside of torch, often in a library (`transformers/loss/loss_utils.py:36 in ...`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvent:
    """One event of the caching allocator."""

    action: Action
    """What happened."""
    address: int
    """Address of the block or segment; 0 for `oom`."""
    nbytes: int
    """Requested bytes of a block, bytes of a segment; for `oom` the bytes that were asked for."""
    stream: int
    """Handle of the CUDA stream; 0 is the default stream."""
    step: int
    """Training step, from 1; evaluation, generation and saving belong to the step before them."""
    phase: Phase
    """What the program was doing."""
    holder: Holder | None = None
    """Whose memory it was; the same object for the alloc and the free of a block, `None` for segments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """An allocation that failed."""

    asked_bytes: int
    """What was asked of the allocator."""
    total_bytes: int
    """Memory of the device."""
    free_bytes: int
    """What the device had left; cached blocks that did not fit are not in it."""
    allocated_bytes: int
    """What live tensors held."""
    reserved_bytes: int
    """What the allocator had got from the device."""
    step: int
    """Training step, from 1."""
    phase: Phase
    """What the program was doing."""
    module: str
    """Module whose `forward` asked for it; empty outside of any."""
    line: str
    """The user's line; empty in the threads of backward."""
    library_line: str
    """The innermost Python line outside of torch."""

    @property
    def shortfall_bytes(self) -> int:
        """What was missing at this moment; what would have followed is not in it."""
        return max(self.asked_bytes - self.free_bytes, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceDevice:
    """Where a trace was recorded."""

    name: str
    """The device's own name."""
    total_bytes: int
    """Memory of the device as CUDA reports it."""
    compute_capability: str
    """`"8.0"`."""
    torch_version: str
    """Version of the torch that ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSettings:
    """The settings of the caching allocator that decide the size of a block."""

    max_split_bytes: int | None = None
    """Blocks of this size and more are not split; `None`: no limit."""
    roundup_power2_divisions: tuple[int, ...] = ()
    """16 divisions for requests from 1 MiB to 32 GiB, by powers of two; empty or 0: rounded up to 512 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorStats:
    """What PyTorch's own statistics said when the recording ended (`torch.cuda.memory_stats()`)."""

    peak_requested_bytes: int
    """`requested_bytes.all.peak`."""
    peak_allocated_bytes: int
    """`allocated_bytes.all.peak`, the same as `torch.cuda.max_memory_allocated()`."""
    peak_reserved_bytes: int
    """`reserved_bytes.all.peak`, the same as `torch.cuda.max_memory_reserved()`."""
    allocated_bytes: int
    """`allocated_bytes.all.current`."""
    reserved_bytes: int
    """`reserved_bytes.all.current`."""
    num_alloc_retries: int
    """How often cached memory had to be given back to the device before an allocation succeeded."""
    num_ooms: int
    """How many allocations failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The beginning of a phase; it lasts until the next one begins."""

    step: int
    """Training step, from 1."""
    phase: Phase
    """What the program began to do."""
    event_index: int
    """The first event after that; as many as there are events if none followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionStart:
    """The beginning of a part of a run that memsim itself drove; it lasts until the next one begins."""

    name: str
    """`load` (the model moves to the device), `first` (first micro-step, begun by making its batch), `accumulate` (one
    that finds gradients), `zero_grad`, `steady` (one that finds none), `optimizer_step` (with its clipping)."""
    event_index: int
    """The first event after that; as many as there are events if none followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """The allocator's events of a run, from its first allocation on, or from `start` on."""

    device: TraceDevice
    """Where it was recorded."""
    settings: AllocatorSettings
    """What decides the size of a block."""
    stats: AllocatorStats
    """PyTorch's own count, to hold a replay against."""
    spans: tuple[Span, ...]
    """Every phase in order, also those in which nothing was allocated or freed."""
    events: tuple[TraceEvent, ...]
    """Every event in order."""
    sections: tuple[SectionStart, ...] = ()
    """Every part in order, also those in which nothing happened; none where a user's program drove the run."""
    start: tuple[SegmentState, ...] = ()
    """What the allocator held before the first event, where the recording began in the midst of things."""
    start_holders: Mapping[int, Holder] = field(default_factory=dict)
    """Whose the blocks of `start` were, by address; none where nobody saw them."""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object: holders once each, events as one list per field."""
        table, indices = _table([*(event.holder for event in self.events), *self.start_holders.values()])
        return {
            "schema": SCHEMA,
            "kind": KIND,
            "device": asdict(self.device),
            "settings": asdict(self.settings),
            "stats": asdict(self.stats),
            "holders": [_holder_row(holder) for holder in table],
            "events": {
                "action": [_ACTIONS.index(event.action) for event in self.events],
                "address": [event.address for event in self.events],
                "nbytes": [event.nbytes for event in self.events],
                "stream": [event.stream for event in self.events],
                "step": [event.step for event in self.events],
                "phase": [_PHASES.index(event.phase) for event in self.events],
                "holder": indices[: len(self.events)],
            },
            "spans": [[span.step, _PHASES.index(span.phase), span.event_index] for span in self.spans],
            "sections": [[section.name, section.event_index] for section in self.sections],
            "start": [asdict(segment) for segment in self.start],
            "start_holders": [*map(list, zip(self.start_holders, indices[len(self.events) :], strict=True))],
            "actions": list(_ACTIONS),
            "phases": [phase.value for phase in _PHASES],
        }


def trace_of(data: Mapping[str, Any]) -> StepTrace:
    """Return the trace that `StepTrace.to_dict` gave.

    Raises:
        OutputError: it is not such an object, or of another schema.
    """
    try:
        if (data["kind"], data["schema"]) != (KIND, SCHEMA):
            raise OutputError(f"this is no step trace of schema {SCHEMA}: {data['kind']!r}, schema {data['schema']!r}.")
        holders = [_holder_of(row) for row in data["holders"]]
        return StepTrace(
            device=TraceDevice(**data["device"]),
            settings=_settings_of(data["settings"]),
            stats=AllocatorStats(**data["stats"]),
            spans=tuple(
                Span(step=step, phase=Phase(data["phases"][phase]), event_index=index)
                for step, phase, index in data["spans"]
            ),
            events=tuple(_events_of(data, holders)),
            start=tuple(_segment_of(row) for row in data.get("start", ())),
            start_holders={address: holders[index] for address, index in data.get("start_holders", ())},
            sections=tuple(SectionStart(name=name, event_index=index) for name, index in data.get("sections", ())),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise OutputError(f"this is no step trace: {error!r} is missing or wrong.") from error


def _table(holders: Iterable[Holder | None]) -> tuple[list[Holder], list[int]]:
    """Return every holder once, and for each of those given its place among them; -1 for none."""
    places: dict[int, int] = {}
    table: list[Holder] = []
    indices: list[int] = []
    for holder in holders:
        index = -1
        if holder is not None:
            index = places.setdefault(id(holder), len(table))
            if index == len(table):
                table.append(holder)
        indices.append(index)
    return table, indices


def _events_of(data: Mapping[str, Any], holders: Sequence[Holder]) -> Iterable[TraceEvent]:
    actions, phases = data["actions"], [Phase(value) for value in data["phases"]]
    unknown = set(actions) - set(_ACTIONS)
    if unknown:
        raise OutputError(f"a step trace cannot hold the action {min(unknown)!r}.")
    columns = data["events"]
    names = ("action", "address", "nbytes", "stream", "step", "phase", "holder")
    for action, address, nbytes, stream, step, phase, holder in zip(*(columns[n] for n in names), strict=True):
        yield TraceEvent(
            action=actions[action],
            address=address,
            nbytes=nbytes,
            stream=stream,
            step=step,
            phase=phases[phase],
            holder=holders[holder] if holder >= 0 else None,
        )


def _segment_of(row: Mapping[str, Any]) -> SegmentState:
    blocks = tuple(BlockState(**block) for block in row["blocks"])
    return SegmentState(**{**row, "blocks": blocks})


def _holder_row(holder: Holder) -> list[Any]:
    return [
        holder.category.value,
        holder.module,
        holder.name,
        holder.op,
        list(holder.shape) if holder.shape is not None else None,
        holder.dtype,
        holder.line,
        holder.library_line,
    ]


def _holder_of(row: list[Any]) -> Holder:
    category, module, name, op, shape, dtype, line, library_line = row
    return Holder(
        category=Category(category),
        module=module,
        name=name,
        op=op,
        shape=tuple(shape) if shape is not None else None,
        dtype=dtype,
        line=line,
        library_line=library_line,
    )


def _settings_of(data: Mapping[str, Any]) -> AllocatorSettings:
    return AllocatorSettings(
        max_split_bytes=data["max_split_bytes"],
        roundup_power2_divisions=tuple(data["roundup_power2_divisions"]),
    )
