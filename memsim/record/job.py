"""`RecordJob`: what to record, as plain data that travels to a worker process and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from memsim.config import TrainingConfig
from memsim.errors import UsageError
from memsim.typed import check_fields, read_data

MAX_STEPS = 100
"""Optimizer steps of one recording; the first two tell all, a few more show that nothing grows."""

JobKind = Literal["program", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordJob:
    """One recording: which model, which training, which part of it.

    A `program` job runs without an optimizer, in these sections: `load`, `first`, `accumulate` (a micro-step that
    finds gradients), `zero_grad`, `steady`, `zero_grad`, `steady` once more, which must equal the one before. A `run`
    job runs the whole loop of `training`: per step its micro-steps (`first` in step 1, then `steady`, each followed by
    `accumulate` for the further ones), `optimizer_step` with clipping, and `zero_grad`.
    """

    config: Mapping[str, Any]
    """Content of the model's `config.json`, with fewer layers where depth is reduced."""
    training: TrainingConfig
    """Task, dtypes, batch size, sequence length, and for a `run` the optimizer and the loop."""
    kind: JobKind = "program"
    """Which part of the training is recorded."""
    num_steps: int = 2
    """Optimizer steps of a `run`."""
    with_lines: bool = False
    """Whether every allocation's Python line is recorded too; that takes several times as long."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the batch beside its size, by name (`image_tokens`, `seconds`, ...); see `training/inputs.py`."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not 1 <= self.num_steps <= MAX_STEPS:
            raise UsageError(f"num_steps must be 1 to {MAX_STEPS}, not {self.num_steps}.")

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return asdict(self)


def job_of(data: Any) -> RecordJob:
    """Return the job that `RecordJob.to_dict` gave, from JSON too.

    Raises:
        ValueError: a field is missing or of another type.
    """
    job = read_data(RecordJob, data)
    return replace(job, config=data["config"])  # read_data makes tuples of lists, which configuration classes refuse
