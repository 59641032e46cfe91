"""Whose memory the blocks of a history were, as far as code and lifetimes tell."""

from __future__ import annotations

from collections.abc import Sequence

from memsim.ledger import Category, Phase
from memsim.snapshot_file.phases import Moment
from memsim.snapshot_file.snapshot import Frame, LoggedEvent
from memsim.step import Holder
from memsim.units import KIB

_WORKSPACES = frozenset({(4096 * 2 + 16 * 8) * KIB, 4096 * 8 * KIB})
"""A cuBLAS workspace before and from compute capability 9.0 on (aten/src/ATen/cuda/CublasHandlePool.cpp @2.13)."""
_PACKAGES = ("/site-packages/", "/dist-packages/")


def holders(events: Sequence[LoggedEvent], places: Sequence[Moment]) -> list[Holder | None]:
    """Return the holder of every block event of a history; `None` for what was there before it, and for segments."""
    alloc_of, freed_at = _lives(events)
    phase_ends, backwards = _ends(places)
    result: list[Holder | None] = [None] * len(events)
    step, called = 0, False
    for index, event in enumerate(events):
        if event.action == "alloc":
            place = places[index]
            if place.step != step or place.phase is Phase.BACKWARD:
                step, called = place.step, False
            called = called or (place.phase is Phase.FORWARD and any(_is_call(frame) for frame in event.frames))
            lives_until = freed_at.get(index, len(events))
            kept = lives_until >= (backwards if place.phase is Phase.FORWARD else phase_ends)[index]
            user, library = _lines(event.frames)
            category = _category(event, place.phase, kept=kept, freed=index in freed_at, called=called)
            result[index] = Holder(category=category, line=user, library_line=library)
        elif index in alloc_of:
            result[index] = result[alloc_of[index]]
    return result


def _lives(events: Sequence[LoggedEvent]) -> tuple[dict[int, int], dict[int, int]]:
    """Return the alloc that each free belongs to, and when each alloc is freed, by index."""
    born: dict[int, int] = {}
    alloc_of, freed_at = {}, {}
    for index, event in enumerate(events):
        if event.action == "alloc":
            born[event.address] = index
        elif event.action.startswith("free_") and event.address in born:
            alloc_of[index] = born[event.address]
            if event.action == "free_requested":
                freed_at[born[event.address]] = index
            else:
                del born[event.address]
    return alloc_of, freed_at


def _ends(places: Sequence[Moment]) -> tuple[list[int], list[int]]:
    """Return for every event where its phase ends, and where the next backward begins."""
    ends, backwards = [0] * len(places), [0] * len(places)
    end = backward = len(places)
    for index in range(len(places) - 1, -1, -1):
        if index + 1 < len(places) and places[index] != places[index + 1]:
            end = index + 1
        if places[index].phase is Phase.BACKWARD:
            backward = index
        ends[index], backwards[index] = end, backward
    return ends, backwards


def _category(event: LoggedEvent, phase: Phase, *, kept: bool, freed: bool, called: bool) -> Category:
    """Return what a block was for; `kept`: it outlived its phase, or was there when backward began."""
    if event.nbytes in _WORKSPACES and not freed:
        return Category.WORKSPACE
    if phase is Phase.LOAD:
        return Category.PARAMETER if kept else Category.TEMPORARY
    of_phase = {
        Phase.FORWARD: Category.ACTIVATION if called else Category.INPUT,
        Phase.BACKWARD: Category.GRADIENT,
        Phase.OPTIMIZER_STEP: Category.OPTIMIZER_STATE,
    }
    return of_phase.get(phase, Category.TEMPORARY) if kept else Category.TEMPORARY


def _is_call(frame: Frame) -> bool:
    """Return whether a module was being called."""
    return frame.name == "_call_impl" and frame.filename.endswith("torch/nn/modules/module.py")


def _lines(frames: Sequence[Frame]) -> tuple[str, str]:
    """Return the innermost line of the user's own code, and the innermost outside of torch."""
    user = next((frame for frame in frames if _is_user_code(frame.filename)), None)
    outside = next((frame for frame in frames if "/torch/" not in frame.filename), None)
    return _text(user), _text(outside)


def _is_user_code(filename: str) -> bool:
    installed = "/torch/" in filename or any(part in filename for part in _PACKAGES)
    return not installed and "/lib/python" not in filename and (not filename.startswith("<") or filename == "<stdin>")


def _text(frame: Frame | None) -> str:
    if frame is None:
        return ""
    filename = frame.filename
    for part in _PACKAGES:
        filename = filename.rpartition(part)[2]
    return f"{filename}:{frame.line} in {frame.name}"
