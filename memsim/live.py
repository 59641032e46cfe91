"""The size of a live optimizer's state, measured on the objects themselves; torch is not imported for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Number
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from memsim.errors import MemsimError

_SETTINGS = (str, bytes, type(None))
_CONTAINERS = (list, tuple, set, frozenset, deque)
_OPAQUE = (FunctionType, MethodType, ModuleType, type)


class OptimizerSize(NamedTuple):
    """What a live optimizer keeps; comparable with `OptimizerState.total_bytes` and `.num_elements`."""

    num_bytes: int
    """Bytes of all tensor storages, each once, wherever they live; Python numbers have none."""
    num_elements: int
    """Elements of all entries, shared or not; a Python number is one."""


def compute_optimizer_size(states: Iterable[Any] | Mapping[Any, Any]) -> OptimizerSize:
    """Return the bytes and elements of `optimizer.state.values()`, or of `optimizer.state` itself.

    Nested dicts, lists and objects are walked (of an object, its tensors but not its settings); a tensor subclass
    counts as the plain tensors that it is made of; a view counts the storage that it keeps alive; a storage that
    several entries share (bitsandbytes' tables) counts once in bytes and with each entry in elements.

    Raises:
        MemsimError: an entry holds an object that cannot be looked into.
    """
    walk = _Walk()
    for index, state in enumerate(states.values() if isinstance(states, Mapping) else states):
        walk.visit(f"state[{index}]", state)
    return OptimizerSize(sum(walk.storage_bytes.values()), walk.num_elements)


@dataclass(slots=True)
class _Walk:
    """The sums so far, and the objects that are being walked (an object may lead back to itself)."""

    num_elements: int = 0
    storage_bytes: dict[int, int] = field(default_factory=dict)
    open_objects: set[int] = field(default_factory=set)

    def visit(self, path: str, value: Any) -> None:
        """Add one value, whatever it is."""
        if hasattr(value, "untyped_storage"):
            self._visit_tensor(path, value)
        elif isinstance(value, Number):
            self.num_elements += 1
        elif not isinstance(value, _SETTINGS) and id(value) not in self.open_objects:
            self.open_objects.add(id(value))
            for inner_path, inner in _parts(path, value):
                self.visit(inner_path, inner)
            self.open_objects.discard(id(value))

    def _visit_tensor(self, path: str, value: Any) -> None:
        if hasattr(type(value), "__tensor_flatten__"):
            for name in value.__tensor_flatten__()[0]:
                self._visit_tensor(f"{path}.{name}", getattr(value, name))
            return
        if getattr(value, "is_sparse", False):
            raise MemsimError(f"{path} is a sparse tensor: memsim measures dense tensors and their subclasses only.")
        storage = value.untyped_storage()
        # `_cdata` is the address of the storage object: meta and empty storages have no address of their own.
        self.storage_bytes[storage._cdata] = storage.nbytes()
        self.num_elements += value.numel()


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a container or object holds, with a readable path."""
    if isinstance(value, Mapping):
        yield from ((f"{path}[{key!r}]" if isinstance(key, str) else path, item) for key, item in value.items())
    elif isinstance(value, _CONTAINERS):
        yield from ((f"{path}[{index}]", item) for index, item in enumerate(value))
    else:
        for name, item in _attributes(path, value).items():
            if not isinstance(item, (Number, *_SETTINGS)):
                yield f"{path}.{name}", item


def _attributes(path: str, value: Any) -> dict[str, Any]:
    slots = [name for cls in type(value).__mro__ for name in _slot_names(cls)]
    if isinstance(value, _OPAQUE) or not (slots or hasattr(value, "__dict__")):
        raise MemsimError(
            f"{path} holds a {type(value).__module__}.{type(value).__qualname__}, which memsim cannot look into: "
            "pass the states without it and add its bytes yourself."
        )
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {**found, **getattr(value, "__dict__", {})}


def _slot_names(cls: type) -> tuple[str, ...]:
    slots = vars(cls).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in {"__dict__", "__weakref__"})
