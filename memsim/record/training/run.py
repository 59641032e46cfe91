"""The run that a `RecordJob` describes, its objects held as a training script's variables hold them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from memsim.errors import MemsimError, ModelError
from memsim.record.job import RecordJob

RunWeights = Literal["none", "random", "real"]
"""No values at all (an imaginary GPU computes nothing), small random ones, or those of the model's own initialisation.
"""

PROGRAM_SECTIONS = ("first", "accumulate", "steady", "steady")
"""Micro-steps of a `program` job; `zero_grad` stands before those that find no gradients."""


class TrainingRun:
    """A model, its batch, its optimizer and the loop around them.

    Args:
        job: what is to run.
        device: where; the model is built on the CPU and moved there.
        tape: is told of sections by `tape.section(name)`.
        weights: what the parameters hold.
    """

    def __init__(self, job: RecordJob, *, device: str, tape: Any, weights: RunWeights = "none") -> None:
        self.job = job
        self._weights = weights
        self.model: Any = None
        self.model_class = ""
        self.assumptions: tuple[str, ...] = ()
        self._device = device
        self._tape = tape
        self._batch: Any = None
        self._loop: Any = None

    def go(self) -> None:
        """Run to the end.

        Raises:
            MemsimError: the model cannot be built, cannot take such a batch, or fails.
        """
        self._load()
        if self.job.kind == "program":
            self._go_through_program()
        else:
            self._go_through_steps()

    def _load(self) -> None:
        from memsim.record.training.build import build_model, place
        from memsim.record.training.inputs import assumptions
        from memsim.record.training.loops import start_loop

        self._tape.section("load")
        is_real = self._weights == "real"
        self.model = build_model(self.job.config, self.job.training, weights="real" if is_real else "meta")
        self.model_class = type(self.model).__name__
        if self._device != "cpu":
            self._batch = self._new_batch()
        self.assumptions = assumptions(self.model, self.job.training, self.job.changes)
        place(self.model, self._device, weights="random" if self._weights == "random" else "empty")
        self._loop = start_loop(self.model, self.job.training, with_optimizer=self.job.kind == "run")

    def _go_through_program(self) -> None:
        for name in PROGRAM_SECTIONS:
            if name == "steady":
                self._zero_grad()
            self._micro_step(name)

    def _go_through_steps(self) -> None:
        num_micro_steps = self.job.training.gradient_accumulation_steps
        for step in range(self.job.num_steps):
            for micro_step in range(num_micro_steps):
                begins = "steady" if step else "first"
                self._micro_step("accumulate" if micro_step else begins)
            self._tape.section("optimizer_step")
            self._loop.optimizer_step()
            self._zero_grad()

    def _micro_step(self, section: str) -> None:
        self._tape.section(section)
        if self.job.kind == "program":
            draw_alike()
        with _one_line_errors(self.model_class, self.job):
            # Every step moves the same batch to the device; on the CPU each has a batch of its own.
            self._loop.micro_step(self._new_batch() if self._device == "cpu" else self._batch)

    def _new_batch(self) -> Any:
        from memsim.record.training.inputs import example_batch

        with _one_line_errors(self.model_class, self.job):
            return example_batch(self.model, self.job.training, changes=self.job.changes)

    def _zero_grad(self) -> None:
        self._tape.section("zero_grad")
        self._loop.zero_grad()


def draw_alike() -> None:
    """Let the same random numbers be drawn again: some models choose by them what they mask, and so how much."""
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def shown_error(error: BaseException) -> str:
    """Return what an exception says, on one line."""
    text = " ".join("".join(c if c.isprintable() else " " for c in str(error)[:1000]).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


@contextmanager
def _one_line_errors(model_class: str, job: RecordJob) -> Iterator[None]:
    """Turn what a model raises into one line that says with which batch; that memory ran out is no error."""
    import torch

    try:
        yield
    except (MemsimError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        length = f" x {job.training.seq_len}" if job.training.seq_len is not None else ""
        raise ModelError(
            f"{model_class} fails with a batch of {job.training.batch_size}{length}: {shown_error(error)}.\n"
            "Check batch size, sequence length and the sizes in the configuration."
        ) from error
