"""Which tensors a family keeps in float32, from its config.json alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

KEPT_WITH: Mapping[str, tuple[str, ...]] = {
    "float16": ("float16", "half", "always"),
    "bfloat16": ("half", "always"),
    "float32": (),
    "float64": ("always",),
}
"""Dtype of the weights -> keys of `memsim.catalog.kept_in_float32` that hold with it."""


def float32_patterns(config: Mapping[str, Any]) -> Mapping[str, Sequence[str]] | None:
    """Return the patterns of a model's family and of those of its parts; `None` where transformers has no such family.

    A model collects what its parts keep (modeling_utils.py:1319 @transformers 5.24): a multimodal model keeps what its
    text tower does.
    """
    from memsim.catalog import kept_in_float32

    kept = kept_in_float32()
    if config.get("model_type") not in kept:
        return None
    found: dict[str, list[str]] = {}
    for model_type in _model_types(config):
        for key, patterns in kept.get(model_type, {}).items():
            found.setdefault(key, []).extend(patterns)
    return found


def _model_types(config: Mapping[str, Any]) -> Iterator[str]:
    model_type = config.get("model_type")
    if isinstance(model_type, str):
        yield model_type
    for value in config.values():
        if isinstance(value, Mapping):
            yield from _model_types(value)
