"""A job that is really computed on the CPU, in this process."""

from __future__ import annotations

import time

from memsim.record.cpu import CpuRecording
from memsim.record.job import RecordJob
from memsim.record.recorder import Recorded
from memsim.record.training.run import TrainingRun

SEED = 0
"""Of the weights and of everything else that is drawn: two runs of a job are the same."""


def record_on_cpu(job: RecordJob) -> Recorded:
    """Return what a job left behind, with the model's own initial weights.

    Raises:
        MissingPackageError: torch or transformers is not installed.
        ModelError: the model cannot be built, cannot take such a batch, or fails.
    """
    import torch
    import transformers

    begun = time.perf_counter()
    state = torch.random.get_rng_state()
    torch.manual_seed(SEED)
    try:
        with CpuRecording(with_lines=job.with_lines) as recording:
            run = TrainingRun(job, device="cpu", tape=recording.watch.tape, weights="real")
            run.go()
            recorded = recording.recording()
    finally:
        torch.random.set_rng_state(state)
    return Recorded(
        job=job,
        trace=recorded.trace,
        oom=None,
        num_steps=recorded.num_steps,
        model_class=run.model_class,
        transformers_version=transformers.__version__,
        assumptions=run.assumptions,
        notes=recorded.notes,
        seconds=time.perf_counter() - begun,
        used_bytes=None,
    )
