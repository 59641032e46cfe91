"""From a recorded trace to its sections: the requests of each, with the blocks that outlive them named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from memsim.errors import MemsimError
from memsim.ledger import Category, Phase
from memsim.step.section import Section, SectionEvent, SectionName, in_order_of_birth
from memsim.step.trace import Holder, StepTrace, TraceEvent

RECORDED: tuple[SectionName | str, ...] = (
    "load",
    "first",
    "accumulate",
    "zero_grad",
    "steady",
    "zero_grad",
    "steady",
)
"""The sections of a recording that a program is made of; the last must equal the one before it."""

_NAMED = (Category.PARAMETER, Category.BUFFER, Category.GRADIENT)


class _Life(NamedTuple):
    """A block: where it was made and let go, as indices of sections; -1: it was never freed."""

    born: int
    died: int
    holder: Holder | None


def sections_of(trace: StepTrace) -> tuple[Section, ...]:
    """Return `load`, `first`, `accumulate` and `steady` of a recording of kind `program`.

    Raises:
        MemsimError: the trace is no such recording, it used several streams, or the second steady micro-step is not
            the same as the first, so that nothing can be foretold from it.
    """
    if tuple(section.name for section in trace.sections) != RECORDED:
        names = ", ".join(section.name for section in trace.sections)
        raise MemsimError(f"the recording has the sections {names or 'none'}; a program needs {', '.join(RECORDED)}.")
    if any(event.stream for event in trace.events):
        raise MemsimError("the model works on several CUDA streams, whose order is not known before it runs.")
    parts = _parts(trace)
    lives = _lives(parts)
    slots = _slots(lives)
    cut = [_section(index, parts[index], lives, slots) for index, name in enumerate(RECORDED) if name != "zero_grad"]
    _check_steady(*cut[-2:])
    return tuple(cut[:-1])


class _Request(NamedTuple):
    """An alloc or free with the number of its block."""

    event: TraceEvent
    block: int


def _parts(trace: StepTrace) -> list[list[_Request]]:
    """Return the allocs and frees of every recorded section."""
    starts = [section.event_index for section in trace.sections]
    parts: list[list[_Request]] = [[] for _ in starts]
    live: dict[int, int] = {}
    index = blocks = 0
    for number, event in enumerate(trace.events):
        while index + 1 < len(starts) and starts[index + 1] <= number:
            index += 1
        if event.action == "alloc":
            live[event.address] = blocks
            parts[index].append(_Request(event, blocks))
            blocks += 1
        elif event.action == "free_requested":
            parts[index].append(_Request(event, live.pop(event.address)))
        elif event.action == "oom":
            raise MemsimError("the recording ran out of memory, so it is not whole.")
    return parts


def _lives(parts: list[list[_Request]]) -> list[_Life]:
    born: list[tuple[int, Holder | None]] = []
    died: dict[int, int] = {}
    for index, part in enumerate(parts):
        for event, block in part:
            if event.action == "alloc":
                born.append((index, event.holder))
            else:
                died[block] = index
    return [_Life(index, died.get(block, -1), holder) for block, (index, holder) in enumerate(born)]


def _slots(lives: list[_Life]) -> list[str]:
    """Return a name for each block that outlives its section: the same in each section that leaves such a block."""
    names: list[str] = []
    taken: Counter[tuple[int, str]] = Counter()
    for life in lives:
        name = _slot(life) if life.died != life.born else ""
        if name:
            taken[life.born, name] += 1
            count = taken[life.born, name]
            owned = life.holder is not None and life.holder.category in _NAMED and life.holder.name
            name = name if owned and count == 1 else f"{name}:{count - 1}"
        names.append(name)
    return names


def _slot(life: _Life) -> str:
    holder = life.holder
    if holder is None:
        return "unknown"
    if holder.category in _NAMED and holder.name:
        return f"{holder.category.value}:{holder.name}"
    return f"{holder.category.value}:{holder.module}" if holder.module else holder.category.value


def _section(index: int, part: list[_Request], lives: list[_Life], slots: list[str]) -> Section:
    name = RECORDED[index]
    first = next((block for event, block in part if event.action == "alloc"), 0)
    made = [block for event, block in part if event.action == "alloc"]
    return Section(
        name=name,  # type: ignore[arg-type]  # zero_grad is left out
        events=tuple(_events(name, part, slots, first)),
        num_keys=len(made),
        left={slots[block]: block - first for block in made if lives[block].died != index},
    )


def _events(name: str, part: list[_Request], slots: list[str], first: int) -> Iterator[SectionEvent]:
    phase = Phase.LOAD if name == "load" else Phase.FORWARD
    for event, block in part:
        own = block >= first
        if event.phase is Phase.BACKWARD and name != "load":
            phase = Phase.BACKWARD  # and what the loop lets go of after it
        yield SectionEvent(
            action="alloc" if event.action == "alloc" else "free",
            key=block - first if own else -1,
            nbytes=event.nbytes if own else 0,
            phase=phase,
            holder=_without_lines(event.holder) if own else None,
            slot=slots[block],
        )


def _without_lines(holder: Holder | None) -> Holder | None:
    if holder is None or not (holder.line or holder.library_line):
        return holder
    return replace(holder, line="", library_line="")


def _check_steady(one: Section, two: Section) -> None:
    for first, second in zip(in_order_of_birth(one.events), in_order_of_birth(two.events), strict=False):
        if first != second:
            what = f"{second.action} of {second.nbytes:,} bytes where there was {first.action} of {first.nbytes:,}"
            raise MemsimError(f"the model's second steady micro-step differs from its first: {what}.")
    if len(one.events) != len(two.events) or one.left != two.left:
        raise MemsimError("the model's second steady micro-step differs from its first, so no step can be foretold.")
