"""Checks on a `config.json` that was written by somebody else, before transformers builds a model from it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from memsim.errors import ModelError

MAX_LAYERS = 1_000
"""More layers than any published model has (the largest are near 130); each costs milliseconds to build."""
MAX_SIZE = 10**8
"""Elements along one dimension: ten times the longest published position table (Llama-4-Scout: 10,485,760)."""
MAX_LABELS = 10**6
"""Labels of a classification head; transformers names each in a Python dictionary."""
MAX_MODULES = 1_000_000
"""Layers times experts: transformers before 5.0 builds one module for each expert."""
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
_LAYER_KEY = re.compile(r"(^|_)(layers|n_layer|depths?|blocks|stages)$")
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
    layers = experts = 1
    for key, value in _numbers(clean):
        _check_number(key, value)
        if isinstance(value, int):
            layers = max(layers, value if _LAYER_KEY.search(key) else 1)
            experts = max(experts, value if _EXPERT_KEY.search(key) else 1)
    if layers * experts > MAX_MODULES:
        raise ModelError(
            f"the configuration has {layers:,} layers with {experts:,} experts each; at most {MAX_MODULES:,} experts "
            "in all are built. Check the file's num_hidden_layers and number of experts."
        )
    return clean


def _cleaned(config: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    if depth > MAX_DEPTH:
        raise ModelError(f"the configuration nests objects more than {MAX_DEPTH} deep; no model's does.")
    return {
        str(key): _cleaned(value, depth + 1) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if key not in _DROPPED
    }


def _numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        elif isinstance(value, (list, tuple)):
            yield from ((key, item) for item in value)
        else:
            yield key, value


def _check_number(key: str, value: Any) -> None:
    positive = key in _POSITIVE_KEYS
    if isinstance(value, bool) or not isinstance(value, int):
        if positive and value is not None:
            raise ModelError(f"the configuration's {key} must be a whole number, not {_shown(value)}.")
        return
    least, most = _bounds(key)
    if least is not None and value < least:
        raise ModelError(f"the configuration's {key} is {_shown(value)}; it must be at least {least}.")
    if most is not None and value > most:
        raise ModelError(f"the configuration's {key} is {_shown(value)}; at most {most:,} can be built.")


def _bounds(key: str) -> tuple[int | None, int | None]:
    least = 1 if key in _POSITIVE_KEYS else 0
    if _LAYER_KEY.search(key):
        return least, MAX_LAYERS
    if _LABEL_KEY.search(key):
        return least, MAX_LABELS
    if _SIZE_KEY.search(key) or _EXPERT_KEY.search(key) or key in _POSITIVE_KEYS:
        return least, MAX_SIZE
    # Not a size as far as its name tells: token ids and windows may be -1, frequencies may be ten thousand million.
    return None, 10**12


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) >= 10**30:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
