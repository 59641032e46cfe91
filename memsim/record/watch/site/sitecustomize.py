"""First on the `PYTHONPATH` of a watched command: lets an existing sitecustomize run, then waits for torch."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_PACKAGE = "_memsim_watch"


def _run_the_existing_one() -> None:
    elsewhere = [entry for entry in sys.path if Path(entry or ".").resolve() != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _watch() -> None:
    if "MEMSIM_WATCH" not in os.environ:
        return
    package = _HERE.parent
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, package / "__init__.py", submodule_search_locations=[str(package)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {package}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = module
    spec.loader.exec_module(module)
    from _memsim_watch.arrival import watch_this_process  # type: ignore[import-not-found]

    watch_this_process(os.environ["MEMSIM_WATCH"])


_run_the_existing_one()
try:
    _watch()
except Exception as error:  # the user's program must run whatever happens here; memsim finds no recording and says so
    sys.stderr.write(f"memsim: cannot watch process {os.getpid()}: {type(error).__name__}: {error}\n")
