"""Trains Mistral-7B on the imaginary GPU as others trained it on an A100, and compares bytes.

    python benchmarks/measured_rows.py               with the versions of the measurement, fetched once into the cache
    python benchmarks/measured_rows.py --installed   with the transformers and peft that are installed

Source of every measured number: foundation-model-stack/fms-acceleration, scripts/benchmarks/refs/a100_80gb.csv (Trainer
memory metrics of fms-hf-tuning; the vocabulary is 32001 as it adds a padding token), torch 2.4.1, transformers 4.48.1,
peft 0.13.2. The torch that runs here is newer. The measured runs used FlashAttention 2, which needs no mask; with sdpa
and a sliding window as long as the text that transformers would build one of 32 MiB, so the window is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TOLERANCE_BYTES = 4096
SEQ_LEN = 4096
_WITH_DEPENDENCIES = ("transformers==4.48.1", "psutil")
_ALONE = ("peft==0.13.2", "accelerate==1.3.0")
"""They would bring another torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured training run on one A100 with 80 GB."""

    training: str
    """`full` or `lora` (r=16 on q, k, v, o; dropout 0.1; adapters in float32)."""
    batch_size: int
    max_allocated_bytes: int
    """Within `Trainer.train()`."""
    after_step_bytes: int | None
    """Allocated when it has returned: no gradients, the last batch, cuBLAS workspaces."""


ROWS = (
    Row(training="full", batch_size=4, max_allocated_bytes=72_434_837_504, after_step_bytes=43_467_876_352),
    Row(training="full", batch_size=8, max_allocated_bytes=72_435_230_720, after_step_bytes=43_468_269_568),
    Row(training="lora", batch_size=4, max_allocated_bytes=26_704_571_904, after_step_bytes=14_664_493_056),
    Row(training="lora", batch_size=8, max_allocated_bytes=38_742_912_512, after_step_bytes=None),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the same run held on the imaginary GPU."""

    max_allocated_bytes: int
    after_step_bytes: int
    transformers_version: str
    peft_version: str


def record(row: Row, packages: Path | None = None) -> Recorded:
    """Run three steps on an imaginary A100, with the packages in a folder before the installed ones.

    Raises:
        subprocess.CalledProcessError: the training failed; its traceback is on stderr.
    """
    from memsim.gpus import find_gpu
    from memsim.imaginary_gpu import child_environment

    environment = child_environment(find_gpu("A100"))
    if packages is not None:
        path = [str(packages), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(path)
    command = [sys.executable, __file__, "--child", row.training, "--batch-size", str(row.batch_size)]
    process = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return Recorded(**json.loads(process.stdout.splitlines()[-1]))


def fetched_packages() -> Path:
    """Return a folder with the versions of the measurement, installed by pip when it is not there."""
    from memsim.imaginary_gpu.installation import cache_folder

    folder = cache_folder() / "measured_rows" / f"cp{sys.version_info.major}{sys.version_info.minor}"
    done = folder / "complete"
    if not done.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(folder)]
        subprocess.run([*pip, *_WITH_DEPENDENCIES], check=True)
        subprocess.run([*pip, "--no-deps", *_ALONE], check=True)
        done.touch()
    return folder


def _model(training: str) -> Any:
    import torch
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=32001,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        sliding_window=None,
        use_cache=False,
        attn_implementation="sdpa",
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        base = MistralForCausalLM(config)
    base = base.to_empty(device="cuda")
    torch.set_default_dtype(torch.float32)
    model = base
    if training == "lora":
        from peft import LoraConfig, get_peft_model

        base.enable_input_require_grads()
        targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
        adapters = LoraConfig(r=16, lora_alpha=16, lora_dropout=0.1, target_modules=targets, task_type="CAUSAL_LM")
        model = get_peft_model(base, adapters)
    base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    return model.train()


def _child(training: str, batch_size: int) -> None:
    import peft
    import torch
    import transformers

    model = _model(training)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ids = torch.zeros(batch_size, SEQ_LEN, dtype=torch.long, device="cuda")
    # FlashAttention 2 takes no mask where nothing is padded, but the Trainer's batch holds one.
    batch = {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}
    optimizer = torch.optim.AdamW(parameters, foreach=True)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        loss = model(input_ids=batch["input_ids"], labels=batch["labels"]).loss
        loss.backward()
        del loss
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    found = Recorded(
        max_allocated_bytes=torch.cuda.max_memory_allocated(),
        after_step_bytes=torch.cuda.memory_allocated(),
        transformers_version=transformers.__version__,
        peft_version=peft.__version__,
    )
    print(json.dumps(asdict(found)))


def main() -> int:
    """Print recorded, measured and difference of every row; return 1 if one is outside the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--installed", action="store_true", help="use the installed transformers and peft")
    parser.add_argument("--child", choices=("full", "lora"), help=argparse.SUPPRESS)
    parser.add_argument("--batch-size", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _child(options.child, options.batch_size)
        return 0
    packages = None if options.installed else fetched_packages()
    worst = 0
    print(f"{'training':8} {'batch':>5} {'metric':21} {'recorded':>14} {'measured':>14} {'difference':>11}")
    for row in ROWS:
        found = record(row, packages)
        for metric in ("max_allocated", "after_step"):
            recorded, measured = getattr(found, f"{metric}_bytes"), getattr(row, f"{metric}_bytes")
            if measured is None:
                continue
            worst = max(worst, abs(recorded - measured))
            text = f"{row.training:8} {row.batch_size:5} {metric:21} {recorded:14,} {measured:14,}"
            print(f"{text} {recorded - measured:11,}", flush=True)
    print(f"transformers {found.transformers_version}, peft {found.peft_version}")
    return 0 if worst <= TOLERANCE_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
