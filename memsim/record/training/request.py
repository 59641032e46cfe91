"""What a batch is asked for: the model, its task, and what its `forward` takes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from memsim.config import TrainingConfig
from memsim.record.architecture import import_transformers, task_of_class


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

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the model reads one sequence and writes another."""
        return bool(getattr(self.config, "is_encoder_decoder", False))


def request(model: Any, training: TrainingConfig) -> BatchRequest:
    """Return what a batch for this model has to be like.

    Raises:
        MissingPackageError: torch or transformers is not installed.
    """
    return BatchRequest(
        model=model,
        config=model.config,
        task=training.task or task_of_class(type(model), model.config, import_transformers()),
        takes=forward_arguments(model),
        batch_size=training.batch_size,
        seq_len=training.seq_len,
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
