"""PyTorch's own history of its CUDA allocator, begun from a clean allocator, and the allocations that failed."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

from .ticks import Ticks
from .writing import call_stack


class History:
    """The history of one CUDA device.

    Args:
        torch: the module; CUDA may be unused yet.
        device: index of the device.
        ticks: what positions are counted in; `None`: allocations and frees, by the allocator's statistics.
    """

    def __init__(self, torch: Any, *, device: int = 0, ticks: Ticks | None = None) -> None:
        self.torch = torch
        self.device = device
        self.ticks = ticks
        self.ooms: list[dict[str, Any]] = []
        self._before_oom: Callable[[], None] | None = None
        self._where: Callable[[], dict[str, Any]] | None = None
        self._observed = False
        self._record = torch.cuda.memory._record_memory_history

    def start(
        self, *, where: Callable[[], dict[str, Any]], before_oom: Callable[[], None], with_stacks: bool = True
    ) -> None:
        """Record every event from now on.

        Args:
            where: tells step, phase and module when an allocation has failed.
            before_oom: called then, before anything is noted about it.
            with_stacks: whether the Python stack of every allocation is recorded too.
        """
        self.ooms = []
        self._where, self._before_oom = where, before_oom
        if self.ticks is not None:
            self.ticks.start()
        self._record("all", context="alloc" if with_stacks else None, stacks="python")
        if not self._observed:  # it cannot be taken back
            self.torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)
            self._observed = True

    def stop(self) -> None:
        """Record nothing more, and forget what was recorded."""
        self._where = self._before_oom = None
        self._record(None)

    def position(self) -> int:
        """Return how many allocations and frees there were since the statistics were reset, or the tick of now."""
        if self.ticks is not None:
            return self.ticks.position()
        counts = self.torch._C._cuda_memoryStats(self.device)["allocation"]["all"]
        return int(counts["allocated"] + counts["freed"])

    def clean(self) -> int:
        """Give all cached memory back and set the statistics to zero; return the bytes that somebody still holds."""
        torch = self.torch
        gc.collect()
        torch.cuda.synchronize(self.device)
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        torch.cuda.reset_accumulated_memory_stats(self.device)
        return int(torch._C._cuda_memoryStats(self.device)["reserved_bytes"]["all"]["current"])

    def _out_of_memory(self, device: int, asked: int, total: int, free: int) -> None:
        if device != self.device or self._where is None or self._before_oom is None:
            return
        self._before_oom()
        statistics = self.torch._C._cuda_memoryStats(device)
        place = call_stack(sys._getframe())  # the only frame in a thread of backward
        reserved = statistics["reserved_bytes"]["all"]["current"]
        self.ooms.append(
            {
                "position": self.position(),
                "asked_bytes": asked,
                "total_bytes": total,
                "free_bytes": min(free, max(total - reserved, 0)),
                "allocated_bytes": statistics["allocated_bytes"]["all"]["current"],
                "reserved_bytes": reserved,
                **self._where(),
                "line": place.line,
                "library_line": place.library_line,
            }
        )
