"""Runs `memsim verify` on this machine's GPU over a matrix of trainings, and keeps what was measured.

    python benchmarks/gpu_verify.py cases.jsonl --minutes 30           everything that fits, small models first
    python benchmarks/gpu_verify.py cases.jsonl --models 1B --list     what would run
    python benchmarks/gpu_verify.py cases.jsonl --imaginary A100       the same on an imaginary GPU, to try this script

Every training runs in a process of its own. Its figures are appended to the file as they come, one JSON object a line
in the schema of measured cases (one line per metric); what is in the file already is not run again, so an interrupted
run goes on where it stopped. What ran out of memory or failed is noted in the file too, with `metric` null.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from itertools import product
from pathlib import Path
from typing import Any

CASE_SECONDS = 240
"""Time for one training; an 8B model is built, run for two steps and read in less."""
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
MODELS: tuple[tuple[str, str, str, int, int], ...] = (
    ("60M", "distilbert/distilbert-base-cased", "sequence-classification", 8, 128),
    ("60M", "google-t5/t5-small", "seq2seq-lm", 8, 256),
    ("100M", "openai-community/gpt2", "causal-lm", 4, 512),
    ("100M", "google-bert/bert-base-uncased", "masked-lm", 8, 256),
    ("500M", "Qwen/Qwen2.5-0.5B", "causal-lm", 2, 1024),
    ("1B", "meta-llama/Llama-3.2-1B", "causal-lm", 2, 1024),
    ("3B", "meta-llama/Llama-3.2-3B", "causal-lm", 1, 2048),
    ("8B", "mistralai/Mistral-7B-v0.1", "causal-lm", 1, 2048),
    ("8B", "meta-llama/Llama-3.1-8B", "causal-lm", 1, 1024),
)
"""Size, name in the catalog, task, batch size, tokens."""
OPTIMIZERS = ("adamw_torch_fused", "adamw_torch", "adafactor", "adamw_bnb_8bit", "torch.optim.SGD")
PRECISIONS = (("bfloat16", "none"), ("float32", "bfloat16"), ("float32", "none"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training."""

    size: str
    model: str
    task: str
    batch_size: int
    seq_len: int
    optimizer: str = "adamw_torch_fused"
    dtype: str = "bfloat16"
    autocast: str = "none"
    activation_checkpointing: bool = False
    attn_implementation: str = "sdpa"
    loop: str = "plain"
    lora_r: int | None = None

    @property
    def case_id(self) -> str:
        """The same for the same training."""
        words = [self.model.rpartition("/")[2], self.optimizer, self.dtype, f"b{self.batch_size}", f"s{self.seq_len}"]
        words += [f"autocast-{self.autocast}"] if self.autocast != "none" else []
        words += ["ckpt"] if self.activation_checkpointing else []
        words += [self.attn_implementation, self.loop] + ([f"lora{self.lora_r}"] if self.lora_r else [])
        return "gpu-" + "-".join(words)


def cases(sizes: frozenset[str]) -> Iterator[Case]:
    """Yield every training, small models first: each choice beside the usual one, not all combinations of all."""
    for size, model, task, batch_size, seq_len in MODELS:
        if sizes and size not in sizes:
            continue
        base = {"size": size, "model": model, "task": task, "batch_size": batch_size, "seq_len": seq_len}
        for optimizer, (dtype, autocast) in product(OPTIMIZERS, PRECISIONS):
            yield Case(**base, optimizer=optimizer, dtype=dtype, autocast=autocast)  # type: ignore[arg-type]
        for checkpointing, attention in ((True, "sdpa"), (False, "eager"), (True, "eager")):
            yield Case(**base, activation_checkpointing=checkpointing, attn_implementation=attention)  # type: ignore[arg-type]
        for loop in ("accelerate", "trainer"):
            yield Case(**base, dtype="float32", autocast="bfloat16", loop=loop)  # type: ignore[arg-type]
        if task == "causal-lm" and "gpt2" not in model:
            yield Case(**base, lora_r=16)  # type: ignore[arg-type]


