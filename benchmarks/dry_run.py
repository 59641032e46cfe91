"""What watching costs: a step of Llama-3.1-8B (bf16, batch 1, 2,048 tokens, no checkpointing) with and without it.

    python benchmarks/dry_run.py [--gpu B200] [--steps 3]

Both runs are on the imaginary GPU, so the difference is the watch alone; the model is built on the meta device. The
bars: a watched step takes at most 2 s longer, and the watched process at most 3 GiB (`ru_maxrss` of the kernel). What
memsim itself then takes for the result is told apart.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from memsim import imaginary_gpu
from memsim.dry_run.run import Limits, run
from memsim.gpus import find_gpu

SCRIPT = """
import atexit, json, resource, sys, time
times = []
def report():
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    json.dump({"times": times, "rss_mib": peak, "exit": time.time()}, open(sys.argv[1], "w"))
atexit.register(report)
import torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                     num_key_value_heads=8, vocab_size=128256, use_cache=False)
with torch.device("meta"):
    model = LlamaForCausalLM(config)
model = model.to(torch.bfloat16).to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
ids = torch.zeros(1, 2048, dtype=torch.long, device="cuda")
for step in range(int(sys.argv[2])):
    start = time.perf_counter()
    times.append(None)
    try:
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    finally:
        times[-1] = time.perf_counter() - start
"""


def main() -> None:
    """Print one line per run and the differences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gpu", default="B200")
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    steps = str(arguments.steps)
    with tempfile.TemporaryDirectory() as name:
        script, plain, watched = (Path(name) / file for file in ("train.py", "plain.json", "watched.json"))
        script.write_text(SCRIPT, encoding="utf-8")
        environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
        bare = imaginary_gpu.child_environment(find_gpu(arguments.gpu), base=environment)
        subprocess.run([sys.executable, str(script), str(plain), steps], env=bare, check=True)
        result = run(
            [sys.executable, str(script), str(watched), steps],
            gpu=arguments.gpu,
            limits=Limits(max_steps=0),
            environment=environment,
        )
        after = time.time()
        rows = {"plain": json.loads(plain.read_text()), "watched": json.loads(watched.read_text())}
    print("| run | " + " | ".join(f"step {i + 1} s" for i in range(arguments.steps)) + " | peak RSS MiB |")
    print("|---|" + "---|" * (arguments.steps + 1))
    for row, data in rows.items():
        print(f"| {row} | " + " | ".join(f"{seconds:.2f}" for seconds in data["times"]) + f" | {data['rss_mib']:.0f} |")
    extra = max(a - b for a, b in zip(rows["watched"]["times"], rows["plain"]["times"], strict=True))
    print(f"watching adds at most {extra:.2f} s to a step (bar: 2 s)")
    print(f"from the program's end to the result: {after - rows['watched']['exit']:.2f} s")
    assert result.trace is not None
    print(
        f"{len(result.trace.events):,} events; peak {result.peak.allocated_bytes:,} bytes in {result.peak.phase.value}"
    )


if __name__ == "__main__":
    main()
