"""Every storage as it is born and dies while real PyTorch code runs, on any device.

A dispatch mode looks at the tensors that go into and come out of every operator. A storage that it does not know was
made since it was entered; a weak reference tells when the last tensor lets go of it. What a kernel allocates and frees
inside one operator is invisible, and so is what no operator returns (the state of a random number generator, 5,056
bytes, which checkpointing saves). The mode belongs to one thread, as does the backward of tensors on the CPU: its
engine runs in the calling thread (torch/csrc/autograd/engine.cpp, `Engine::execute` @2.13).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple


class Storage(NamedTuple):
    """A storage that was born or died."""

    address: int
    """Where its bytes are; another one may have it later."""
    nbytes: int
    """Its bytes."""
    device: str
    """`cpu`, `cuda`, `meta`, ..."""
    arrived: bool = False
    """Whether it went into an operator without having come out of one: something else than an operator made it."""


Observer = Callable[[Storage], None]


class StorageWatch:
    """Tells of births while it is entered, and of the deaths of what it saw born.

    Args:
        born: called after a storage was first seen.
        died: called after the last tensor let go of it.
        known: tensors whose storages are passed over.
    """

    def __init__(self, born: Observer, died: Observer, known: Iterable[Any] = ()) -> None:
        self._born, self._died = born, died
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._watched: dict[int, tuple[Any, Storage]] = {}
        self._mode = _mode_class()(self.see)

    def __enter__(self) -> StorageWatch:
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)

    def forget(self) -> None:
        """Tell of no more deaths."""
        self._watched.clear()

    def see(self, tensor: Any, *, arrived: bool = False) -> None:
        """Tell of a tensor's storage, unless it was seen before; of a subclass, of the tensors that it is made of."""
        if hasattr(type(tensor), "__tensor_flatten__"):
            for name in tensor.__tensor_flatten__()[0]:
                self.see(getattr(tensor, name), arrived=arrived)
            return
        if str(tensor.layout) != "torch.strided":
            return
        storage = tensor.untyped_storage()
        key, nbytes = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        before = self._watched.get(key)
        if before is not None:
            if before[1].nbytes == nbytes:
                return
            del self._watched[key]  # resize_ gave it other memory
            self._died(before[1])
        seen = Storage(storage.data_ptr(), nbytes, storage.device.type, arrived)
        self._watched[key] = (weakref.ref(storage, lambda _: self._end(key)), seen)
        self._born(seen)

    def _end(self, key: int) -> None:
        ended = self._watched.pop(key, None)
        if ended is not None:
            self._died(ended[1])


@functools.cache
def _mode_class() -> Any:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    lift = torch.ops.aten.lift_fresh.default

    class StorageMode(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        def __init__(self, see: Callable[..., None]) -> None:
            super().__init__()
            self._see = see

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            # A tensor made from Python data (`lift_fresh`) or by another library reaches its first operator without
            # having come out of one.
            for tensor in _tensors((args, kwargs), torch.Tensor):
                self._see(tensor, arrived=func is not lift)
            result = func(*args, **(kwargs or {}))
            for tensor in _tensors((args, result), torch.Tensor):  # an argument may have been resized
                self._see(tensor)
            return result

    return StorageMode


def _tensors(value: Any, kind: type) -> Iterator[Any]:
    """Yield the tensors in an operator's arguments or results."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item, kind)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item, kind)
