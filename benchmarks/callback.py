"""What `MemsimCallback` costs a Trainer's steps after the second (bar: under 1 % of a step).

    python benchmarks/callback.py [--steps 60] [--rounds 5]

A tiny Llama trains on the CPU with and without the callback, in turns; each step's CPU time is taken from the third
step on, and the least median of all rounds is compared. Its steps take a few milliseconds, so the ratio is an upper
bound for any real model. The second figure is the time spent inside the callback's own events, over the median step.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any

import torch
import transformers

from memsim.integrations.trainer import MemsimCallback

BAR = 0.01
MEASURED = 2


class Clock(transformers.TrainerCallback):  # type: ignore[misc]
    """Takes the CPU time of every step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End a step."""
        now = time.process_time()
        self.seconds.append(now - self._last)
        self._last = now


class Rows(torch.utils.data.Dataset):  # type: ignore[misc]
    """Token ids."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(32) + index % 50
        return {"input_ids": tokens, "labels": tokens}


def timed(num_steps: int, callbacks: list[Any]) -> list[float]:
    """Return the CPU seconds of every step after the measured ones."""
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=100
    )
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            max_steps=num_steps,
            per_device_train_batch_size=4,
            disable_tqdm=True,
            logging_strategy="no",
        )
        transformers.Trainer(
            model=transformers.LlamaForCausalLM(config),
            args=arguments,
            train_dataset=Rows(),
            callbacks=[*callbacks, clock],
        ).train()
    return clock.seconds[MEASURED + 1 :]


def seconds_in_events(num_calls: int = 100_000) -> float:
    """Return the seconds that the callback's events of one step take once its measurement has ended."""
    callback = MemsimCallback()
    begun = time.process_time()
    for _ in range(num_calls):
        callback.on_step_begin(None, None, None)
        callback.on_step_end(None, None, None)
    return (time.process_time() - begun) / num_calls


def main() -> None:
    """Print both ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    timed(10, [])  # warm up
    without, with_callback = [], []
    for _ in range(options.rounds):
        without.append(statistics.median(timed(options.steps, [])))
        with_callback.append(statistics.median(timed(options.steps, [MemsimCallback()])))
    step, other = min(without), min(with_callback)
    inside = seconds_in_events()
    print(f"step without the callback {step * 1e3:.3f} ms, with it {other * 1e3:.3f} ms: {other / step - 1:+.2%}")
    print(f"inside the callback {inside * 1e6:.2f} us: {inside / step:.4%} of a step (bar: {BAR:.0%})")


if __name__ == "__main__":
    main()
