"""What a batch is asked for: the model, its task, and what its `forward` takes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from memsim.config import TrainingConfig
from memsim.errors import UnknownNameError, UsageError, shown
from memsim.record.architecture import import_transformers, task_of_class

HALF = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """A model of transformers and the batch that it is to be trained with."""

    model: Any
    """The model."""
    config: Any
    """Its configuration object."""
    task: str
    """A key of `memsim.config.TASKS`; empty where no auto class leads to the model's class."""
    takes: frozenset[str]
    """Names of the arguments of its `forward`."""
    batch_size: int
    """Sequences, images or recordings."""
    seq_len: int | None
    """As the user gave it."""
    float_dtype: str = "float32"
    """Dtype of images and sound."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings beside the size of the batch; keys of `CHANGES`."""

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the model reads one sequence and writes another."""
        return bool(getattr(self.config, "is_encoder_decoder", False))


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeBatch:
    """A batch on the CPU and what was taken for granted in it."""

    tensors: dict[str, Any]
    """Arguments of the model's `forward`, in the order in which a collator makes them."""
    assumptions: tuple[str, ...] = ()
    """Sentences for the user."""


CHANGES: dict[str, type] = {
    "image_size": int,
    "num_images": int,
    "label_tokens": int,
    "num_choices": int,
}
"""What can be changed of a batch: pixels along a side of an image; images of a multimodal example, 0 or 1; tokens of a
transcription; answers of a multiple-choice question."""


def request(model: Any, training: TrainingConfig, changes: Mapping[str, Any] | None = None) -> BatchRequest:
    """Return what a batch for this model has to be like.

    Raises:
        MissingPackageError: torch or transformers is not installed.
        UnknownNameError: `changes` has a key that is not in `CHANGES`.
        UsageError: a value of `changes` is no whole number.
    """
    given = dict(changes or {})
    for key, value in given.items():
        if key not in CHANGES:
            raise UnknownNameError("change of a batch", key, CHANGES, f"Allowed: {', '.join(CHANGES)}.")
        if type(value) is not int or value < 0:
            raise UsageError(f"{key} must be a whole number of at least 0, not {shown(value)}.")
    return BatchRequest(
        model=model,
        config=model.config,
        task=training.task or task_of_class(type(model), model.config, import_transformers()),
        takes=forward_arguments(model),
        batch_size=training.batch_size,
        seq_len=training.seq_len,
        float_dtype=training.dtype if training.dtype in HALF and training.autocast == "none" else "float32",
        changes=given,
    )


def forward_arguments(model: Any) -> frozenset[str]:
    """Return the names of the arguments of a module's `forward`, without `*args` and `**kwargs`."""
    open_ended = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(model.forward).parameters.values()
    return frozenset(p.name for p in parameters if p.kind not in open_ended)


def configs_in(config: Any) -> Iterator[Any]:
    """Yield a configuration and every configuration in it."""
    yield config
    for value in list(vars(config).values()):
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            yield from configs_in(value)
