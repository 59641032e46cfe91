"""Trains every class of transformers for one micro-step on an imaginary GPU, and prints which batches do not fit.

    python benchmarks/training_inputs.py                       the families of the catalog, a minute
    python benchmarks/training_inputs.py --all                 every family that transformers has, ten minutes
    python benchmarks/training_inputs.py --model-type llava    one family

Models have the sizes of the smallest catalog entry of the family, else their configuration class's defaults, cut to
two layers where they can be. What fails is printed with the model's own error.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from imaginary_gpu_families import FAMILIES, _cut, _parts

BATCH_SIZE = 2
MEMORY_BYTES = 2**42
"""Kernels do not depend on it, and all models fit."""
FULL_DEPTH = frozenset(["mllama", "qwen3_5", "qwen3_5_moe", "qwen3_next"])
"""Families whose first two layers alone are no model: others are named by their numbers, or are of another kind."""
SHARED_BY_TASKS = frozenset(["masked-lm", "causal-lm", "image-text-to-text"])
"""Tasks that are tried although another task has the same class: their batches differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One micro-step of one class."""

    model_type: str
    task: str
    error: str = ""
    """Empty: forward and backward ran."""
    without_gradient: int = 0
    """Trainable parameters that got none."""
    seconds: float = 0.0


def pairs(model_types: Sequence[str] | None, *, everything: bool) -> list[tuple[str, str]]:
    """Return families and tasks, each class once."""
    import transformers

    from memsim import catalog
    from memsim.record.architecture import classes_of_task, tasks_of

    known = {entry.config.get("model_type") for entry in catalog.entries()}
    chosen = [name for name in transformers.CONFIG_MAPPING if everything or name in known]
    found = []
    for name in model_types or chosen:
        seen: set[Any] = set()
        for task in tasks_of(name):
            cls = classes_of_task(task, transformers.CONFIG_MAPPING[name], transformers)[0]
            if cls not in seen or task in SHARED_BY_TASKS:
                found.append((name, task))
            seen.add(cls)
    return found


def _configs(model_type: str) -> Iterator[dict[str, Any]]:
    """Yield configurations to try: cut to two layers, then whole."""
    from transformers import CONFIG_MAPPING

    from memsim import catalog

    entries = [entry for entry in catalog.entries() if entry.config.get("model_type") == model_type]
    smallest = min(entries, key=lambda entry: entry.num_parameters, default=None)
    facts = {} if smallest is None else {**smallest.config, "architectures": None}
    changes = next((family.changes for family in FAMILIES if family.name == model_type), {})
    if model_type not in FULL_DEPTH:
        config = CONFIG_MAPPING[model_type].from_dict(facts)
        for part in _parts(config):
            _cut(part)
        for key, value in changes.items():
            setattr(config, key, value)
        yield config.to_dict()
    yield CONFIG_MAPPING[model_type].from_dict(facts).to_dict()


def _try(model_type: str, task: str) -> int:
    """Run one micro-step; return the number of trainable parameters without a gradient."""
    from memsim.config import TrainingConfig
    from memsim.errors import MemsimError
    from memsim.record.training.build import build_model, place
    from memsim.record.training.inputs import example_batch
    from memsim.record.training.loops import start_loop

    training = TrainingConfig(task=task, dtype="float32", batch_size=BATCH_SIZE)
    refused: MemsimError | None = None
    for config in _configs(model_type):
        try:
            model = place(build_model(config, training), "cuda")
        except MemsimError as error:
            refused = error
            continue
        start_loop(model, training, with_optimizer=False).micro_step(example_batch(model, training))
        return sum(p.requires_grad and p.grad is None for p in model.parameters())
    assert refused is not None
    raise refused


def _child(path: str, first: int) -> None:
    """Try the pairs of a file from one on, and print each as a line of JSON."""
    import logging
    import warnings
    from pathlib import Path

    import torch

    from memsim.record.watch.values import Values

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    values = Values(torch)
    for number, (model_type, task) in enumerate(json.loads(Path(path).read_text())[first:], first):
        start, error, without = time.monotonic(), "", 0
        print(json.dumps({"begins": number}), flush=True)
        try:
            without = _try(model_type, task)
        except Exception as raised:
            frame = traceback.extract_tb(raised.__traceback__)[-1]
            said = " ".join(str(raised).split())[:200]
            error = f"{type(raised).__name__}: {said} ({frame.filename}:{frame.lineno})"
        seconds = round(time.monotonic() - start, 3)
        tried = Tried(model_type=model_type, task=task, error=error, without_gradient=without, seconds=seconds)
        print(json.dumps({"number": number, **asdict(tried)}), flush=True)
        gc.collect()
        gc.freeze()  # what is left are modules: looking through them each time would take most of the time
        torch.cuda.empty_cache()
    del values


def run(todo: Sequence[tuple[str, str]]) -> list[Tried]:
    """Try all pairs on an imaginary A100, in a process that is started again where a kernel ends it."""
    import tempfile
    from pathlib import Path

    from memsim.gpus import find_gpu
    from memsim.imaginary_gpu import child_environment

    environment = child_environment(replace(find_gpu("A100"), memory_bytes=MEMORY_BYTES))
    tried: list[Tried] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pairs.json")
        path.write_text(json.dumps(todo))
        while len(tried) < len(todo):
            command = [sys.executable, __file__, "--child", str(path), "--first", str(len(tried))]
            process = subprocess.run(
                command, env={**environment, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True, check=False
            )
            lines = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
            tried += [Tried(**{k: v for k, v in line.items() if k != "number"}) for line in lines if "number" in line]
            if process.returncode != 0 and len(tried) < len(todo):
                name, task = todo[len(tried)]
                tried.append(Tried(model_type=name, task=task, error=f"the process ended with {process.returncode}"))
    return tried


def main() -> int:
    """Run, print what failed and how many ran; return 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--model-type", action="append")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _child(options.child, options.first)
        return 0
    tried = run(pairs(options.model_type, everything=options.all))
    failed = [one for one in tried if one.error]
    for one in failed:
        print(f"{one.model_type} {one.task}: {one.error}")
    for one in tried:
        if one.without_gradient:
            print(f"{one.model_type} {one.task}: {one.without_gradient} parameters without a gradient")
    print(f"{len(tried) - len(failed)} of {len(tried)} classes trained")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
