"""A reader of pickles from strangers that can only make lists, dicts, tuples, strings and numbers.

A pickle is a program, and Python's own reader runs it. This one knows the instructions that a memory snapshot of
PyTorch consists of and refuses every other one: nothing is imported, called, built or looked up by name. What they make
is bounded: bytes of the file, containers, nesting, length of strings and integers. Instructions: pickletools.py and
PEP 307, 3154 and 574 of Python.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from memsim.errors import MemsimError

MAX_FILE_BYTES = 256 * 2**20
"""Some three million events."""
MAX_CONTAINERS = 8_000_000
"""Lists, dicts and tuples; an event of a snapshot is two or three."""
MAX_NESTING = 16
"""A snapshot is eight deep: snapshot, segments, segment, blocks, block, frames, frame."""
MAX_VALUES = 200_000_000
"""Of everything together, where what is used in many places counts at each of them."""
MAX_TEXT_BYTES = 2**20
MAX_INTEGER_BYTES = 9
"""64 bits and a sign."""
MAX_STACK = 200_000
"""Values waiting to become part of something; Python puts at most 1,000 at once into a list or dict."""

_MARK, _STOP = 0x28, 0x2E
_BETWEEN_CHECKS = 10_000
_CONTAINERS = frozenset({list, dict, tuple})
_PROTOCOLS = (2, 3, 4, 5)


class SnapshotFileError(MemsimError):
    """A file that is no memory snapshot of PyTorch, or not one that can be trusted."""


class _Machine:
    """The state of the program: its place in the file, its stack and its memo."""

    __slots__ = ("data", "marks", "memo", "num_containers", "position", "stack")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 2
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.num_containers = 0

    def new(self, container: Any) -> None:
        """Push a list, dict or tuple."""
        self.num_containers += 1
        if self.num_containers > MAX_CONTAINERS:
            raise SnapshotFileError(f"it holds more than {MAX_CONTAINERS:,} lists and dicts")
        self.stack.append(container)

    def since_mark(self) -> list[Any]:
        """Take everything above the last mark from the stack."""
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def text(self, length: int) -> None:
        """Push the string of the next `length` bytes."""
        end = self.position + length
        if length > MAX_TEXT_BYTES:
            raise SnapshotFileError(f"it holds a string of {length:,} bytes; {MAX_TEXT_BYTES:,} are allowed")
        if end > len(self.data):
            raise IndexError
        self.stack.append(self.data[self.position : end].decode("utf-8", "surrogatepass"))
        self.position = end

    def number(self, form: struct.Struct) -> Any:
        """Return the next number of a fixed length."""
        (value,) = form.unpack_from(self.data, self.position)
        self.position += form.size
        return value


_BYTE, _SHORT, _UINT = struct.Struct("<B"), struct.Struct("<H"), struct.Struct("<I")
_INT, _ULONG, _FLOAT = struct.Struct("<i"), struct.Struct("<Q"), struct.Struct(">d")


def _push_number(form: struct.Struct) -> Callable[[_Machine], None]:
    def push(machine: _Machine) -> None:
        machine.stack.append(form.unpack_from(machine.data, machine.position)[0])
        machine.position += form.size

    return push


def _push_text(form: struct.Struct) -> Callable[[_Machine], None]:
    return lambda machine: machine.text(machine.number(form))


def _push(value: Any) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(value)


def _push_byte(machine: _Machine) -> None:
    machine.stack.append(machine.data[machine.position])
    machine.position += 1


def _push_long(machine: _Machine) -> None:
    length = machine.data[machine.position]
    if length > MAX_INTEGER_BYTES:
        raise SnapshotFileError(f"it holds an integer of {length} bytes; {MAX_INTEGER_BYTES} are allowed")
    start = machine.position + 1
    machine.position = start + length
    if machine.position > len(machine.data):
        raise IndexError
    machine.stack.append(int.from_bytes(machine.data[start : machine.position], "little", signed=True))


def _recall_byte(machine: _Machine) -> None:
    machine.stack.append(machine.memo[machine.data[machine.position]])
    machine.position += 1


def _recall(machine: _Machine) -> None:
    machine.stack.append(machine.memo[machine.number(_UINT)])


def _memorize(machine: _Machine) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _memorize_at(form: struct.Struct) -> Callable[[_Machine], None]:
    def memorize(machine: _Machine) -> None:
        machine.memo[machine.number(form)] = machine.stack[-1]

    return memorize


def _mark(machine: _Machine) -> None:
    if len(machine.marks) >= MAX_NESTING:
        raise SnapshotFileError(f"it is nested deeper than {MAX_NESTING}")
    machine.marks.append(len(machine.stack))


def _new_list(machine: _Machine) -> None:
    machine.new([])


def _new_dict(machine: _Machine) -> None:
    machine.new({})


def _tuple_of(length: int) -> Callable[[_Machine], None]:
    def make(machine: _Machine) -> None:
        stack = machine.stack
        items = tuple(stack[len(stack) - length :])
        if len(items) != length:
            raise IndexError
        del stack[len(stack) - length :]
        machine.new(items)

    return make


def _tuple(machine: _Machine) -> None:
    machine.new(tuple(machine.since_mark()))


def _append(machine: _Machine) -> None:
    item = machine.stack.pop()
    _list_at_top(machine).append(item)


def _appends(machine: _Machine) -> None:
    items = machine.since_mark()
    _list_at_top(machine).extend(items)


def _list_at_top(machine: _Machine) -> list[Any]:
    target = machine.stack[-1]
    if type(target) is not list:
        raise TypeError
    return target


def _set_item(machine: _Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _set(machine, (key,), (value,))


def _set_items(machine: _Machine) -> None:
    items = machine.since_mark()
    _set(machine, items[::2], items[1::2])


def _set(machine: _Machine, keys: Iterable[Any], values: Iterable[Any]) -> None:
    target = machine.stack[-1]
    if type(target) is not dict:
        raise TypeError
    for key, value in zip(keys, values, strict=True):
        if type(key) is not str:
            raise TypeError
        target[key] = value


def _frame(machine: _Machine) -> None:
    if machine.number(_ULONG) > len(machine.data) - machine.position:
        raise IndexError


_INSTRUCTIONS: dict[int, Callable[[_Machine], None]] = {
    ord("N"): _push(None),
    0x88: _push(True),
    0x89: _push(False),
    ord("K"): _push_byte,
    ord("M"): _push_number(_SHORT),
    ord("J"): _push_number(_INT),
    ord("G"): _push_number(_FLOAT),
    0x8A: _push_long,
    0x8C: _push_text(_BYTE),
    ord("X"): _push_text(_UINT),
    0x8D: _push_text(_ULONG),
    _MARK: _mark,
    ord("]"): _new_list,
    ord("}"): _new_dict,
    ord(")"): lambda machine: machine.new(()),
    0x85: _tuple_of(1),
    0x86: _tuple_of(2),
    0x87: _tuple_of(3),
    ord("t"): _tuple,
    ord("a"): _append,
    ord("e"): _appends,
    ord("s"): _set_item,
    ord("u"): _set_items,
    ord("h"): _recall_byte,
    ord("j"): _recall,
    0x94: _memorize,
    ord("q"): _memorize_at(_BYTE),
    ord("r"): _memorize_at(_UINT),
    0x95: _frame,
}
_TABLE = [_INSTRUCTIONS.get(code) for code in range(256)]


def read_plain_pickle(data: bytes) -> Any:
    """Return what a pickle of protocol 2 to 5 holds, if that is plain data.

    Raises:
        SnapshotFileError: another instruction, too much of something, a structure that holds itself, or a damaged
            file; the message is the end of a sentence that begins with the file's name.
    """
    if len(data) > MAX_FILE_BYTES:
        raise SnapshotFileError(f"it has {len(data):,} bytes; {MAX_FILE_BYTES:,} are allowed")
    if len(data) < 3 or data[0] != 0x80 or data[1] not in _PROTOCOLS:
        raise SnapshotFileError("it does not begin as a pickle of protocol 2 to 5 does")
    if data[-1] != _STOP:
        raise SnapshotFileError("it does not end as a pickle does: it was cut off or something follows")
    machine = _Machine(data)
    try:
        _run(machine)
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise SnapshotFileError(f"it is damaged at byte {machine.position:,} of {len(data):,}") from error
    (value,) = machine.stack
    _check_structure(value)
    return value


def _run(machine: _Machine) -> None:
    """Follow the instructions up to the last byte of the file."""
    data, table, end = machine.data, _TABLE, len(machine.data) - 1
    while machine.position < end:
        for _ in range(_BETWEEN_CHECKS):
            code = data[machine.position]
            instruction = table[code]
            if instruction is None:
                if code == _STOP and machine.position == end:
                    break
                raise SnapshotFileError(_refused(code))
            machine.position += 1
            instruction(machine)
        if len(machine.stack) > MAX_STACK:
            raise SnapshotFileError(f"it piles up more than {MAX_STACK:,} values")
    if len(machine.stack) != 1 or machine.marks:
        raise IndexError


def _refused(code: int) -> str:
    if code == _STOP:
        return "something follows its end"
    return (
        f"it holds the instruction {code:#04x}: only lists, dicts, tuples, strings and numbers are read, nothing is run"
    )


def _check_structure(root: Any) -> None:
    """Refuse what holds itself, is nested too deeply, or would be too large if everything shared were copied."""
    measured: dict[int, tuple[int, int]] = {}
    path: list[tuple[Any, list[Any]]] = []
    open_ids: set[int] = set()
    following = [root] if type(root) in _CONTAINERS else []
    while following or path:
        if not following:
            container, following = path.pop()
            open_ids.remove(id(container))
            measured[id(container)] = _measure(container, measured)
            continue
        container = following.pop()
        if id(container) in open_ids:
            raise SnapshotFileError("it holds a structure that contains itself")
        if id(container) not in measured:
            path.append((container, following))
            open_ids.add(id(container))
            following = [item for item in _items(container) if type(item) in _CONTAINERS]


def _measure(container: Any, measured: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
    """Return how many values a container holds, and how deep it is, from those of the containers in it."""
    num_values, depth = len(container), 1
    for item in _items(container):
        if type(item) in _CONTAINERS:
            inner_values, inner_depth = measured[id(item)]
            num_values += inner_values
            depth = max(depth, inner_depth + 1)
    if depth > MAX_NESTING:
        raise SnapshotFileError(f"it is nested deeper than {MAX_NESTING}")
    if num_values > MAX_VALUES:
        raise SnapshotFileError(f"what it shares would be more than {MAX_VALUES:,} values if it were written out")
    return num_values, depth


def _items(container: Any) -> Iterable[Any]:
    return container.values() if type(container) is dict else container
