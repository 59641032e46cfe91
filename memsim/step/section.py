"""`Section`: the allocator's requests of one part of a run, apart from the addresses that they got.

A run is put together from four sections: `load` once, `first` for the first micro-step, `accumulate` for a micro-step
that finds gradients, `steady` for one that finds none. What an optimizer, clipping and `zero_grad` do between them is
no part of any section: rules say it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from memsim.ledger import Phase
from memsim.step.trace import Holder

SectionName = Literal["load", "first", "accumulate", "steady"]


class SectionEvent(NamedTuple):
    """A block is asked for, or let go."""

    action: Literal["alloc", "free"]
    """What happens."""
    key: int
    """The block, the same for its alloc and its free: 0 to `num_keys` - 1 in each section; -1 for the free of a block
    that an earlier section left (`slot` names it)."""
    nbytes: int
    """Requested bytes of the block; 0 for the free of a block that an earlier section left."""
    phase: Phase
    """`load`, `forward` or `backward`; making the batch belongs to forward."""
    holder: Holder | None
    """What the block is for, with the path of the real layer and the shape at this batch size and sequence length."""
    slot: str
    """Name of a block that outlives its section (`parameter:NAME`, `gradient:NAME`, `input:0`, `loss:0`, ...): on the
    alloc and on the free, which may be in this section or a later one. Empty for a block that begins and ends here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The requests of one part of a run, in order."""

    name: SectionName
    """Which part."""
    events: tuple[SectionEvent, ...]
    """Every alloc and free."""
    num_keys: int
    """How many blocks it allocates."""
    left: Mapping[str, int]
    """Slot and key of every block of this section that is alive at its end, in the order in which they were made."""


def in_order_of_birth(events: Iterable[SectionEvent]) -> Iterator[SectionEvent]:
    """Yield events with the blocks that are let go one after the other in the order in which they were made.

    Their own order can be that of a hash table keyed by addresses (the weights that autocast has cast: `cached_casts`
    of aten/src/ATen/autocast_mode.cpp), another in every process. The free memory after the last of them is the same.
    """
    freed: list[SectionEvent] = []
    for event in events:
        if event.action == "free" and (not freed or freed[-1].phase is event.phase):
            freed.append(event)
            continue
        yield from sorted(freed, key=_birth)
        freed = [event] if event.action == "free" else []
        if not freed:
            yield event
    yield from sorted(freed, key=_birth)


def _birth(event: SectionEvent) -> tuple[int, str]:
    return event.key, event.slot
