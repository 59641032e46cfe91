"""Positions without asking the allocator's statistics: its history carries the number of the last question itself.

Text that is set by `torch.cuda.memory._set_memory_metadata` is written beside every event of the history that the same
thread causes. Setting it costs a hundredth of reading all statistics, which happens some thousand times a step. As only
one thread of a training step works at a time, an event without a number, or with an old one of its thread's, belongs to
the highest number before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_COUNTED = ("alloc", "free_requested")


class Ticks:
    """Numbers for moments, and what they were in allocations and frees."""

    def __init__(self, torch: Any) -> None:
        self._set = torch._C._cuda_setMemoryMetadata
        self._now = 0

    @staticmethod
    def exist(torch: Any) -> bool:
        """Return whether this torch writes such text into its history."""
        return hasattr(torch._C, "_cuda_setMemoryMetadata")

    def position(self) -> int:
        """Return the number of this moment."""
        self._now += 1
        self._set(str(self._now))
        return self._now

    def start(self) -> None:
        """Begin to count anew."""
        self._now = 0
        self._set("")

    def positions(self, trace: Iterable[Mapping[str, Any]]) -> list[int]:
        """Return for the number of every moment how many allocations and frees there were before it."""
        found: list[int] = []
        count = 0
        for entry in trace:
            number = int(entry["user_metadata"] or 0)
            if number >= len(found):
                found += [count] * (number + 1 - len(found))
            count += entry["action"] in _COUNTED
        return found + [count] * (self._now + 1 - len(found))
