"""A model in a folder: config.json and safetensors headers. Weights are never read, pickles never opened."""

from __future__ import annotations

import os
from pathlib import Path

from memsim.errors import CheckpointError, ModelError
from memsim.resolve.checkpoint import (
    INDEX_FILE,
    SINGLE_FILE,
    Checkpoint,
    sharded_checkpoint,
    single_checkpoint,
)
from memsim.resolve.config_json import CONFIG_FILE, MAX_CONFIG_BYTES, parse_config
from memsim.resolve.found import FoundModel
from memsim.resolve.paths import is_file, is_folder, readable, shown
from memsim.resolve.safetensors_header import LENGTH_BYTES, header_length, parse_header
from memsim.tensors import TensorSpec

_MAX_LINKS = 40
"""As Linux follows (man 7 path_resolution)."""
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def read_folder(folder: Path) -> FoundModel:
    """Return config and checkpoint of a `folder`, which may also be the path of its config.json.

    Raises:
        ModelError: no readable config.json, or one that is no model's.
        CheckpointError: a safetensors file or index that cannot be trusted.
    """
    given = str(folder)
    if folder.name == CONFIG_FILE and not is_folder(folder):
        folder = folder.parent
    config_path = folder / CONFIG_FILE
    if not is_file(config_path):
        raise ModelError(_no_config(folder, given))
    where = shown(config_path)
    config = parse_config(read_small(config_path), where)
    with readable(folder):
        place = folder.resolve()
    return FoundModel(
        name=given,
        source=f"folder:{place}",
        where=where,
        config=config,
        checkpoint=read_checkpoint(folder),
    )


def read_checkpoint(folder: Path) -> Checkpoint:
    """Return what the safetensors headers in `folder` say; model.safetensors goes before an index, as in transformers.

    Raises:
        CheckpointError: a header or index that cannot be trusted, a missing shard, a link that leads out of the folder.
    """
    if is_file(folder / SINGLE_FILE):
        return single_checkpoint(read_file_header(folder, SINGLE_FILE))
    index = folder / INDEX_FILE
    if is_file(index):
        _check_link(folder, index)
        return sharded_checkpoint(
            read_small(index), shown(index), lambda shards: [read_file_header(folder, shard) for shard in shards]
        )
    if any(is_file(folder / name) for name in _PICKLES):
        return Checkpoint(missing="its weights are pickled (pytorch_model.bin), which memsim never opens")
    return Checkpoint(missing=f"it has no {SINGLE_FILE} and no {INDEX_FILE}")


def read_file_header(folder: Path, name: str) -> dict[str, TensorSpec]:
    """Return the tensors of the safetensors file `name` in `folder`, from its header alone.

    Raises:
        CheckpointError: the file is missing, leads out of the folder, or has a header that cannot be trusted.
    """
    path = folder / name
    where = shown(path)
    if not is_file(path):
        raise CheckpointError(
            f"{where} is missing, and the index of the checkpoint names it.\nDownload or save the checkpoint again."
        )
    _check_link(folder, path)
    with readable(path, CheckpointError), path.open("rb") as file:
        file_bytes = os.fstat(file.fileno()).st_size
        length = header_length(file.read(LENGTH_BYTES), file_bytes, where)
        return parse_header(file.read(length), file_bytes, where)


def read_small(path: Path) -> bytes:
    """Return a config or index, which are never large.

    Raises:
        ModelError: the file cannot be read or is larger than `MAX_CONFIG_BYTES`.
    """
    with readable(path), path.open("rb") as file:
        data = file.read(MAX_CONFIG_BYTES + 1)
    if len(data) > MAX_CONFIG_BYTES:
        raise ModelError(f"{shown(path)} is larger than {MAX_CONFIG_BYTES} bytes, which no config or index is.")
    return data


def _check_link(folder: Path, path: Path) -> None:
    """Refuse a file outside the folder, except as the hub's cache links snapshots/COMMIT/NAME to blobs/HASH.

    What a blob of the cache is in turn is the cache's own business (huggingface_hub 2.4 links it to a shared store).
    """
    with readable(path, CheckpointError):
        outside = _place_outside(folder.resolve(), path)
    if outside is not None:
        raise CheckpointError(
            f"{shown(path)} leads out of its folder, to {shown(outside)}.\n"
            "Put the file itself there, or give the folder it is in."
        )


def _place_outside(root: Path, path: Path) -> Path | None:
    blobs = next((p.parent / "blobs" for p in (root, *root.parents) if p.name == "snapshots"), None)
    place = path
    for _ in range(_MAX_LINKS):
        place = place.parent.resolve() / place.name
        if place.parent == blobs:
            return None
        if not place.is_relative_to(root):
            break
        if not place.is_symlink():
            return None
        place = Path(os.path.normpath(place.parent / place.readlink()))
    return place


def _no_config(folder: Path, given: str) -> str:
    given = shown(given)
    if not is_folder(folder):
        return (
            f"{given!r} is not a folder. Give a folder that holds {CONFIG_FILE}, a catalog name or a hub id org/name."
        )
    if is_file(folder / "adapter_config.json"):
        return (
            f"folder {given!r} holds an adapter (adapter_config.json) but no {CONFIG_FILE}.\n"
            "An adapter alone is no model: give its base model (base_model_name_or_path in that file)."
        )
    return (
        f"folder {given!r} has no {CONFIG_FILE}.\n"
        "Give the folder that save_pretrained wrote, a catalog name (memsim catalog) or a hub id org/name."
    )
