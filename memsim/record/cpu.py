"""The same recording from steps that are really computed on the CPU: every storage as it is born and dies.

There is no caching allocator, so a trace has no segments and every storage takes exactly its bytes. Addresses are the
storages' own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from memsim.record.recording import SCHEMA, Recording, recording_of
from memsim.record.storages import Storage, StorageWatch
from memsim.record.watch.hooks import Watch
from memsim.record.watch.sightings import Sighting
from memsim.record.watch.writing import Lines

_OWN_FILES = (os.path.splitext(__file__)[0], os.path.join(os.path.dirname(__file__), "storages"))


class CpuRecording:
    """Records what this thread does with the CPU's memory while it is entered.

    Args:
        with_lines: whether each allocation's line of code is noted.
        after_step: called with the number of completed optimizer steps after each.
    """

    def __init__(self, *, with_lines: bool = True, after_step: Callable[[int], None] | None = None) -> None:
        import torch

        self._torch = torch
        self.watch = Watch(torch, position=self._position, device_type="cpu", after_step=after_step)
        self._storages = StorageWatch(self._born, self._died)
        self._lines = Lines(os.path.dirname(torch.__path__[0]))
        self._with_lines = with_lines
        self._columns: dict[str, list[Any]] = {"action": [], "address": [], "nbytes": [], "stream": [], "line": []}
        self._num_events = self._live_bytes = self._peak_bytes = 0
        self._unknown_line = self._lines.of(())

    @property
    def is_imaginary(self) -> bool:
        """No: everything is computed."""
        return False

    def used_bytes(self) -> int | None:
        """Return `None`: no driver counts the CPU's memory."""
        return None

    def __enter__(self) -> CpuRecording:
        self.watch.install()
        self.watch.tape.recording = True
        self._storages.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._storages.__exit__(*error)
        self._storages.forget()
        self.watch.uninstall()

    def find(self, module: Any, optimizer: Any = None) -> None:
        """Count what a module and its optimizer hold already as there from the beginning."""
        sightings = self.watch.sightings
        held = [*module.parameters(), *module.buffers()]
        for parameter in module.parameters():
            held += sightings.tensors_of(vars(parameter))
            held += [parameter.grad] if parameter.grad is not None else []
        if optimizer is not None:
            held += sightings.tensors_of([group["params"] for group in optimizer.param_groups])
            held += sightings.tensors_of(list(optimizer.state.values()))
        noting, self._with_lines = self._with_lines, False  # they were made elsewhere
        for tensor in held:
            if tensor.device.type == "cpu":
                self._storages.see(tensor)
        self._with_lines = noting
        sightings.find(module, optimizer)

    def recording(self) -> Recording:
        """Return what was recorded so far."""
        sightings = self.watch.sightings
        sightings.gradients(sightings.all_parameters())
        return recording_of(
            {
                "schema": SCHEMA,
                "pid": os.getpid(),
                "ended": "finished",
                "ended_by_oom": False,
                "num_steps": self.watch.num_steps,
                "position": self._position(),
                "device": {
                    "name": "CPU",
                    "total_bytes": physical_bytes(),
                    "compute_capability": "",
                    "torch_version": self._torch.__version__,
                },
                "settings": {"max_split_bytes": None, "roundup_power2_divisions": []},
                "stats": self._stats(),
                "cublas_workspace_config": "",
                "events": self._columns,
                "lines": self._lines.places,
                "marks": self.watch.tape.marks,
                "sections": self.watch.tape.sections,
                "sightings": sightings.seen,
                "ooms": [],
                "notes": [],
            }
        )

    def _position(self) -> int:
        return self._num_events

    def _born(self, storage: Storage) -> None:
        if not storage.nbytes or storage.device != "cpu":
            return
        line = self._lines.of(self._frames(sys._getframe(1))) if self._with_lines else self._unknown_line
        self._note("alloc", storage, line)
        self._num_events += 1
        self._live_bytes += storage.nbytes
        self._peak_bytes = max(self._peak_bytes, self._live_bytes)
        if storage.arrived:
            seen = Sighting(self._num_events, "arrived", storage.address, storage.nbytes, "", None, "", "")
            self.watch.sightings.seen.append(seen)

    def _died(self, storage: Storage) -> None:
        if not storage.nbytes or storage.device != "cpu":
            return
        self._note("free_requested", storage, -1)
        self._note("free_completed", storage, -1)
        self._num_events += 1
        self._live_bytes -= storage.nbytes

    def _frames(self, frame: FrameType | None) -> list[dict[str, Any]]:
        """Return the stack from the innermost frame that is not this package's own up to the user's."""
        frames: list[dict[str, Any]] = []
        while frame is not None:
            filename = frame.f_code.co_filename
            if not filename.startswith(_OWN_FILES):
                frames.append({"filename": filename, "line": frame.f_lineno, "name": frame.f_code.co_name})
                if self._lines.is_user_code(filename):
                    break
            frame = frame.f_back
        return frames

    def _note(self, action: str, storage: Storage, line: int) -> None:
        for name, value in (
            ("action", action),
            ("address", storage.address),
            ("nbytes", storage.nbytes),
            ("stream", 0),
            ("line", line),
        ):
            self._columns[name].append(value)

    def _stats(self) -> dict[str, int]:
        names = ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes")
        return {
            **dict.fromkeys(names, self._peak_bytes),
            **dict.fromkeys(("allocated_bytes", "reserved_bytes"), self._live_bytes),
            "num_alloc_retries": 0,
            "num_ooms": 0,
        }


def physical_bytes() -> int:
    """Return the memory of this machine; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
