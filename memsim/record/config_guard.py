"""Checks on a `config.json` that was written by somebody else, before transformers builds a model from it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memsim.errors import ModelError, shown

MAX_LAYERS = 1_000
"""Layers of all towers and stages together: more than any published model has (the largest are near 130). Each costs
milliseconds to build."""
MAX_SIZE = 10**8
"""Elements along one dimension: ten times the longest published position table (Llama-4-Scout: 10,485,760)."""
MAX_LABELS = 10**5
"""Labels of a classification head; transformers names each in Python dictionaries, which takes a second for so many."""
MAX_LIST = 10_000
"""Entries of one list; the longest of published models say something of each layer."""
MAX_MODULES = 1_000_000
"""Layers times experts: transformers before 5.0 builds one module for each expert."""
MAX_LEVIT_SIDE = 32
"""Points along a side of LeViT's first stage (14 in the published models): it lists every pair of points in Python."""
MAX_DEPTH = 8
"""Nesting of sub-configurations."""

_DROPPED = frozenset(
    # Remote code, kernels fetched from the hub, quantized layers, pretrained backbones: none changes the plain table,
    # each can make transformers download or run something.
    [
        "auto_map",
        "custom_pipelines",
        "quantization_config",
        "fusion_config",
        "kernel_config",
        "compile_config",
        "attn_implementation",
        "_attn_implementation",
        "_attn_implementation_internal",
        "_attn_implementation_autoset",
        "experts_implementation",
        "_experts_implementation",
        "_experts_implementation_internal",
        "use_pretrained_backbone",
        "dtype",
        "torch_dtype",
        "_name_or_path",
        "name_or_path",
        "transformers_version",
    ]
)
_LABEL_KEY = re.compile(r"(^|_)labels$")
_LAYER_KEY = re.compile(r"(^|_)(layers|n_layer|depths?|blocks|block_sizes|block_repeats|stages)$")
_LISTED_LAYERS = re.compile(r"(^|_)(num_layers|depths?|blocks|block_sizes|block_repeats|attention_types)$")
"""Lists of numbers of layers (GPT-Neo writes `[[["global", "local"], 12]]`). A list named otherwise, such as
`cross_attention_layers`, says which layers."""
_REPEAT_KEY = re.compile(r"(^|_)(hidden_groups|inner_group_num|attends_per_block)$")
"""Numbers that multiply the layers (ALBERT, Perceiver)."""
_EXPERT_KEY = re.compile(r"(^|_)experts$")
_SIZE_KEY = re.compile(
    r"(^|_)(hidden_size|hidden_sizes|hidden_dim|embed_dim|vocab_size|intermediate_size|d_model|d_ff|d_kv|n_embd"
    r"|head_dim|ffn_dim|attention_heads|num_heads|n_head|key_value_heads|max_position_embeddings|n_positions"
    r"|patch_size|image_size|num_channels)$"
)
_POSITIVE_KEYS = frozenset(
    [
        "hidden_size",
        "hidden_dim",
        "vocab_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "d_model",
        "d_ff",
        "n_embd",
        "n_layer",
        "n_head",
        "n_layers",
        "n_heads",
        "num_layers",
        "embed_dim",
        "num_heads",
    ]
)


def checked_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` without what could fetch or run something, after checking every size in it.

    Raises:
        ModelError: a size is negative, zero, not a whole number, or larger than any model's.
    """
    clean = _cleaned(config)
    layers, experts, repeats = 0, 1, 1
    for key, value, listed in _numbers(clean):
        _check_number(key, value)
        if isinstance(value, int):
            layers += value if (_LISTED_LAYERS if listed else _LAYER_KEY).search(key) else 0
            experts = max(experts, value if _EXPERT_KEY.search(key) else 1)
            repeats *= max(value, 1) if _REPEAT_KEY.search(key) else 1
    if max(layers, 1) * repeats > MAX_LAYERS:
        raise ModelError(
            f"the configuration has {shown(max(layers, 1) * repeats)} layers in all; at most {MAX_LAYERS:,} can be "
            "built. Check the file's numbers of layers, blocks and groups."
        )
    if layers * experts > MAX_MODULES:
        raise ModelError(
            f"the configuration has {layers:,} layers with {experts:,} experts each; at most {MAX_MODULES:,} experts "
            "in all are built. Check the file's num_hidden_layers and number of experts."
        )
    _check_levit(clean)
    return clean


def _check_levit(config: Mapping[str, Any]) -> None:
    image, stride = config.get("image_size", 224), config.get("stride", 2)
    if config.get("model_type") == "levit" and isinstance(image, int) and isinstance(stride, int):
        side = image // max(stride, 1) ** 4  # four convolutions (modeling_levit.py:78 @transformers 5.24)
        if side > MAX_LEVIT_SIDE:
            raise ModelError(
                f"the configuration's image_size {image} and stride {stride} make {side:,} points a side; at most "
                f"{MAX_LEVIT_SIDE} can be built."
            )


def _cleaned(config: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    if depth > MAX_DEPTH:
        raise ModelError(f"the configuration nests objects more than {MAX_DEPTH} deep; no model's does.")
    return {
        str(key): _cleaned(value, depth + 1) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if key not in _DROPPED
    }


def _numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """Yield key and value of everything that is no object or list, and whether a list holds it."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        elif isinstance(value, (list, tuple)):
            yield from _listed_numbers(key, value)
        else:
            yield key, value, False


def _listed_numbers(key: str, values: Sequence[Any], depth: int = 0) -> Iterator[tuple[str, Any, bool]]:
    if len(values) > MAX_LIST or depth > MAX_DEPTH:
        raise ModelError(
            f"the configuration's {_name(key)} is a list of {len(values):,} entries; a model's has at most "
            f"{MAX_LIST:,}, nested at most {MAX_DEPTH} deep."
        )
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _listed_numbers(key, value, depth + 1)
        elif isinstance(value, Mapping):
            yield from _numbers(value)
        else:
            yield key, value, True


def _check_number(key: str, value: Any) -> None:
    positive = key in _POSITIVE_KEYS
    if isinstance(value, bool) or not isinstance(value, int):
        if positive and value is not None:
            raise ModelError(f"the configuration's {_name(key)} must be a whole number, not {shown(value)}.")
        return
    least, most = _bounds(key)
    if least is not None and value < least:
        raise ModelError(f"the configuration's {_name(key)} is {shown(value)}; it must be at least {least}.")
    if most is not None and value > most:
        raise ModelError(f"the configuration's {_name(key)} is {shown(value)}; at most {most:,} can be built.")


def _bounds(key: str) -> tuple[int | None, int | None]:
    least = 1 if key in _POSITIVE_KEYS else 0
    if any(pattern.search(key) for pattern in (_LAYER_KEY, _LISTED_LAYERS, _REPEAT_KEY)):
        return least, MAX_LAYERS
    if _LABEL_KEY.search(key):
        return least, MAX_LABELS
    if _SIZE_KEY.search(key) or _EXPERT_KEY.search(key) or key in _POSITIVE_KEYS:
        return least, MAX_SIZE
    # Not a size as far as its name tells: token ids and windows may be -1, frequencies may be ten thousand million.
    return None, 10**12


def _name(key: str) -> str:
    return key if key.isidentifier() and len(key) <= 80 else shown(key)
