"""`read_snapshot`: a file of `torch.cuda.memory._dump_snapshot`, checked value by value.

What the keys mean: docstring of `torch.cuda.memory._snapshot` @2.13; older files lack some of them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memsim.allocator.state import BlockState, BlockStateName, SegmentState
from memsim.block_sizes import NUM_DIVISIONS, SMALL_SEGMENT_BYTES
from memsim.errors import shown
from memsim.snapshot_file.plain_pickle import MAX_FILE_BYTES, SnapshotFileError, read_plain_pickle
from memsim.snapshot_file.snapshot import Annotation, DeviceHistory, Frame, LoggedEvent, Snapshot
from memsim.step import AllocatorSettings

MAX_EVENTS = 4_000_000
"""Events and blocks that are taken from a file."""
MAX_FRAMES = 20_000_000
"""Lines of code that are taken from a file, every list of them once."""
_LARGEST = 2**63 - 1
_STATES: dict[str, BlockStateName] = {
    "active_allocated": "active_allocated",
    "active_pending_free": "active_pending_free",
    "active_awaiting_free": "active_pending_free",
    "inactive": "inactive",
}


def read_snapshot(path: str | Path) -> Snapshot:
    """Return what a file of `torch.cuda.memory._dump_snapshot` holds, without running anything that is in it.

    Raises:
        SnapshotFileError: it cannot be read, or is no such file: another pickle, damaged, hostile, too large.
    """
    name = os.path.basename(path)
    try:
        return checked_snapshot(read_plain_pickle(_bytes_of(path)))
    except OSError as error:
        raise SnapshotFileError(f"cannot read {shown(str(path))}: {error.strerror or error}.") from error
    except SnapshotFileError as error:
        raise SnapshotFileError(
            f"{shown(name)} is no memory snapshot that can be read: {error}.\n"
            "Give a file that torch.cuda.memory._dump_snapshot wrote."
        ) from error


def checked_snapshot(data: Any) -> Snapshot:
    """Return what `torch.cuda.memory._snapshot()` gave.

    Raises:
        SnapshotFileError: it is something else; the message says what is wrong, for the end of a sentence.
    """
    return _Reader().snapshot(data)


def _bytes_of(path: str | Path) -> bytes:
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise SnapshotFileError("it is no regular file")
    if status.st_size > MAX_FILE_BYTES:
        raise SnapshotFileError(f"it has {status.st_size:,} bytes; {MAX_FILE_BYTES:,} are allowed")
    return Path(path).read_bytes()


class _Reader:
    """From plain data to a snapshot; what is shared in the file stays shared."""

    def __init__(self) -> None:
        self._num_rows = 0
        self._num_frames = 0
        self._frames: dict[int, tuple[Frame, ...]] = {}
        self._frame: dict[int, Frame] = {}

    def snapshot(self, data: Any) -> Snapshot:
        top = _typed(data, dict, "it")
        segments = [self._segment(row, f"segments[{n}]") for n, row in enumerate(_field(top, "segments", list))]
        traces = _field(top, "device_traces", list, default=[])
        settings = _field(top, "allocator_settings", dict, default={})
        num_devices = max([len(traces), *(device + 1 for device, _ in segments)])
        if num_devices > 1024:
            raise SnapshotFileError(f"it has {num_devices} devices")
        return Snapshot(
            devices=tuple(
                DeviceHistory(
                    index=index,
                    segments=_in_order(segment for device, segment in segments if device == index),
                    events=tuple(self._events(traces[index], f"device_traces[{index}]") if index < len(traces) else ()),
                )
                for index in range(num_devices)
            ),
            settings=_settings(settings),
            alloc_conf=_field(settings, "PYTORCH_CUDA_ALLOC_CONF", str, default=""),
            annotations=tuple(_annotations(_field(top, "external_annotations", list, default=[]))),
        )

    def _row(self, value: Any, where: str) -> dict[str, Any]:
        self._num_rows += 1
        if self._num_rows > MAX_EVENTS:
            raise SnapshotFileError(f"it holds more than {MAX_EVENTS:,} events and blocks")
        if type(value) is not dict:
            raise SnapshotFileError(f"{where} is of type {type(value).__name__}, not dict")
        return value

    def _segment(self, value: Any, where: str) -> tuple[int, SegmentState]:
        row = self._row(value, where)
        address, nbytes = _integer(row, "address", where), _integer(row, "total_size", where)
        expandable = _field(row, "is_expandable", bool, where, default=False)
        blocks = tuple(self._blocks(_field(row, "blocks", list, where), address, where))
        if nbytes <= 0 or sum(block.nbytes for block in blocks) != nbytes:
            raise SnapshotFileError(f"the blocks of {where} do not fill its {nbytes:,} bytes")
        kind = _field(row, "segment_type", str, where, default="small" if nbytes == SMALL_SEGMENT_BYTES else "large")
        return _integer(row, "device", where, default=0), SegmentState(
            address=address,
            nbytes=nbytes,
            stream=_integer(row, "stream", where),
            small=kind == "small",
            expandable=expandable,
            blocks=blocks,
        )

    def _blocks(self, rows: list[Any], address: int, where: str) -> Iterator[BlockState]:
        place = f"a block of {where}"
        for value in rows:
            row = self._row(value, place)
            nbytes, state = _integer(row, "size", place), _field(row, "state", str, place)
            if nbytes <= 0:
                raise SnapshotFileError(f"{place} has {nbytes} bytes")
            if state not in _STATES:
                raise SnapshotFileError(f"{place} is {shown(state)}")
            asked = _integer(row, "requested_size", place, default=nbytes)
            inactive = _STATES[state] == "inactive"
            if asked > nbytes and not inactive:
                raise SnapshotFileError(f"{place} holds {asked:,} bytes in {nbytes:,}")
            yield BlockState(
                address=address, nbytes=nbytes, requested_bytes=0 if inactive else asked, state=_STATES[state]
            )
            address += nbytes

    def _events(self, value: Any, where: str) -> Iterator[LoggedEvent]:
        place = f"an event of {where}"
        for item in _typed(value, list, where):
            row = self._row(item, place)
            action = _field(row, "action", str, place)
            yield LoggedEvent(
                action=action,
                address=0 if action == "oom" else _integer(row, "addr", place),
                nbytes=_integer(row, "size", place),
                stream=_integer(row, "stream", place),
                time_us=_integer(row, "time_us", place, default=0),
                frames=self._frames_of(_field(row, "frames", list, place, default=[]), place),
            )

    def _frames_of(self, rows: list[Any], where: str) -> tuple[Frame, ...]:
        known = self._frames.get(id(rows))
        if known is None:
            self._num_frames += len(rows)
            if self._num_frames > MAX_FRAMES:
                raise SnapshotFileError(f"it holds more than {MAX_FRAMES:,} lines of code")
            read = (self._frame_of(row, where) for row in rows)
            known = self._frames[id(rows)] = tuple(frame for frame in read if _is_python(frame.filename))
        return known

    def _frame_of(self, value: Any, where: str) -> Frame:
        known = self._frame.get(id(value))
        if known is None:
            row = _typed(value, dict, f"a frame of {where}")
            known = self._frame[id(value)] = Frame(
                name=_field(row, "name", str, where),
                filename=_field(row, "filename", str, where),
                line=_integer(row, "line", where),
            )
        return known


def _is_python(filename: str) -> bool:
    return filename.endswith(".py") or filename.startswith("<")


def _in_order(segments: Iterator[SegmentState]) -> tuple[SegmentState, ...]:
    ordered = tuple(sorted(segments, key=lambda segment: segment.address))
    end = 0
    for segment in ordered:
        if segment.address < end:
            raise SnapshotFileError(f"two segments share the address {segment.address:#x}")
        end = segment.address + segment.nbytes
    return ordered


def _settings(row: dict[str, Any]) -> AllocatorSettings:
    limit = _typed(row.get("max_split_size", -1), int, "max_split_size")
    divisions = _field(row, "roundup_power2_divisions", dict, default={})
    table = tuple(_integer(divisions, str(2**power), default=0) for power in range(NUM_DIVISIONS))
    return AllocatorSettings(
        max_split_bytes=limit if limit > 0 else None, roundup_power2_divisions=table if any(table) else ()
    )


def _annotations(rows: list[Any]) -> Iterator[Annotation]:
    for number, value in enumerate(rows):
        place = f"external_annotations[{number}]"
        row = _typed(value, dict, place)
        yield Annotation(
            starts=_field(row, "stage", str, place) == "START",
            name=_field(row, "name", str, place),
            device=_integer(row, "device", place, default=0),
            time_us=_integer(row, "time_us", place),
        )


def _typed(value: Any, kind: type[Any], where: str) -> Any:
    """Return `value` if it is of that very type; the message shows no value, which may be of any size."""
    if type(value) is not kind:
        raise SnapshotFileError(f"{where} is of type {type(value).__name__}, not {kind.__name__}")
    return value


_REQUIRED = object()


def _field(row: Mapping[str, Any], name: str, kind: type[Any], where: str = "it", default: Any = _REQUIRED) -> Any:
    value = row.get(name, default)
    if type(value) is not kind:
        if value is _REQUIRED:
            raise SnapshotFileError(f"{where} has no {name!r}")
        raise SnapshotFileError(f"{name!r} of {where} is of type {type(value).__name__}, not {kind.__name__}")
    return value


def _integer(row: Mapping[str, Any], name: str, where: str = "it", default: Any = _REQUIRED) -> int:
    value = row.get(name, default)
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise SnapshotFileError(f"{name!r} of {where} is {shown(_field(row, name, int, where, default))}")
    return value