def measured(case: Case) -> dict[str, Any]:
    """Run a training in this process; return its figures and what was predicted."""
    from memsim.config import OptimizerConfig, TrainingConfig

    names = ("task", "batch_size", "seq_len", "dtype", "autocast", "activation_checkpointing", "attn_implementation")
    config = TrainingConfig(
        **{name: getattr(case, name) for name in (*names, "loop")}, optimizer=OptimizerConfig(name=case.optimizer)
    )
    comparison = with_lora(case, config) if case.lora_r else by_name(case, config)
    ends = {
        row.category.value: row.measured_bytes
        for row in comparison.rows
        if (row.step, row.phase.value, row.moment) == (comparison.num_steps, "optimizer_step", "end")
    }
    after = [
        row.measured_total_bytes
        for row in comparison.rows
        if (row.step, row.phase.value, row.moment) == (comparison.num_steps, "zero_grad", "end")
    ]
    peak = comparison.peak
    return {
        "oom": comparison.oom is not None,
        "passed": comparison.passed,
        "verdict": comparison.verdict,
        "gpu": comparison.hardware.name,
        "versions": comparison.versions,
        "predicted": {"max_allocated": peak.predicted_bytes, "max_reserved": peak.predicted_reserved_bytes},
        "metrics": {
            "max_allocated": peak.measured_bytes,
            "max_reserved": peak.measured_reserved_bytes,
            "nvidia_smi": peak.measured_device_bytes,
            "allocated_after_step": after[0] if after else None,
            "param_bytes": ends.get("parameter"),
            "gradient_bytes": ends.get("gradient"),
            "optimizer_state_bytes": ends.get("optimizer_state", 0),
        },
    }


def with_lora(case: Case, config: Any) -> Any:
    """Verify a model with adapters: measured as one's own module, its static part predicted."""
    import torch
    from peft import LoraConfig, get_peft_model

    from memsim.integrations.module import ModuleRun, verify_module
    from memsim.record.training.build import build_model, place
    from memsim.record.training.inputs import example_batch
    from memsim.record.training.optimizer import build_optimizer
    from memsim.resolve import resolve

    spec = resolve(case.model, task=case.task, dtype=case.dtype)
    base = place(build_model(dict(spec.config), config), "cuda", weights="random")
    batch = example_batch(base, config)
    adapters = LoraConfig(r=case.lora_r, lora_alpha=2 * (case.lora_r or 0), target_modules=list(LORA_TARGETS))
    model = get_peft_model(base, adapters)
    torch.cuda.reset_peak_memory_stats()
    return verify_module(model, build_optimizer(model, config.optimizer), batch, ModuleRun())


def by_name(case: Case, config: Any) -> Any:
    """Verify a model of the catalog on the GPU."""
    from memsim.verifying import VerifyOptions, verify_by_name

    return verify_by_name(case.model, config, VerifyOptions(device="cuda"))


