"""Holds composed steps against the statistics of PyTorch's own allocator, over architectures and ways to train.

    python benchmarks/simulated_steps.py                tiny models of real families x dtype x checkpointing x attention
    python benchmarks/simulated_steps.py --model llama  one of them
    python benchmarks/simulated_steps.py --real         `memsim verify` on an imaginary GPU for models of real size

Every figure is a difference in bytes: predicted minus what `torch.cuda.memory_stats` counts in a run of two whole steps
on the imaginary GPU: peak requested, allocated, reserved.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from memsim.allocator import AllocatorConfig
from memsim.config import OptimizerConfig, TrainingConfig
from memsim.errors import MemsimError
from memsim.gpus import find_gpu
from memsim.optimizers import assign
from memsim.record.job import RecordJob
from memsim.record.meta import build_from_config
from memsim.record.recorder import Recorder
from memsim.simulation import compose, replay
from memsim.step.cut import sections_of
from memsim.verifying import VerifyOptions, verify_by_name

ALLOCATORS = ("", "expandable_segments:True")
PRECISIONS: tuple[dict[str, Any], ...] = (
    {"dtype": "float32"},
    {"dtype": "bfloat16"},
    {"dtype": "float32", "autocast": "bfloat16"},
)
OPTIMIZERS = ("adamw_torch", "adafactor", "torch.optim.SGD", "adamw_bnb_8bit", "adamw_torch_fused")
REAL: tuple[tuple[str, dict[str, Any]], ...] = (
    ("distilbert/distilbert-base-cased", {"task": "sequence-classification", "batch_size": 8, "seq_len": 128}),
    ("openai-community/gpt2", {"batch_size": 4, "seq_len": 512}),
    ("google-bert/bert-large-uncased", {"batch_size": 8, "seq_len": 256}),
    ("google-t5/t5-base", {"task": "seq2seq-lm", "batch_size": 4, "seq_len": 256}),
    ("Qwen/Qwen2.5-0.5B", {"batch_size": 2, "seq_len": 1024}),
    ("meta-llama/Llama-3.2-1B", {"batch_size": 4, "seq_len": 1024}),
    ("meta-llama/Llama-3.2-3B", {"batch_size": 2, "seq_len": 2048}),
    ("mistralai/Mistral-7B-v0.1", {"batch_size": 1, "seq_len": 4096}),
    ("meta-llama/Llama-3.1-8B", {"batch_size": 1, "seq_len": 2048}),
    ("meta-llama/Llama-3.1-70B", {"batch_size": 1, "seq_len": 2048, "activation_checkpointing": True}),
)
"""Models of 66 million to 70 billion parameters, and their batches."""


def tiny() -> dict[str, Any]:
    """Return the tiny models of the tests."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    tiny_models = importlib.import_module("tiny_models")
    return {name: (tiny_models.config_of(name), model) for name, model in tiny_models.MODELS.items()}


def trainings(model: Any) -> Iterator[TrainingConfig]:
    """Yield every way in which a tiny model is trained, the optimizers in turn."""
    for index, (precision, checkpointing, attention) in enumerate(
        product(PRECISIONS, (False, True), ("sdpa", "eager"))
    ):
        yield TrainingConfig(
            task=model.task,
            batch_size=2,
            seq_len=model.seq_len,
            activation_checkpointing=checkpointing,
            attn_implementation=attention,
            optimizer=OptimizerConfig(name=OPTIMIZERS[index % len(OPTIMIZERS)]),
            **precision,
        )


def differences(recorder: Recorder, alloc_conf: str, config: Any, changes: Any, training: TrainingConfig) -> list[int]:
    """Return predicted minus counted: peak requested, allocated and reserved bytes."""
    program = recorder.record(RecordJob(config=config, training=training, changes=changes))
    run = recorder.record(RecordJob(config=config, training=training, changes=changes, kind="run"))
    table = build_from_config(config, task=training.task, dtype=training.dtype).table
    sections = {section.name: section for section in sections_of(program.trace)}
    script = compose(sections, assign(training.optimizer, table), training)
    peak = replay(script, run.trace.device, AllocatorConfig.parse(alloc_conf)).peak
    real = run.trace.stats
    return [
        peak.requested_bytes - real.peak_requested_bytes,
        peak.allocated_bytes - real.peak_allocated_bytes,
        peak.reserved_bytes - real.peak_reserved_bytes,
    ]


def run_tiny(only: str | None) -> None:
    """Print every configuration that differs, and how many are equal."""
    counts: Counter[str] = Counter()
    for alloc_conf in ALLOCATORS:
        with Recorder(find_gpu("A100"), alloc_conf=alloc_conf) as recorder:
            for name, (config, model) in tiny().items():
                if only not in (None, name):
                    continue
                for training in trainings(model):
                    words = f"{name} {training.dtype}/{training.autocast} {training.attn_implementation}"
                    words += f" {training.optimizer.name}{' ckpt' if training.activation_checkpointing else ''}"
                    try:
                        found = differences(recorder, alloc_conf, config, model.changes, training)
                    except MemsimError as error:
                        counts["cannot be trained so"] += 1
                        print(f"{words}: {str(error).splitlines()[0][:150]}", flush=True)
                        continue
                    counts["equal" if not any(found) else "different"] += 1
                    if any(found):
                        print(f"{alloc_conf or 'default'} {words}: {found}", flush=True)
    print(", ".join(f"{number} {word}" for word, number in counts.items()))


def run_real(optimizers: tuple[str, ...], loops: tuple[str, ...]) -> None:
    """Print how far predictions of real models are off."""
    for (name, options), optimizer, loop in product(REAL, optimizers, loops):
        begun = time.monotonic()
        usual: dict[str, Any] = {"dtype": "bfloat16", "optimizer": OptimizerConfig(name=optimizer), "loop": loop}
        config = TrainingConfig(**{**usual, **options})
        result = verify_by_name(name, config, VerifyOptions(device="imaginary"))
        largest = max((abs(row.difference_bytes or 0) for row in result.judged), default=0)
        peak = result.peak
        print(
            f"{name} {optimizer} {loop}: {len(result.judged)} figures, largest difference {largest:,} bytes; peak "
            f"allocated {peak.measured_bytes:,} ({(peak.predicted_bytes or 0) - peak.measured_bytes:+,}), reserved "
            f"{peak.measured_reserved_bytes:,} "
            f"({(peak.predicted_reserved_bytes or 0) - peak.measured_reserved_bytes:+,}); "
            f"{time.monotonic() - begun:.0f} s",
            flush=True,
        )


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="one of the tiny models")
    parser.add_argument("--real", action="store_true", help="models of real size instead")
    parser.add_argument("--optimizers", default="adamw_torch", help="with --real, comma separated")
    parser.add_argument("--loops", default="plain", help="with --real, comma separated")
    asked = parser.parse_args()
    if asked.real:
        run_real(tuple(asked.optimizers.split(",")), tuple(asked.loops.split(",")))
    else:
        run_tiny(asked.model)


if __name__ == "__main__":
    main()
