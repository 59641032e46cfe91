"""Segments and their blocks at one moment, as `torch.cuda.memory_snapshot()` tells them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BlockStateName = Literal["active_allocated", "active_pending_free", "inactive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockState:
    """A range of a segment."""

    address: int
    """Where it begins."""
    nbytes: int
    """Its bytes."""
    requested_bytes: int = 0
    """What was asked for; 0 when it is free."""
    state: BlockStateName = "inactive"
    """PyTorch's word for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentState:
    """Memory that the allocator got from the device in one piece; of an expandable one a range that is mapped."""

    address: int
    """Where it begins."""
    nbytes: int
    """Its bytes."""
    stream: int = 0
    """Handle of the stream that it serves."""
    small: bool
    """Whether it belongs to the small pool."""
    expandable: bool = False
    """Whether it was mapped, not allocated."""
    blocks: tuple[BlockState, ...]
    """By address; together they fill the segment."""
