"""A checkpoint as its safetensors headers describe it, whether it lies in a folder or on the hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from memsim.errors import CheckpointError, ModelError, shown
from memsim.resolve.config_json import parse_json_object
from memsim.tensors import TensorSpec

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
"""Names that `save_pretrained` writes (huggingface_hub 2.4, constants.py:51-52)."""

Progress = Callable[[str], None]
"""Takes a sentence about what goes on; meant for stderr."""

HeaderReader = Callable[[list[str]], list[Mapping[str, TensorSpec]]]
"""Returns the tensors of each named safetensors file."""

_LOADED_DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The tensors of all safetensors files of a model."""

    tensors: Mapping[str, TensorSpec] = field(default_factory=dict)
    """Name to shape and dtype, file by file, sorted by name within each."""
    num_files: int = 0
    """Number of safetensors files; 0 where the model has none."""
    missing: str = ""
    """Why there are no tensors, as a clause for messages; empty where there are some."""

    @property
    def dtype(self) -> str | None:
        """Dtype of the first tensor that a whole model can be built in, as transformers chooses it.

        Float8 and float4 are passed over (`get_state_dict_dtype`, modeling_utils.py:258 @transformers 5.24).
        """
        return next((t.dtype for t in self.tensors.values() if t.dtype in _LOADED_DTYPES), None)

    @property
    def floating_dtypes(self) -> tuple[str, ...]:
        """All floating dtypes of the tensors, sorted."""
        return tuple(sorted({t.dtype for t in self.tensors.values() if t.is_floating_point}))


def single_checkpoint(tensors: Mapping[str, TensorSpec]) -> Checkpoint:
    """Return the checkpoint of one file."""
    return _checkpoint(tensors, 1)


def sharded_checkpoint(index: bytes, where: str, read_headers: HeaderReader) -> Checkpoint:
    """Return the checkpoint whose shards the `index` (bytes of model.safetensors.index.json) names.

    A tensor that a shard holds and the index does not name is kept: transformers loads every tensor of every shard.

    Raises:
        CheckpointError: the index is not of the published form, names a file outside the folder, or places a tensor
            in a shard that does not hold it; or two shards hold the same name with another shape or dtype.
    """
    shard_of = weight_map(index, where)
    shards = sorted(set(shard_of.values()))
    headers = dict(zip(shards, read_headers(shards), strict=True))
    for name, shard in shard_of.items():
        if name not in headers[shard]:
            raise CheckpointError(
                f"{where} places tensor {shown(name)} in {shard[:80]}, which does not hold it.\n"
                "Index and shards are not of one checkpoint: download or save them again."
            )
    tensors: dict[str, TensorSpec] = {}
    for shard in shards:
        for name, tensor in headers[shard].items():
            if tensors.setdefault(name, tensor) != tensor:
                raise CheckpointError(
                    f"{where}: tensor {shown(name)} is in several shards with different shapes or dtypes.\n"
                    "Download or save the checkpoint again."
                )
    return _checkpoint(tensors, len(shards))


def _checkpoint(tensors: Mapping[str, TensorSpec], num_files: int) -> Checkpoint:
    missing = "" if tensors else f"its safetensors {'file holds' if num_files == 1 else 'files hold'} no tensors"
    return Checkpoint(tensors=tensors, num_files=num_files, missing=missing)


def weight_map(index: bytes, where: str) -> dict[str, str]:
    """Return the shard of each tensor name.

    Raises:
        CheckpointError: the index is not of the published form, or names a file outside the model's own folder.
    """
    try:
        shard_of = parse_json_object(index, where).get("weight_map")
    except ModelError as error:
        raise CheckpointError(str(error)) from None
    if not isinstance(shard_of, dict) or not shard_of:
        raise CheckpointError(f'{where} lacks "weight_map", the object that gives each tensor its file.')
    for name, shard in shard_of.items():
        if not isinstance(shard, str) or not _is_inside(shard):
            raise CheckpointError(
                f"{where} places tensor {shown(name)} in {shown(shard)}.\n"
                "A shard must be a .safetensors file inside the model's own folder."
            )
    return shard_of


def _is_inside(shard: str) -> bool:
    # Neither a drive, a backslash, a URL's query nor a terminal's escape sequence gets through.
    parts = shard.split("/")
    return shard.endswith(".safetensors") and all(
        re.fullmatch(r"[\w.+ -]+", part, re.ASCII) and part.strip(". ") for part in parts
    )
