"""Sees every tensor storage that is born and dies while real PyTorch code runs.

A dispatch mode looks at the tensors that go into and come out of every operator. A storage that it does not know was
made since it was entered; a weak reference tells when the last tensor lets go of it. What a kernel allocates and frees
inside one operator is invisible, on the CPU as on CUDA.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class StorageEvent(NamedTuple):
    """A storage that was born or died."""

    action: str
    nbytes: int
    device: str = "cpu"


class StorageTracker(TorchDispatchMode):
    """Records the births and deaths of storages; enter it around the code to watch.

    Args:
        known: tensors that exist already and must not be counted (parameters, gradients, state).
        mortal: tensors that exist already and whose death must be seen (state that a step replaces).
    """

    def __init__(self, known: Iterable[torch.Tensor], mortal: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.events: list[StorageEvent] = []
        self._known = {t.untyped_storage()._cdata for t in known}
        self._watched: dict[int, weakref.ref[Any]] = {}
        for t in mortal:
            self._watch(t.untyped_storage())
        self.events.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A tensor made from Python data reaches its first operator without having come out of one.
        self._see((args, kwargs))
        result = func(*args, **(kwargs or {}))
        self._see(result)
        return result

    def _see(self, tree: Any) -> None:
        for leaf in tree_leaves(tree):
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
                self._watch(leaf.untyped_storage())

    def _watch(self, storage: torch.UntypedStorage) -> None:
        key, nbytes, device = storage._cdata, storage.nbytes(), storage.device.type
        if key in self._known or key in self._watched:
            return

        def died(_: object) -> None:
            del self._watched[key]
            self.events.append(StorageEvent("free", nbytes, device))

        self.events.append(StorageEvent("alloc", nbytes, device))
        self._watched[key] = weakref.ref(storage, died)

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
