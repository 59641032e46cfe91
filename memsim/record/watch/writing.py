"""The recording as a file: PyTorch's memory history, the marks and the sightings, in one JSON object."""

from __future__ import annotations

import gc
import json
import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from .tape import Mark, add_mark

SCHEMA = 1

_LIBRARIES = tuple(
    os.path.join(path, "")
    for path in {
        *(sysconfig.get_path(name) or "" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(__file__).resolve().parents[2]),
    }
    if path
)
_WATCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
"""Frames of its own, which stand between PyTorch and an operator that computes on the host too."""
_LIBRARY_PARTS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
)


class Place(NamedTuple):
    """Where in the code an allocation was made."""

    line: str
    library_line: str
    in_torch_distributed: bool


class Lines:
    """Stacks reduced to the two lines that matter, each place kept once."""

    def __init__(self, torch_folder: str) -> None:
        self.places: list[Place] = []
        self._index: dict[Place, int] = {}
        self._torch = os.path.join(torch_folder, "torch", "")
        self._library = (*_LIBRARIES, os.path.join(torch_folder, ""))
        self._is_user: dict[str, bool] = {}

    def is_user_code(self, filename: str) -> bool:
        """Return whether a file is the user's own: neither Python's, nor an installed package, nor generated."""
        if filename not in self._is_user:
            generated = filename.startswith("<") and filename not in {"<string>", "<stdin>"}
            library = filename.startswith(self._library) or any(part in filename for part in _LIBRARY_PARTS)
            self._is_user[filename] = not (generated or library)
        return self._is_user[filename]

    def of(self, frames: Sequence[Any]) -> int:
        """Return the number of the place of frames that begin with the innermost."""
        frames = [frame for frame in frames if not frame["filename"].startswith(_WATCH)]
        user = next((frame for frame in frames if self.is_user_code(frame["filename"])), None)
        innermost = frames[0] if frames else None
        caller = next((frame for frame in frames if not frame["filename"].startswith(self._torch)), innermost)
        distributed = innermost is not None and innermost["filename"].startswith(
            (f"{self._torch}distributed{os.sep}", f"{self._torch}nn{os.sep}parallel{os.sep}distributed.py")
        )
        place = Place(_text(user) if user else "", _text(caller) if caller else "", distributed)
        if place not in self._index:
            self._index[place] = len(self.places)
            self.places.append(place)
        return self._index[place]


def call_stack(frame: FrameType | None) -> Place:
    """Return the place of a running frame."""
    frames = []
    while frame is not None:
        code = frame.f_code
        frames.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    lines = Lines(os.path.dirname(sys.modules["torch"].__path__[0]))
    return lines.places[
        lines.of([f for f in frames if os.path.dirname(str(f["filename"])) != os.path.dirname(__file__)])
    ]


def write_recording(
    path: Path, watch: Any, history: Any, *, ended: str, ended_by_oom: bool, notes: Sequence[str]
) -> None:
    """Write what was recorded since `history` was started into one file, whole or not at all."""
    data = gathered(watch, history, ended=ended, ended_by_oom=ended_by_oom, notes=notes)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(data, separators=(",", ":")), encoding="utf-8")
    unfinished.replace(path)


def gathered(watch: Any, history: Any, *, ended: str, ended_by_oom: bool, notes: Sequence[str]) -> dict[str, Any]:
    """Return what was recorded since `history` was started, as `recording_of` reads it."""
    torch = watch.torch
    statistics = torch._C._cuda_memoryStats(history.device)
    position = watch.tape.position()
    snapshot = torch.cuda.memory._snapshot()
    properties = torch.cuda.get_device_properties(history.device)
    traces = snapshot["device_traces"][history.device :]
    data = {
        "schema": SCHEMA,
        "pid": os.getpid(),
        "ended": ended,
        "ended_by_oom": ended_by_oom,
        "num_steps": watch.num_steps,
        "position": position,
        "device": {
            "name": properties.name,
            "total_bytes": properties.total_memory,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "torch_version": torch.__version__,
        },
        "settings": _settings(snapshot.get("allocator_settings", {})),
        "stats": _stats(statistics),
        "cublas_workspace_config": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
        **_history(traces, os.path.dirname(torch.__path__[0])),
        "marks": watch.tape.marks,
        "sections": watch.tape.sections,
        "sightings": watch.sightings.seen,
        "ooms": history.ooms,
        "notes": [*notes, *_notes(torch, snapshot)],
    }
    return data if history.ticks is None else _in_events(data, history.ticks.positions(traces[0] if traces else ()))


