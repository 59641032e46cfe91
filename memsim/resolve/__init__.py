"""From what the user names (catalog, folder, hub, Python object) to a `ModelSpec`. The only package with network."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memsim.config import TASKS, WEIGHT_DTYPES
from memsim.errors import UnknownNameError, UsageError
from memsim.model import ModelSpec

__all__ = ["resolve"]


def resolve(
    model: Any,
    *,
    task: str | None = None,
    dtype: str = "auto",
    num_labels: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> ModelSpec:
    """Return the parameters and buffers of `model`; weights are never read and remote code is never run.

    A string is a folder if it has the form of a path or is a folder that holds config.json; else a name of the catalog;
    else, as `org/name`, a model on the hub. With `@revision` the hub is always asked.

    Args:
        model: catalog name or alias, hub id `org/name[@revision]`, folder (`str` or `Path`), `torch.nn.Module`,
            `transformers.PretrainedConfig`, or a `ModelSpec`, which is returned as it is.
        task: key of `memsim.config.TASKS`; `None` is the class that the model's own config names.
        dtype: one of `memsim.config.WEIGHT_DTYPES`; `auto` is the checkpoint's own.
        num_labels: labels of a classification head; `None` is the config's own.
        progress: called with a sentence before each wait for the network.

    Raises:
        UnknownNameError: a string that is none of these, a task or a dtype; the message names near ones.
        ModelError: and its children `CheckpointError` and `HubError`, for a model that cannot be resolved.
        MissingPackageError: a config without safetensors weights, or another task, needs torch.
        UsageError: an object of another type.
    """
    from memsim.resolve import python_object

    if task is not None and task not in TASKS:
        raise UnknownNameError("task", task, TASKS, f"Tasks: {', '.join(TASKS)}.")
    if dtype not in WEIGHT_DTYPES:
        raise UnknownNameError("dtype", dtype, WEIGHT_DTYPES, f"Allowed: {', '.join(WEIGHT_DTYPES)}.")
    if isinstance(model, ModelSpec):
        return model
    if isinstance(model, (str, Path)):
        return _from_text(model, task=task, dtype=dtype, num_labels=num_labels, progress=progress)
    if python_object.is_module(model):
        return python_object.spec_from_module(model, task=task, dtype=dtype, num_labels=num_labels)
    if python_object.is_config(model):
        return python_object.spec_from_config(model, task=task, dtype=dtype, num_labels=num_labels)
    raise UsageError(
        f"a model cannot be a {type(model).__name__}.\n"
        "Give a catalog name, hub id or folder, a torch.nn.Module, a transformers.PretrainedConfig or a ModelSpec."
    )


def _from_text(
    model: str | Path,
    *,
    task: str | None,
    dtype: str,
    num_labels: int | None,
    progress: Callable[[str], None] | None,
) -> ModelSpec:
    from memsim import catalog

    text = str(model)
    if isinstance(model, Path) or _is_path(text) or _has_config(text):
        return _from_folder(text, task=task, dtype=dtype, num_labels=num_labels)
    try:
        # The catalog knows no revisions: a name with one is never found there.
        entry = catalog.find(text)
    except UnknownNameError:
        from memsim.resolve import hub
        from memsim.resolve.spec import spec_from_found

        if hub.is_hub_id(text):
            return spec_from_found(hub.read_hub(text, progress), task=task, dtype=dtype, num_labels=num_labels)
        if os.path.isdir(text):
            return _from_folder(text, task=task, dtype=dtype, num_labels=num_labels)
        raise
    return entry.model_spec(task=task, dtype=dtype, num_labels=num_labels)


def _from_folder(folder: str, *, task: str | None, dtype: str, num_labels: int | None) -> ModelSpec:
    from memsim.resolve.folder import read_folder
    from memsim.resolve.paths import expanded
    from memsim.resolve.spec import spec_from_found

    return spec_from_found(read_folder(expanded(folder)), task=task, dtype=dtype, num_labels=num_labels)


def _has_config(text: str) -> bool:
    return bool(text) and os.path.isfile(os.path.join(text, "config.json"))


def _is_path(text: str) -> bool:
    separators = (os.sep, os.altsep or os.sep)
    return (
        text in (".", "..")
        or text.startswith(("./", "../", "~", *separators))
        or text.endswith((*separators, "config.json"))
        or os.path.isabs(text)
    )
