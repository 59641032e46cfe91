"""The number of labels: which classes have a head of that size, and an error where the class has none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from memsim.errors import ModelError, UsageError
from memsim.record.meta import BuiltModel, build_from_config, tasks_of

LABEL_TASKS = (
    "sequence-classification",
    "token-classification",
    "question-answering",
    "image-classification",
    "semantic-segmentation",
    "audio-classification",
    "audio-frame-classification",
    "audio-xvector",
)
"""Tasks whose classes read `num_labels` (transformers 5.24); that of multiple-choice gives each choice one number."""


def build_with_labels(config: Mapping[str, Any], *, task: str | None, dtype: str, num_labels: int | None) -> BuiltModel:
    """Return `build_from_config`, after making sure that a number of labels that was asked for changes something.

    Raises:
        UsageError: the class has no head of that size; the message names the tasks that have one.
        MissingPackageError: and what else `build_from_config` raises.
    """
    built = build_from_config(config, task=task, dtype=dtype, num_labels=num_labels)
    if num_labels is None:
        return built
    try:
        other = build_from_config(config, task=task, dtype=dtype, num_labels=num_labels + 1)
    except ModelError:  # the class takes no other number, so it reads it
        return built
    if other.table == built.table:
        having = [t for t in tasks_of(str(config.get("model_type"))) if t in LABEL_TASKS]
        raise no_labels_error(built.model_class, num_labels, having)
    return built


def no_labels_error(model_class: str, num_labels: int, tasks: Iterable[str]) -> UsageError:
    """Return the error for a number of labels that `model_class` has no use for; `tasks` are those that have one."""
    listed = ", ".join(tasks)
    return UsageError(
        f"{model_class} has no head with a number of labels, so num_labels {num_labels} would change nothing.\n"
        + (f"Leave it out, or choose a task that takes it: {listed}." if listed else "Leave it out.")
    )
