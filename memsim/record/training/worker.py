"""A process that records: jobs come as JSON lines on stdin, answers leave as JSON lines on stdout.

What a model or a library prints goes to stderr. A job that fails is answered with its error, and the next one starts
from a clean allocator again.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from memsim.errors import MemsimError
from memsim.record.job import job_of


def main() -> None:
    """Serve jobs until stdin ends."""
    asked, answers = _channels()
    try:
        for answer in _answers(asked):
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    except KeyboardInterrupt:
        pass


def _channels() -> tuple[TextIO, TextIO]:
    """Return what jobs are read from and answers written to; whoever else prints or reads gets stderr and nothing."""
    asked = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return asked, answers


def _answers(asked: TextIO) -> Iterator[dict[str, Any]]:
    try:
        from memsim.record.architecture import import_transformers
        from memsim.record.training.session import Session

        transformers = import_transformers()
        session = Session()
    except Exception as error:
        yield _failure(error)
        return
    gc.collect()
    gc.freeze()
    yield {"transformers": transformers.__version__}
    for line in asked:
        answer = _served(session, json.loads(line))  # when it is back, nothing of the job lives in a frame
        left = session.left_bytes()
        gc.freeze()  # what is left are libraries, which the next collection need not look through
        yield {**answer, "left_bytes": left}


def _served(session: Any, request: dict[str, Any]) -> dict[str, Any]:
    try:
        if "num_periods" in request:
            return _reduced(request)
        made = session.record(job_of(request["job"]), Path(request["path"]))
    except Exception as error:
        return _failure(error)
    return asdict(made)


def _reduced(request: dict[str, Any]) -> dict[str, Any]:
    from memsim.record.depth import reduced_depth

    job = job_of(request["job"])
    found = reduced_depth(job.config, job.training, num_periods=request["num_periods"])
    return {"reduced": None if found is None else found.to_dict()}


def _failure(error: Exception) -> dict[str, Any]:
    if isinstance(error, MemsimError):
        return {"error": str(error), "kind": type(error).__name__}
    traceback.print_exc(file=sys.stderr)
    return {"error": f"{type(error).__name__}: {error}", "kind": "MemsimError"}


if __name__ == "__main__":
    main()
