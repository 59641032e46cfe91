"""How long a sequence is when nobody says so, and how long a model allows it to be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from memsim.errors import UsageError

DEFAULT_TOKENS = 512
"""Tokens of a sequence where the user gives none: what most encoders have positions for."""
POSITION_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_len",
    "n_ctx",
)
"""Keys of a `config.json` that give the number of positions."""
_POSITION_NAME = re.compile(r"(^|[._])(pos|wpe|position\w*|embed_positions|positions_embed|pos_encoding)([._]|$)")
_ANOTHER_POSITION = re.compile(r"rel|vision|visual|image|patch|audio|conv|2d|box|[._][xyhw]_position")


def default_seq_len(config: Mapping[str, Any], task: str | None) -> int:  # noqa: ARG001
    """Return the tokens of a sequence where the user gives none: 512, or fewer where the model has fewer positions."""
    return min(DEFAULT_TOKENS, stated_positions(config) or DEFAULT_TOKENS)


def stated_positions(config: Mapping[str, Any]) -> int | None:
    """Return the positions that a model's text part has, as its configuration tells; `None` where it does not."""
    text = config.get("text_config")
    facts = {**config, **(text if isinstance(text, Mapping) else {})}
    stated = [value for key in POSITION_KEYS if isinstance(value := facts.get(key), int) and value > 0]
    return min(stated, default=None)


def position_limit(model: Any) -> int | None:
    """Return how many tokens a model has positions for; `None` where it works with any number.

    Rotary and relative positions have no table that would end. RoBERTa and its like start to count after the padding
    token's id.
    """
    limits = list(_tables(model))
    return min(limits) if limits else None


def check_seq_len(model: Any, seq_len: int) -> None:
    """Raise where a model has no positions for so many tokens.

    Raises:
        UsageError: it has not.
    """
    limit = position_limit(model)
    if limit is not None and seq_len > limit:
        raise UsageError(
            f"seq_len {seq_len:,} is longer than the {limit:,} positions of {type(model).__name__}; "
            f"give at most {limit:,}."
        )


def _tables(model: Any) -> Iterator[int]:
    import torch

    stated = {getattr(config, key, None) for config in _text_configs(model.config) for key in POSITION_KEYS}
    for name, module in model.named_modules():
        leaf = name.rpartition(".")[2]
        if not _POSITION_NAME.search(leaf) or _ANOTHER_POSITION.search(name) or hasattr(module, "make_weights"):
            continue
        if isinstance(module, torch.nn.Embedding):
            offset = getattr(module, "offset", 0)
            before = module.padding_idx + 1 if module.padding_idx is not None and not offset else 0
            yield module.num_embeddings - offset - before
    for name, table in (*model.named_buffers(), *model.named_parameters()):
        leaf = name.rpartition(".")[2]
        named = _POSITION_NAME.search(leaf) and not _ANOTHER_POSITION.search(name)
        if named and table.dim() == 2 and table.shape[0] in stated:
            yield table.shape[0]


def _text_configs(config: Any) -> tuple[Any, ...]:
    return config, config.get_text_config()
