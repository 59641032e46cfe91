"""Finds the forward and backward of a training step: in the cache of step programs, or recorded now."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, get_args

import platformdirs

from memsim.config import OptimizerConfig, TrainingConfig
from memsim.errors import MemsimError, MissingPackageError, ModelError, UsageError, shown
from memsim.gpus import GPU
from memsim.imaginary_gpu import find
from memsim.ledger import Category
from memsim.model import ModelSpec
from memsim.record.job import RecordJob
from memsim.record.program import Range, record_program
from memsim.record.recorder import Recorder
from memsim.record.training.lengths import stated_positions
from memsim.results import Recorded, Unmodeled
from memsim.step.fit import Point
from memsim.step.program import LENGTH_PERIOD, StepProgram, joined
from memsim.step.section import Section, SectionName
from memsim.step.store import ProgramStore
from memsim.whole_step import chosen_gpu

StepSource = Literal["auto", "stored", "record", "off"]
"""`auto`: a stored program, or a recording where torch's CUDA build and transformers are there; `stored`: only a stored
program; `record`: recorded anew, and an error where that cannot be; `off`: no step, only what is static."""

ENVIRONMENT_VARIABLE = "MEMSIM_STEP"
"""Where the default of `StepSource` is read; `auto` where it is not set."""

_WHAT = "activations, workspaces, temporaries of forward and backward"
_WHERE = "static total"

Progress = Callable[[str], None]
"""Is told what begins, in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundStep:
    """Forward and backward at one batch size and length."""

    sections: Mapping[SectionName, Section]
    """The four sections."""
    recorded: Recorded
    """What they were recorded with."""
    assumptions: tuple[str, ...]
    """What was assumed about batch and model, in sentences."""


def default_source() -> StepSource:
    """Return the source that the environment asks for.

    Raises:
        UsageError: the variable has another value than the four words.
    """
    return checked_source(os.environ.get(ENVIRONMENT_VARIABLE, "") or "auto", ENVIRONMENT_VARIABLE)


def checked_source(word: Any, asked_by: str = "step") -> StepSource:
    """Return a word as the source that it is.

    Raises:
        UsageError: it is none; `asked_by` says where it came from.
    """
    for known in get_args(StepSource):
        if word == known:
            return known  # type: ignore[no-any-return]
    raise UsageError(f"{asked_by} must be one of {', '.join(get_args(StepSource))}, not {shown(word)}.")


def programs_folder() -> Path:
    """Return where step programs are kept: in the user's cache folder."""
    return platformdirs.user_cache_path("memsim") / "programs"


