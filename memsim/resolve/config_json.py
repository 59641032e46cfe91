"""`config.json`: from untrusted bytes to a dict whose sizes are at least possible."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from memsim.errors import ModelError
from memsim.record.config_guard import checked_config

CONFIG_FILE = "config.json"

MAX_CONFIG_BYTES = 16 * 2**20
"""Far above any real config.json or shard index (the largest published indexes are a few MB)."""

_FLOAT_DTYPES = ("float32", "bfloat16", "float16", "float64")


def parse_config(data: bytes, where: str) -> dict[str, Any]:
    """Return the config in `data`, the bytes of a config.json.

    Raises:
        ModelError: not UTF-8 JSON, not an object, no `model_type`, or a size that no model can have.
    """
    config = parse_json_object(data, where)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ModelError(
            f'{where} lacks "model_type", the name of the architecture ("bert", "llama", ...).\n'
            "Add it, or give the config.json that transformers' save_pretrained writes."
        )
    try:
        checked_config(config)
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from None
    return config


def parse_json_object(data: bytes, where: str) -> dict[str, Any]:
    """Return the JSON object in `data`.

    Raises:
        ModelError: not UTF-8, not JSON, not an object, or nested too deeply to be read.
    """
    try:
        parsed = json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ModelError(f"{where} is nested too deeply to be read; it must be one JSON object.") from None
    except ValueError as error:
        raise ModelError(f"{where} is not JSON ({error}).\nIt must be one JSON object in UTF-8.") from None
    if not isinstance(parsed, dict):
        raise ModelError(f"{where} holds a JSON {_KINDS[type(parsed)]}, and must be one JSON object.")
    return parsed


_KINDS: dict[type, str] = {
    list: "array",
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


def config_dtype(config: Mapping[str, Any], where: str) -> str | None:
    """Return the dtype that the config states for its weights (`dtype`, formerly `torch_dtype`); `None` if none.

    Raises:
        ModelError: the entry is there but is not a dtype that a model can be built in.
    """
    value = config.get("dtype", config.get("torch_dtype"))
    if value is None:
        return None
    dtype = value.removeprefix("torch.") if isinstance(value, str) else value
    if dtype == "auto":
        return None
    if dtype not in _FLOAT_DTYPES:
        raise ModelError(
            f"{where}: dtype is {str(value)[:40]!r}, and must be one of {', '.join(_FLOAT_DTYPES)}.\n"
            "Correct it, or choose one with --dtype."
        )
    return str(dtype)
