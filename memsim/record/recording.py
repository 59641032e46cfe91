"""From the file that a watched program left to a `StepTrace`: whose memory each block was.

Categories are decided once a block's whole life is known. A block that was seen to hold a parameter, buffer, gradient
or optimizer state is that. Of the others, what was made in forward and still there when backward began is an
activation, what the program made before it called the model and gave it is input, and the rest is temporary.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from memsim.allocator.state import BlockState, SegmentState
from memsim.errors import MemsimError
from memsim.ledger import Category, Phase
from memsim.step import (
    AllocatorSettings,
    AllocatorStats,
    Holder,
    OutOfMemory,
    SectionStart,
    Span,
    StepTrace,
    TraceDevice,
    TraceEvent,
)
from memsim.units import KIB

SCHEMA = 1
GAP = "gap"
"""A mark's phase between two phases: what happens there prepares the next one."""

_OWNED = {
    "parameter": Category.PARAMETER,
    "buffer": Category.BUFFER,
    "gradient": Category.GRADIENT,
    "optimizer_state": Category.OPTIMIZER_STATE,
}
_COUNTED = ("alloc", "free_requested")
"""The actions that move the position of marks and sightings."""


class _Mark(NamedTuple):
    position: int
    step: int
    phase: str
    module: str
    op: str