class StepFinder:
    """Finds the steps of several trainings; one worker records them all, and starts when it is needed.

    Args:
        source: where programs come from.
        progress: is told what begins.
    """

    def __init__(self, source: StepSource, progress: Progress | None = None) -> None:
        self._source = source
        self._progress = progress or (lambda _text: None)
        self._store = ProgramStore(programs_folder())
        self._programs: dict[str, StepProgram] = {}
        self._recorders: dict[str, Recorder] = {}
        self._open = ExitStack()

    def __enter__(self) -> StepFinder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def find(self, spec: ModelSpec, config: TrainingConfig) -> FoundStep | Unmodeled:
        """Return the step of a model, or why there is none.

        Args:
            spec: the model.
            config: the training, resolved.

        Raises:
            UsageError: the model cannot take such a batch, or has no such attention.
            ModelError: the step was to be recorded, and the model cannot be.
            MemsimError: the step was to be recorded, and that failed.
        """
        if self._source == "off":
            return Unmodeled(what=_WHAT, where=_WHERE, reason="only what stays between steps was asked for.")
        if "model_type" not in spec.config or spec.source.startswith("module"):
            reason = "a module's own code is not recorded here: measure its step with memsim.verify(model, ...)."
            return Unmodeled(what=_WHAT, where=_WHERE, reason=reason)
        try:
            return self._found(spec, config)
        except UsageError:
            raise
        except MemsimError as error:
            # What was asked for by name is no detail that may be missing.
            asked = config.attn_implementation is not None or config.activation_checkpointing
            if self._source == "record" or (asked and isinstance(error, ModelError)):
                raise
            return Unmodeled(what=_WHAT, where=_WHERE, reason=_as_reason(error))

    def _found(self, spec: ModelSpec, config: TrainingConfig) -> FoundStep:
        point = Point(config.batch_size, config.seq_len or 0)
        program = self._program(spec, config, point)
        sections = {section.name: section for section in program.evaluate(*point)}
        _check_parameters(spec, sections["load"])
        return FoundStep(
            sections=sections,
            recorded=Recorded(
                torch=program.versions["torch"],
                transformers=program.versions["transformers"],
                compute_capability=program.processors.compute_capability,
            ),
            assumptions=program.notes,
        )

    def _program(self, spec: ModelSpec, config: TrainingConfig, point: Point) -> StepProgram:
        """Return a program that covers a point: one of this call, a stored one, or a new one."""
        job = RecordJob(config=dict(spec.config), training=program_training(config))
        gpu = chosen_gpu(config)
        key = program_key(job, gpu, point)
        name = json.dumps(key, sort_keys=True)
        kept = self._programs.get(name) or (self._store.load(key) if self._source != "record" else None)
        if kept is None or kept.covers(*point):
            new = self._recorded(job, gpu, spec, point)
            kept = new if kept is None else joined(kept, new)
            self._store.save(key, kept)
        self._programs[name] = kept
        self._tell_notes()
        return kept

    def _tell_notes(self) -> None:
        for note in self._store.notes:
            self._progress(note)
        self._store.notes.clear()

    def _recorded(self, job: RecordJob, gpu: GPU, spec: ModelSpec, point: Point) -> StepProgram:
        if self._source == "stored":
            raise MemsimError(
                f"no stored step program covers {spec.name}, trained like this, with a batch of {point.batch_size} x "
                f"{point.seq_len}: one answers for single sequences or for several, and for lengths that leave the "
                f"same remainder by {LENGTH_PERIOD} as those it was recorded with"
            )
        recorder = self._recorders.get(gpu.name)
        if recorder is None:
            recorder = self._open.enter_context(Recorder(gpu, progress=self._progress))
            self._recorders[gpu.name] = recorder
        return record_program(job, Range(asked=point, length_limit=stated_positions(spec.config)), recorder)


def program_key(job: RecordJob, gpu: GPU, point: Point) -> dict[str, Any]:
    """Return everything that decides what a program holds, as a JSON object.

    A program answers for single sequences or for several, and for the lengths of one class.
    """
    return {
        "job": job.to_dict(),
        "compute_capability": gpu.capability_text,
        "num_multiprocessors": gpu.num_multiprocessors,
        "single": point.batch_size == 1,
        "length_class": point.seq_len % LENGTH_PERIOD,
        "has_length": point.seq_len > 0,
        "torch": find().torch_version,
        "transformers": _version("transformers"),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise MissingPackageError(
            f'recording a step needs {package}, which is not installed: pip install "memsim[torch]"'
        ) from None


def program_training(config: TrainingConfig) -> TrainingConfig:
    """Return the training with everything at its default that forward and backward do not depend on.

    Of accumulation only counts whether there is any: the loss is divided then.
    """
    usual = TrainingConfig()
    return replace(
        config,
        batch_size=usual.batch_size,
        seq_len=None,
        optimizer=OptimizerConfig(),
        gradient_accumulation_steps=min(config.gradient_accumulation_steps, 2),
        max_grad_norm=None,
        zero_grad_set_to_none=True,
        gpu=None,
        alloc_conf="",
        empty_cache_steps=None,
    )


def _check_parameters(spec: ModelSpec, load: Section) -> None:
    """Raise where the recorded model is not the one whose parameters are counted."""
    recorded = sum(
        event.nbytes
        for event in load.events
        if event.holder is not None and event.holder.category is Category.PARAMETER
    )
    if recorded != spec.table.parameter_bytes:
        raise MemsimError(
            f"the installed transformers builds {spec.name} with {recorded:,} bytes of parameters, not the "
            f"{spec.table.parameter_bytes:,} that are counted here"
        )


def _as_reason(error: MemsimError) -> str:
    """Return an error's message as a reason in one line."""
    text = " ".join(str(error).split()).rstrip(".")
    return f"{text}."
