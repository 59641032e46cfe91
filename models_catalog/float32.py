"""What every model family of transformers keeps in float32 when its weights are loaded in half precision.

    python models_catalog/float32.py

writes float32.json: for each `model_type` the regular expressions that `from_pretrained(dtype=...)` searches in the
names of tensors (`_get_dtype_plan`, modeling_utils.py:3844, and core_model_loading.py:1919 @transformers 5.24):

`float16`  `_keep_in_fp32_modules`: float32 where the weights are float16
`half`     `_keep_in_fp32_modules_strict`: float32 where they are float16 or bfloat16
`always`   tensors that the class itself creates in float32, seen on the meta device with the default configuration

Only families that keep something are listed, and the names of all others, so that an unknown one can be told.
"""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent / "float32.json"
BUILD_SECONDS = 20
_CREATES_FLOAT32 = re.compile(r"torch\.float32|torch\.float\b|FloatTensor")


def main() -> None:
    """Write the file anew."""
    import torch
    import transformers

    logging.disable(logging.CRITICAL)
    kept: dict[str, dict[str, list[str]]] = {}
    known = sorted(transformers.CONFIG_MAPPING.keys())
    for model_type in known:
        found = _kept(transformers.CONFIG_MAPPING[model_type], torch, transformers)
        if found:
            kept[model_type] = found
            print(model_type, found, file=sys.stderr)
    built_with = {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__}
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(found)}" for name, found in kept.items())
    others = json.dumps([name for name in known if name not in kept])
    FILE.write_text(f'{{"built_with": {json.dumps(built_with)},\n"kept": {{\n{lines}\n}},\n"others": {others}}}\n')


def _kept(config_class: Any, torch: Any, transformers: Any) -> dict[str, list[str]]:
    try:
        module = importlib.import_module(config_class.__module__.replace(".configuration_", ".modeling_"))
    except ImportError:
        return {}
    names: dict[str, set[str]] = {"float16": set(), "half": set()}
    for cls in vars(module).values():
        if (
            isinstance(cls, type)
            and cls.__module__ == module.__name__
            and issubclass(cls, transformers.PreTrainedModel)
        ):
            own = getattr(cls, "config_class", None)
            if own is config_class or own is None or own.__module__ != config_class.__module__:
                names["float16"] |= set(getattr(cls, "_keep_in_fp32_modules", None) or ())
                names["half"] |= set(getattr(cls, "_keep_in_fp32_modules_strict", None) or ())
    found = {key: sorted(name.replace("*", ".*") for name in given) for key, given in names.items() if given}
    always = sorted(set(_created(config_class, module, torch, transformers)))
    return {**found, **({"always": always} if always else {})}


def _created(config_class: Any, module: Any, torch: Any, transformers: Any) -> Iterator[str]:
    """Yield patterns of the parameters that are float32 in a model that was made in float16."""
    if not _CREATES_FLOAT32.search(inspect.getsource(module)):
        return
    signal.alarm(BUILD_SECONDS)
    try:
        with torch.device("meta"):
            model = transformers.AutoModel.from_config(config_class(), dtype=torch.float16)
    except Exception:  # no base model of its own, no defaults, an optional package: nothing to see
        return
    finally:
        signal.alarm(0)
    planned = model._get_dtype_plan(torch.float16)
    plan = re.compile("|".join(name.replace("*", ".*") for name in planned) or r"(?!)")
    stored = set(model.state_dict(keep_vars=True))
    tensors = [*model.named_parameters(), *((n, b) for n, b in model.named_buffers() if n in stored)]
    for name, tensor in tensors:
        if tensor.dtype == torch.float32 and not plan.search(name):
            yield rf"(^|\.){re.sub(r'[0-9]+', '[0-9]+', re.escape(name))}$"


def _too_slow(*_: object) -> None:
    raise TimeoutError


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, _too_slow)
    main()