@dataclass(slots=True)
class _Life:
    """A block from its alloc to its free."""

    nbytes: int
    born: int
    """Position after its alloc."""
    mark: int
    """Index of the mark it was made under."""
    line: str
    library_line: str
    in_torch_distributed: bool
    freed: int | None = None
    """Position before its free; `None` if it was never freed."""
    sightings: list[list[Any]] = field(default_factory=list)

    def lives_at(self, position: int) -> bool:
        return self.born <= position and (self.freed is None or position <= self.freed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What one process left behind."""

    pid: int
    """The process."""
    stopped: bool
    """Whether it was ended after the asked number of steps."""
    ended_by_oom: bool
    """Whether an unhandled out-of-memory error ended it."""
    num_steps: int
    """Optimizer steps that it completed."""
    trace: StepTrace
    """Its events."""
    ooms: tuple[OutOfMemory, ...]
    """Allocations that failed, in order."""
    oom_is_last: bool
    """Whether an allocation failed and no optimizer step was completed after it."""
    notes: tuple[str, ...]
    """What was special about this program, in sentences."""


def read_recording(path: Path) -> Recording:
    """Return the recording that a watched process wrote.

    Raises:
        MemsimError: the file is not whole, or its history does not fit its marks.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise MemsimError(f"the recording has schema {data['schema']!r}, this memsim reads {SCHEMA}.")
        return recording_of(data)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise MemsimError(f"the recording {path.name} cannot be read: {error!r}.") from error


def recording_of(data: Mapping[str, Any], start: tuple[SegmentState, ...] = ()) -> Recording:
    """Return the recording that a watch has gathered.

    Args:
        data: as `gathered` returns it.
        start: what the allocator held before the first event.
    """
    marks = _resolved([_Mark(*row) for row in data["marks"]])
    ooms = tuple(_oom_of(item, marks) for item in data["ooms"])
    last_step = max((m.position for m in marks if m.phase == Phase.OPTIMIZER_STEP), default=-1)
    return Recording(
        pid=data["pid"],
        stopped=data["ended"] == "stopped",
        ended_by_oom=data["ended_by_oom"],
        num_steps=data["num_steps"],
        trace=_trace_of(data, marks, start),
        ooms=ooms,
        oom_is_last=bool(ooms) and data["ooms"][-1]["position"] >= last_step,
        notes=tuple(data["notes"]),
    )


def _resolved(marks: Sequence[_Mark]) -> list[_Mark]:
    """Give every gap the step and phase of what follows it; the last one those of what came before."""
    result: list[_Mark] = []
    following: _Mark | None = None
    for mark in reversed(marks):
        if mark.phase != GAP:
            following = mark
        elif following is not None:
            mark = mark._replace(step=following.step, phase=following.phase)  # noqa: PLW2901
        result.append(mark)
    result.reverse()
    last = next((m for m in reversed(result) if m.phase != GAP), None)
    if last is not None:
        result = [m._replace(phase=last.phase) if m.phase == GAP else m for m in result]
    return result


def _trace_of(data: Mapping[str, Any], marks: Sequence[_Mark], start: tuple[SegmentState, ...]) -> StepTrace:
    before = [block for segment in start for block in segment.blocks if block.state != "inactive"]
    events = list(
        zip(*(data["events"][name] for name in ("action", "address", "nbytes", "stream", "line")), strict=True)
    )
    lives, life_of = _lives(before, events, data["lines"], data["sightings"], marks)
    counts = _positions(events)
    raw = [_Mark(*row) for row in data["marks"]]
    judge = _Judge(marks=marks, raw=raw, position=data["position"], workspaces=_workspace_sizes(data))
    holders = [judge.holder(life) for life in lives]
    return StepTrace(
        device=TraceDevice(**data["device"]),
        settings=AllocatorSettings(
            max_split_bytes=data["settings"]["max_split_bytes"],
            roundup_power2_divisions=tuple(data["settings"]["roundup_power2_divisions"]),
        ),
        stats=AllocatorStats(**data["stats"]),
        spans=tuple(_spans(marks, [mark for mark, _ in life_of])),
        events=tuple(
            TraceEvent(
                action=event[0],
                address=event[1],
                nbytes=event[2],
                stream=event[3],
                step=marks[mark].step,
                phase=Phase(marks[mark].phase),
                holder=holders[life] if life >= 0 else None,
            )
            for event, (mark, life) in zip(events, life_of, strict=True)
        ),
        sections=tuple(
            SectionStart(name=name, event_index=bisect_left(counts, position)) for position, name in data["sections"]
        ),
        start=start,
        start_holders={block.address: holder for block, holder in zip(before, holders, strict=False)},
    )


def _positions(events: Sequence[tuple[Any, ...]]) -> list[int]:
    """Return for each event the position before it; for a completed free that of its request."""
    counts = []
    position = 0
    for action, *_ in events:
        counts.append(position - (action == "free_completed"))
        position += action in _COUNTED
    return counts


def _spans(marks: Sequence[_Mark], mark_of: Sequence[int]) -> Iterator[Span]:
    """Yield where each phase begins, also those in which nothing happened."""
    before: tuple[int, str] | None = None
    for index, mark in enumerate(marks):
        if (mark.step, mark.phase) != before:
            before = (mark.step, mark.phase)
            yield Span(step=mark.step, phase=Phase(mark.phase), event_index=bisect_left(mark_of, index))


def _lives(
    before: Sequence[BlockState],
    events: Sequence[tuple[Any, ...]],
    lines: Sequence[Sequence[Any]],
    sightings: Iterable[list[Any]],
    marks: Sequence[_Mark],
) -> tuple[list[_Life], list[tuple[int, int]]]:
    """Return every block's life, and for each event the index of its mark and of its life (-1: none).

    The lives of the blocks `before` the first event come first.
    """
    lives = [_life_before(block) for block in before]
    of_event: list[tuple[int, int]] = []
    living = {block.address: index for index, block in enumerate(before)}
    seen = iter(sightings)
    waiting = next(seen, None)
    mark = position = 0
    for action, address, nbytes, _, line in events:
        if action in _COUNTED:
            while waiting is not None and waiting[0] <= position:
                _attach(waiting, lives, living)
                waiting = next(seen, None)
        while action != "free_completed" and mark + 1 < len(marks) and marks[mark + 1].position <= position:
            mark += 1  # a block that goes is gone at once: both of its events were before the next mark
        life = living.get(address, -1) if action.startswith(("alloc", "free_")) else -1
        if action == "alloc":
            life = living[address] = len(lives)
            lives.append(_Life(nbytes, position + 1, mark, *lines[line]))
        elif action == "free_requested":
            lives[life].freed = position
        elif action == "free_completed":
            del living[address]
        position += action in _COUNTED
        of_event.append((mark, life))
    while waiting is not None:
        _attach(waiting, lives, living)
        waiting = next(seen, None)
    return lives, of_event


def _life_before(block: BlockState) -> _Life:
    """Return the life of a block that was there before the first event."""
    life = _Life(block.requested_bytes, 0, 0, "", "", False)
    life.freed = 0 if block.state == "active_pending_free" else None
    return life


def _attach(sighting: list[Any], lives: Sequence[_Life], living: Mapping[int, int]) -> None:
    life = living.get(sighting[2])
    if life is not None and lives[life].lives_at(sighting[0]):
        lives[life].sightings.append(sighting)


def _workspace_sizes(data: Mapping[str, Any]) -> frozenset[int]:
    """Return the sizes of the cuBLAS workspace of a thread and stream.

    Source: `getChosenWorkspaceSize` and `parseChosenWorkspaceSize`, aten/src/ATen/cuda/CublasHandlePool.cpp @2.13:
    4 x 2 MiB + 8 x 16 KiB before compute capability 9.0, 32 MiB from there on, or what CUBLAS_WORKSPACE_CONFIG says.
    """
    capability, config = data["device"]["compute_capability"], data["cublas_workspace_config"]
    if not capability:  # not a CUDA device
        return frozenset()
    parts = [int(part) for part in config.split(":") if part.isdigit()]
    if parts:
        return frozenset({sum(size * count for size, count in zip(parts[::2], parts[1::2], strict=False)) * KIB})
    old = float(capability) < 9.0
    return frozenset({(4096 * 2 + 16 * 8) * KIB if old else 4096 * 8 * KIB})


@dataclass(slots=True, kw_only=True)
class _Judge:
    """Decides what a block was for."""

    marks: Sequence[_Mark]
    raw: Sequence[_Mark]
    position: int
    workspaces: frozenset[int]
    _backwards: list[int] = field(default_factory=list)
    _outside: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        phases = [m.phase for m in self.marks]
        self._backwards = [
            m.position
            for m, before in zip(self.marks, [None, *phases], strict=False)
            if m.phase == Phase.BACKWARD and before != Phase.BACKWARD
        ]
        self._outside = [m.position for m in self.marks if m.op or not m.module]

    def holder(self, life: _Life) -> Holder:
        mark = self.marks[life.mark]
        owner = next((s for kind in _OWNED for s in life.sightings if s[1] == kind), None)
        seen = life.sightings if owner is None else [owner, *life.sightings]
        described = next((s for s in seen if _fills(s, life)), None)
        category = _OWNED[owner[1]] if owner is not None else self._category(life, mark)
        name = owner[4] if owner is not None else ""
        made_by = next((s[4] for s in life.sightings if s[1] == "made"), "") if owner is None else ""
        module, op = ("", "") if category is Category.WORKSPACE else (mark.module, mark.op)
        return Holder(
            category=category,
            module=_owner_path(name) or module,
            name=name,
            op=next((s[7] for s in life.sightings if s[7]), op) or made_by,
            shape=tuple(described[5]) if described else None,
            dtype=described[6] if described else None,
            line=life.line,
            library_line=life.library_line,
        )

    def _category(self, life: _Life, mark: _Mark) -> Category:
        if life.nbytes in self.workspaces and life.freed is None and not life.sightings:
            return Category.WORKSPACE
        if life.in_torch_distributed:
            return Category.COMMUNICATION
        if self._has_arrived(life, mark) or (not mark.module and self._is_input(life)):
            return Category.INPUT
        return Category.ACTIVATION if self._is_activation(life, mark) else Category.TEMPORARY

    def _is_activation(self, life: _Life, mark: _Mark) -> bool:
        if mark.phase == Phase.FORWARD:
            return self._lives_until(life, self._backwards)
        if mark.phase == Phase.BACKWARD and mark.module and not mark.op:  # a checkpointed layer, computed again
            return self._lives_until(life, self._outside)
        return mark.phase in {Phase.EVALUATION, Phase.GENERATE}

    @staticmethod
    def _has_arrived(life: _Life, mark: _Mark) -> bool:
        """Whether a model's forward was the first to see a block that nothing in it made: a data loader's batch."""
        return mark.phase == Phase.FORWARD and any(s[1] == "arrived" for s in life.sightings)

    def _is_input(self, life: _Life) -> bool:
        """Whether a block made outside of any module was given to one, or waits for the first call."""
        if any(s[1] == "input" for s in life.sightings):
            return True
        prepares = self.raw[life.mark].phase in {GAP, Phase.LOAD}
        calls = self.marks[life.mark + 1 :]
        call = next((m for m in calls if m.module), None) if prepares else None
        return call is not None and call.phase != Phase.BACKWARD and life.lives_at(call.position)

    def _lives_until(self, life: _Life, positions: Sequence[int]) -> bool:
        """Whether a block is alive at the first of `positions` after its birth, or at the end if there is none."""
        place = bisect_left(positions, life.born)
        return life.lives_at(positions[place] if place < len(positions) else self.position)


def _fills(sighting: list[Any], life: _Life) -> bool:
    """Whether a tensor fills a block: of those that were passed only the size of the tensor itself is known."""
    if sighting[5] is None:
        return False
    nbytes: int = sighting[3]
    return nbytes == life.nbytes if sighting[1] == "passed" else nbytes <= life.nbytes


def _owner_path(name: str) -> str:
    """Return the module of a parameter (`h.0.attn.weight`) or of its state (`exp_avg of h.0.attn.weight`)."""
    return name.rsplit(" of ", 1)[-1].rpartition(".")[0]


def _oom_of(item: Mapping[str, Any], marks: Sequence[_Mark]) -> OutOfMemory:
    values = {key: value for key, value in item.items() if key not in {"position", "phase"}}
    place = max(bisect_right([m.position for m in marks], item["position"]) - 1, 0)
    phase = marks[place].phase if item["phase"] == GAP else item["phase"]
    return OutOfMemory(phase=Phase(phase), **values)


def recordings_in(folder: Path) -> Iterator[Recording]:
    """Yield what every process of a run left, the largest peak first."""
    found = [read_recording(path) for path in sorted(folder.glob("recording-*.json"))]
    yield from sorted(found, key=lambda r: r.trace.stats.peak_allocated_bytes, reverse=True)
