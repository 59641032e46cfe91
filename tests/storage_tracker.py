"""Every storage that is born and dies while real PyTorch code runs, as a list of events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch  # noqa: TC002  (one import style)

from memsim.record.storages import Storage, StorageWatch


class StorageEvent(NamedTuple):
    """A storage that was born or died."""

    action: str
    nbytes: int
    device: str = "cpu"


class StorageTracker:
    """Records the births and deaths of storages; enter it around the code to watch.

    Args:
        known: tensors that exist already and must not be counted (parameters, gradients, state).
        mortal: tensors that exist already and whose death must be seen (state that a step replaces).
    """

    def __init__(self, known: Iterable[torch.Tensor], mortal: Iterable[torch.Tensor] = ()) -> None:
        self.events: list[StorageEvent] = []
        self._mode = StorageWatch(self._noting("alloc"), self._noting("free"), known)
        for tensor in mortal:
            self._mode.see(tensor)
        self.events.clear()

    def __enter__(self) -> StorageTracker:
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)

    def _noting(self, action: str) -> Any:
        def note(storage: Storage) -> None:
            self.events.append(StorageEvent(action, storage.nbytes, storage.device))

        return note

    @property
    def peak_bytes(self) -> int:
        """Most bytes alive at once that were not there when the tracker was entered."""
        return max(self.timeline, default=0)

    @property
    def timeline(self) -> list[int]:
        """Bytes alive after every event."""
        live, levels = 0, []
        for event in self.events:
            live += event.nbytes if event.action == "alloc" else -event.nbytes
            levels.append(live)
        return levels
