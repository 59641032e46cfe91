"""Waits for a process to import torch, and for its first use of CUDA; until then nothing is changed."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

Callback = Callable[[ModuleType], None]


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds nothing itself: calls back once the module that another finder found has run."""

    def __init__(self, callbacks: Mapping[str, Callback]) -> None:
        self._waiting = dict(callbacks)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec that the other finders give, its loader set to call back."""
        if fullname not in self._waiting:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    _call_after(spec.loader, functools.partial(self._arrived, fullname))
                return spec
        return None

    def _arrived(self, fullname: str, module: ModuleType) -> None:
        # Only now: whoever asks importlib.util.find_spec whether a package is there gets a spec and imports nothing.
        callback = self._waiting.pop(fullname, None)
        if callback is not None:
            callback(module)


def _call_after(loader: Any, callback: Callback) -> None:
    """Run `callback` after this one loader has executed its module; its class stays as it is."""
    execute = loader.exec_module

    @functools.wraps(execute)
    def exec_module(module: ModuleType) -> None:
        loader.exec_module = execute
        execute(module)
        try:
            callback(module)
        except Exception as error:  # the user's program must run; memsim finds no recording and says so
            sys.stderr.write(f"memsim: cannot watch process {os.getpid()}: {type(error).__name__}: {error}\n")

    loader.exec_module = exec_module


def watch_this_process(settings: str) -> None:
    """Begin to watch as soon as torch is imported; `settings` is the JSON object of `MEMSIM_WATCH`."""
    data = json.loads(settings)

    def torch_is_there(torch: ModuleType) -> None:
        from .program import Program

        Program(torch, folder=Path(data["folder"]), max_steps=data["steps"]).install()

    callbacks: dict[str, Callback] = {
        "torch": torch_is_there,
        "safetensors.torch": _with_program(lambda program, module: program.watch.announce(module, "save_file", "save")),
        "transformers.generation.stopping_criteria": _with_program(
            lambda program, module: program.generation.criteria_are_there(module)
        ),
        "transformers.generation.utils": _with_program(
            lambda program, module: program.generation.loop_is_there(module)
        ),
    }
    sys.meta_path.insert(0, _AfterImport(callbacks))


def _with_program(then: Callable[[Any, ModuleType], None]) -> Callback:
    """Return a callback that gets what watches this process, and does nothing where torch was never imported."""

    def callback(module: ModuleType) -> None:
        from .program import current

        program = current()
        if program is not None:
            then(program, module)

    return callback
