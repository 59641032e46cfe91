"""The same recording on a CUDA device that a user's own program is using already.

PyTorch's history begins in the midst of things. What its allocator holds at that moment is written in front of it, as
the events that would have led there, so that a trace is whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from memsim.errors import MemsimError
from memsim.record.recording import Recording, recording_of
from memsim.record.watch.history import History
from memsim.record.watch.hooks import Watch
from memsim.record.watch.writing import gathered
from memsim.step import AllocatorSettings
from memsim.step.blocks import round_request

_COUNTED = ("alloc", "free_requested")


class CudaRecording:
    """Records what this process does with the memory of the first CUDA device while it is entered.

    Args:
        with_lines: whether each allocation's line of code is recorded.
        after_step: called with the number of completed optimizer steps after each.

    Raises:
        MemsimError: the program records PyTorch's memory history itself.
    """

    def __init__(self, *, with_lines: bool = True, after_step: Callable[[int], None] | None = None) -> None:
        import torch

        self._torch = torch
        self._with_lines = with_lines
        self._history = History(torch)
        self._found: list[tuple[str, int, int, int]] = []
        self._shift = 0
        self.watch = Watch(torch, position=self._position, after_step=after_step)

    @property
    def is_imaginary(self) -> bool:
        """Whether the device is an imaginary GPU."""
        return "MEMSIM_GPU" in os.environ

    def __enter__(self) -> CudaRecording:
        snapshot = self._torch.cuda.memory._snapshot()
        if any(snapshot["device_traces"]):
            raise MemsimError(
                "PyTorch's memory history is being recorded already, and there is only one: end that first with "
                "torch.cuda.memory._record_memory_history(None)."
            )
        settings = snapshot.get("allocator_settings", {})
        self._found = list(events_that_lead_to(snapshot["segments"], _rounding(settings)))
        self._shift = sum(event[0] in _COUNTED for event in self._found) - self._history.position()
        self.watch.install()
        self.watch.tape.recording = True
        self._history.start(where=self.watch.where, before_oom=self.watch.see_owners, with_stacks=self._with_lines)
        return self

    def __exit__(self, *error: Any) -> None:
        self._history.stop()
        self.watch.tape.recording = False
        self.watch.uninstall()

    def find(self, module: Any, optimizer: Any = None) -> None:
        """See what a module and its optimizer hold already."""
        self.watch.sightings.find(module, optimizer)

    def recording(self) -> Recording:
        """Return what was recorded so far; only while it is entered."""
        sightings = self.watch.sightings
        sightings.gradients(sightings.all_parameters())
        sightings.living()
        by_oom = bool(self._history.ooms)
        data = gathered(self.watch, self._history, ended="finished", ended_by_oom=by_oom, notes=())
        for oom in data["ooms"]:
            oom["position"] += self._shift
        return recording_of(_after(self._found, data))

    def used_bytes(self) -> int | None:
        """Return what the whole device holds, as its driver says; `None` on an imaginary GPU."""
        if self.is_imaginary:
            return None
        free, total = self._torch.cuda.mem_get_info(0)
        return int(total - free)

    def _position(self) -> int:
        return self._history.position() + self._shift


def events_that_lead_to(
    segments: Iterable[Mapping[str, Any]], settings: AllocatorSettings
) -> Iterator[tuple[str, int, int, int]]:
    """Yield events (action, address, bytes, stream) after which an allocator holds the given segments and blocks.

    Args:
        segments: as `torch.cuda.memory._snapshot()` has them; those of other devices than the first are passed over.
        settings: which decide the size of a block.
    """
    # A gap between two blocks is a block itself until they are in place: such segments come first, where that is least.
    for segment in sorted(segments, key=lambda s: -_gap_bytes(s["blocks"])):
        if segment["device"] == 0:
            yield from _events_of(segment, settings)


def _gap_bytes(blocks: Sequence[Mapping[str, Any]]) -> int:
    free = sum(block["size"] for block in blocks if block["state"] == "inactive")
    return int(free - (blocks[-1]["size"] if blocks and blocks[-1]["state"] == "inactive" else 0))


def _events_of(segment: Mapping[str, Any], settings: AllocatorSettings) -> Iterator[tuple[str, int, int, int]]:
    stream = segment["stream"]
    kind = "segment_map" if segment.get("is_expandable") else "segment_alloc"
    yield kind, segment["address"], segment["total_size"], stream
    free, reused = [], []
    address = segment["address"]
    blocks = segment["blocks"]
    if blocks and blocks[-1]["state"] == "inactive":  # what is left at the end is left by itself
        blocks = blocks[:-1]
    for block in blocks:
        place = (address, block["size"], stream)
        address += block["size"]
        active = block["state"] == "active_allocated"
        asked = block.get("requested_size", block["size"])
        exact = active and round_request(asked, settings) == block["size"]
        yield "alloc", place[0], asked if exact else place[1], stream
        if block["state"] == "active_pending_free":
            yield ("free_requested", *place)
        elif not active:
            free.append(place)
        elif not exact:  # the block was free and larger before, and too small to be split
            reused.append((place, asked))
    for place, asked in reused:
        yield from _freed(place)
        yield "alloc", place[0], asked, stream
    for place in free:
        yield from _freed(place)


def _freed(place: tuple[int, int, int]) -> Iterator[tuple[str, int, int, int]]:
    yield ("free_requested", *place)
    yield ("free_completed", *place)


def _after(found: Iterable[tuple[str, int, int, int]], data: Mapping[str, Any]) -> dict[str, Any]:
    """Put the found events in front of the recorded ones."""
    lines = [*data["lines"], ("", "", False)]
    unknown = len(lines) - 1
    rows = [(*event, unknown if event[0] == "alloc" else -1) for event in found]
    names = ("action", "address", "nbytes", "stream", "line")
    columns = {name: [*(row[place] for row in rows), *data["events"][name]] for place, name in enumerate(names)}
    return {**data, "lines": lines, "events": columns}


def _rounding(settings: Mapping[str, Any]) -> AllocatorSettings:
    divisions = tuple(int(value) for value in settings.get("roundup_power2_divisions", {}).values())
    return AllocatorSettings(roundup_power2_divisions=divisions if any(divisions) else ())
