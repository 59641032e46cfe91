"""A job that runs on the first CUDA device of this process."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path

from memsim.record.job import RecordJob
from memsim.record.recorder import Recorded, recorded_of
from memsim.record.training.session import Session


def record_on_cuda(job: RecordJob) -> Recorded:
    """Return what a job left behind, on a device that nothing else in this process uses.

    Raises:
        MissingPackageError: torch or transformers is not installed.
        ModelError: the model cannot be built, cannot take such a batch, or fails.
        MemsimError: torch sees no CUDA device, or this process holds memory of it already.
    """
    from memsim.record.architecture import import_transformers

    transformers = import_transformers()
    session = Session()
    try:
        with tempfile.TemporaryDirectory(prefix="memsim-record-") as folder:
            path = Path(folder) / "recording.json"
            made = session.record(job, path)
            return recorded_of(job, path, asdict(made), transformers.__version__)
    finally:
        session.close()
