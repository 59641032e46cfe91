"""Building a model with a number of labels, and an error where its class has no use for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsim.config import LABEL_TASKS
from memsim.errors import ModelError, NoLabelsError
from memsim.record.architecture import tasks_of
from memsim.record.meta import BuiltModel, build_from_config


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
        raise NoLabelsError(built.model_class, num_labels, having)
    return built