def _in_events(data: dict[str, Any], positions: Sequence[int]) -> dict[str, Any]:
    """Return a recording whose positions were ticks with positions of its events."""
    marks: list[Mark] = []
    for mark in data["marks"]:
        add_mark(marks, mark._replace(position=positions[mark.position]))
    return {
        **data,
        "position": positions[data["position"]],
        "marks": marks,
        "sections": [(positions[tick], name) for tick, name in data["sections"]],
        "sightings": [sighting._replace(position=positions[sighting.position]) for sighting in data["sightings"]],
        "ooms": [{**oom, "position": positions[oom["position"]]} for oom in data["ooms"]],
    }


def _history(traces: Any, torch_folder: str) -> dict[str, Any]:
    lines = Lines(torch_folder)
    columns: dict[str, list[Any]] = {"action": [], "address": [], "nbytes": [], "stream": [], "line": []}
    for entry in traces[0] if traces else ():
        if entry["action"] not in _ACTIONS:
            continue
        columns["action"].append(entry["action"])
        columns["address"].append(entry.get("addr", 0))
        columns["nbytes"].append(entry["size"])
        columns["stream"].append(entry["stream"])
        columns["line"].append(lines.of(entry.get("frames", ())) if entry["action"] == "alloc" else -1)
    return {"events": columns, "lines": lines.places}


def _text(frame: Any) -> str:
    return f"{_short(frame['filename'])}:{frame['line']} in {frame['name']}"


def _short(filename: str) -> str:
    """Return a path from the working folder, or from the package on for libraries."""
    for part in _LIBRARY_PARTS:
        if part in filename:
            return filename.rsplit(part, 1)[1]
    torch = os.path.dirname(sys.modules["torch"].__path__[0])
    for folder in (torch, os.getcwd()):
        if filename.startswith(os.path.join(folder, "")):
            return os.path.relpath(filename, folder)
    return filename


def _stats(statistics: Any) -> dict[str, int]:
    return {
        "peak_requested_bytes": statistics["requested_bytes"]["all"]["peak"],
        "peak_allocated_bytes": statistics["allocated_bytes"]["all"]["peak"],
        "peak_reserved_bytes": statistics["reserved_bytes"]["all"]["peak"],
        "allocated_bytes": statistics["allocated_bytes"]["all"]["current"],
        "reserved_bytes": statistics["reserved_bytes"]["all"]["current"],
        "num_alloc_retries": statistics["num_alloc_retries"],
        "num_ooms": statistics["num_ooms"],
    }


def _settings(settings: Any) -> dict[str, Any]:
    limit = settings.get("max_split_size", -1)
    divisions = [int(value) for value in settings.get("roundup_power2_divisions", {}).values()]
    return {
        "max_split_bytes": limit if limit > 0 else None,
        "roundup_power2_divisions": divisions if any(divisions) else [],
    }


def _notes(torch: Any, snapshot: Any) -> list[str]:
    notes = []
    scalers = [thing for thing in gc.get_objects() if type(thing).__name__ == "GradScaler"]
    if any(getattr(scaler, "_enabled", False) for scaler in scalers):
        notes.append("GradScaler found no overflow, as gradients are zero: no optimizer step was skipped.")
    used = [index for index, trace in enumerate(snapshot["device_traces"]) if trace and index]
    if used:
        notes.append(f"Only device 0 was watched; the program also used {', '.join(f'cuda:{i}' for i in used)}.")
    if torch.cuda.is_initialized() and torch.backends.cudnn.benchmark:
        notes.append("cudnn.benchmark tries algorithms on a real GPU, whose workspaces can exceed what was seen here.")
    return notes