def rows(case: Case, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield one measured case per metric; one without a metric where there are no figures."""
    metrics = {} if found.get("oom") or found.get("error") else found["metrics"]
    known = {name: value for name, value in metrics.items() if value is not None}
    rank = case.lora_r or 0
    lora = {"r": rank, "alpha": 2 * rank, "targets": list(LORA_TARGETS), "dropout": 0.0, "dtype": case.dtype}
    for metric, nbytes in known.items() or ((None, None),):
        yield {
            "case_id": f"{case.case_id}-{metric}",
            "family": case.case_id,
            "model": case.model,
            "model_config": {},
            "implementation": "transformers",
            "library": f"transformers ({case.loop} loop)",
            "task": case.task,
            "param_dtype": case.dtype,
            "autocast": case.autocast if case.autocast != "none" else None,
            "optimizer": case.optimizer,
            "optimizer_impl": None,
            "batch_size": case.batch_size,
            "seq_len": case.seq_len,
            "gradient_accumulation_steps": 1,
            "activation_checkpointing": case.activation_checkpointing,
            "checkpointing_detail": "the installed transformers' default" if case.activation_checkpointing else None,
            "attn_implementation": case.attn_implementation,
            "lora": lora if case.lora_r else None,
            **dict.fromkeys(("quantization", "kbit_fp32_casts", "fp32_modules", "strategy", "offload", "phase")),
            "world_size": 1,
            "logits_chunked": False,
            "compiled": False,
            "metric": metric,
            "measured_bytes": nbytes,
            "half_width_bytes": 0,
            "unit_as_printed": "bytes",
            "grade": "A",
            "assumed": [],
            "predicted_bytes": found.get("predicted", {}).get(metric),
            "gpu": found.get("gpu"),
            "torch_version": found.get("versions", {}).get("torch"),
            "transformers_version": found.get("versions", {}).get("transformers"),
            "peft_version": found.get("versions", {}).get("peft"),
            "source": "benchmarks/gpu_verify.py",
            "date": datetime.now(timezone.utc).date().isoformat(),
            "notes": found.get("error") or found.get("verdict"),
        }


def run_case(case: Case, environment: dict[str, str]) -> dict[str, Any]:
    """Run a training in a process of its own; its failure is a result."""
    command = [sys.executable, os.path.abspath(__file__), "--case", json.dumps(asdict(case))]
    try:
        process = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=CASE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {CASE_SECONDS} seconds"}
    try:
        found: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        said = process.stderr.strip().splitlines()[-1:] or ["no message"]
        return {"error": f"exit code {process.returncode}: {said[0][:300]}"}
    return found


def main() -> None:
    """Run what is asked for and not done yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", help="where figures are kept, one JSON object a line")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop before a case when this time is up")
    parser.add_argument("--models", default="", help="sizes, comma separated: 60M,100M,500M,1B,3B,8B")
    parser.add_argument("--imaginary", metavar="GPU", help="run on an imaginary GPU")
    parser.add_argument("--limit", type=int, help="run at most so many cases")
    parser.add_argument("--list", action="store_true", help="only list the cases")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.case:
        print(json.dumps(measured(Case(**json.loads(asked.case)))))
        return
    path = Path(asked.file) if asked.file else None
    if path is None and not asked.list:
        parser.error("name the file that figures are kept in")
    done = {json.loads(line)["family"] for line in path.read_text().splitlines()} if path and path.exists() else set()
    todo = [case for case in cases(frozenset(filter(None, asked.models.split(",")))) if case.case_id not in done]
    if asked.list or path is None:
        print("\n".join(case.case_id for case in todo))
        return
    run_all(todo[: asked.limit], path, environment_for(asked.imaginary), deadline=time.monotonic() + asked.minutes * 60)


def environment_for(gpu: str | None) -> dict[str, str]:
    """Return the environment in which torch sees this machine's GPU, or an imaginary one."""
    if gpu is None:
        return dict(os.environ)
    from memsim.gpus import find_gpu
    from memsim.imaginary_gpu import child_environment

    return child_environment(find_gpu(gpu))


def run_all(todo: list[Case], path: Path, environment: dict[str, str], *, deadline: float) -> None:
    """Run cases until none is left or time is up, each one's figures written before the next begins."""
    for index, case in enumerate(todo):
        if time.monotonic() > deadline:
            print(f"time is up; {len(todo) - index} cases are left: run the same command again.", file=sys.stderr)
            return
        begun = time.monotonic()
        found = run_case(case, environment)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows(case, found))
        seconds = time.monotonic() - begun
        print(f"{seconds:5.1f} s  {case.case_id}: {found.get('error') or found.get('verdict')}", file=sys.stderr)


if __name__ == "__main__":
    main()
