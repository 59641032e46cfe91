"""Records single layers on the imaginary GPU and compares with what others measured on real ones.

    python benchmarks/single_layers.py [--op OP]...      a table of every row; the rows come from ../shared

Sources: linkedin/Liger-Kernel, benchmark/data/all_benchmark_data.csv (`liger_given.jsonl`; the rows of plain torch and
transformers); Wedsonlin/assignment2-systems results/attention_benchmark.jsonl and stas00/ml-engineering
training/performance (`layers_given.jsonl`).

What a Liger row is (`_test_memory` and `QUANTILES`, benchmark/scripts/utils.py @07b79b1b): ten times
`reset_peak_memory_stats(); function(); max_memory_allocated() / 2**20`, and the median of the ten. Everything counts
that is alive: inputs, weights, the twin with the fused kernel, gradients (which are added to from the second call on).
The speed of the same function was measured before in the same process, so cuBLAS has its workspaces, one for the
main thread and one for autograd's. The median passes through float32, which keeps a KiB of 16 GiB.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "ground_truth"
TOLERANCE = 0.01
NUM_CALLS = 3
"""Of the ten: the first has no gradients yet, all others are alike, so the median is the same."""
MEMORY_BYTES = 128 * 2**30
_LAYER_GPU = "NVIDIA H100 80GB HBM3"
"""`layers_given.jsonl` names no GPU: two workspaces of 32 MiB are in its figures."""
_GPU_NAMES = {"NVIDIA H100 PCIe": "NVIDIA H100 80GB HBM3"}
"""Known under another name; it has the same compute capability."""

_OLDER_TRANSFORMERS = (
    "proven: the measured transformers repeated keys and values for sdpa, 5.24 hands them over unrepeated; rerun with "
    "4.52.4 it is {} off"
)
MISSES: Mapping[str, str] = {
    "embedding": (
        "12,240 MiB more in every row, exactly three times the eight tables [V, 4096] of float32 of the script's other "
        "sweep, V = 2**10 ... 2**17; that torch.compile keeps them from the speed runs before is inferred"
    ),
    "fused_linear_orpo_loss T=4096": "open: 2,324.19 MiB more were measured in every row, whatever the batch",
    "fused_linear_orpo_loss T=1024": (
        "open: about 3.5 logits of bfloat16 more were measured, 40 minutes after the rows of T=4096"
    ),
    "distill_jsd_loss": (
        "open: two logits of float32 and about 5,062 MiB that do not depend on the tokens more were measured; the loss "
        "is a class in Liger's tests, whose version of that day is not known"
    ),
    "multi_token_attention": (
        "open: 27 % to 86 % less than measured; cuDNN's workspaces of the convolution, which the stand-in does not "
        "have, are suspected"
    ),
    "decoder_layer HuggingFaceTB/SmolLM2-360M": "open: rerun with transformers 4.52.4 it is +3.3 % off",
    "decoder_layer meta-llama/Llama-3.1-8B-Instruct": _OLDER_TRANSFORMERS.format("+0.16 %"),
    "decoder_layer Qwen/Qwen3-4B": _OLDER_TRANSFORMERS.format("+0.75 %"),
}
"""What is known of a row that is not within the tolerance, by `Row.kind`; `open`: what was seen, without a cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement of somebody else."""

    case_id: str
    op: str
    """Key of `single_layer_programs.PROGRAMS`."""
    mode: str
    """forward, backward, full: the peak; `allocated`: what is allocated after a forward, `delta`: what it added."""
    shapes: dict[str, Any]
    dtype: str
    gpu: str
    measured_bytes: int

    @property
    def kind(self) -> str:
        """Key of `MISSES`."""
        if self.op == "fused_linear_orpo_loss":
            return f"{self.op} T={self.shapes['T']}"
        return f"{self.op} {self.shapes['model']}" if self.op == "decoder_layer" else self.op


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A row and what the imaginary GPU held."""

    row: Row
    recorded_bytes: int

    @property
    def difference_bytes(self) -> int:
        """Recorded without measured."""
        return self.recorded_bytes - self.row.measured_bytes

    @property
    def error(self) -> float:
        """Relative and signed."""
        return self.difference_bytes / self.row.measured_bytes

    @property
    def known(self) -> str:
        """What is known of a miss; empty for a row within the tolerance."""
        return "" if abs(self.error) <= TOLERANCE else MISSES.get(self.row.kind, "not known")


def read_rows() -> list[Row]:
    """Return the rows of both files, in their order."""
    liger = (json.loads(line) for line in (FOLDER / "liger_given.jsonl").read_text(encoding="utf-8").splitlines())
    layers = (json.loads(line) for line in (FOLDER / "layers_given.jsonl").read_text(encoding="utf-8").splitlines())
    keys = ("case_id", "op", "mode", "shapes", "dtype", "gpu", "measured_bytes")
    return [Row(**{key: one[key] for key in keys}) for one in liger] + [_layer_row(one) for one in layers]


def _layer_row(one: Mapping[str, Any]) -> Row:
    alone = one["model"] == "custom"
    return Row(
        case_id=one["case_id"],
        op="attention" if alone else "decoder_layer",
        mode="allocated" if alone else "delta",
        shapes={key: one[key] for key in ("model", "batch_size", "seq_len", "hidden_size")},
        dtype={"fp32": "float32"}.get(one["dtype"], one["dtype"]),
        gpu=_LAYER_GPU,
        measured_bytes=one["measured_bytes"],
    )


def record(rows: Iterable[Row]) -> list[Recorded]:
    """Return what each row takes on an imaginary GPU of its kind; one process for all rows of a GPU.

    Raises:
        subprocess.CalledProcessError: a program failed; its traceback is on stderr.
    """
    by_gpu: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_gpu[_GPU_NAMES.get(row.gpu, row.gpu)].append(row)
    return [made for gpu, group in by_gpu.items() for made in _record(gpu, group)]


def _record(gpu: str, rows: Sequence[Row]) -> list[Recorded]:
    from memsim.gpus import find_gpu
    from memsim.imaginary_gpu import child_environment

    known = replace(find_gpu(gpu), memory_bytes=MEMORY_BYTES)
    jobs = [(row.op, row.shapes, row.dtype, row.mode) for row in rows]
    process = subprocess.run(
        [sys.executable, __file__, "--child"],
        env={**child_environment(known), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        input=json.dumps(jobs),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(process.stdout.splitlines()[-1])
    return [Recorded(row=row, recorded_bytes=nbytes) for row, nbytes in zip(rows, found, strict=True)]


def _child(jobs: Iterable[tuple[str, dict[str, Any], str, str]]) -> None:
    """Run every job in this process, on the GPU it sees, and print the bytes of each as one line of JSON."""
    print(json.dumps([_run(*job) for job in jobs]))


def _run(op: str, shapes: dict[str, Any], dtype: str, mode: str) -> int:
    import gc

    import torch
    from single_layer_programs import PROGRAMS

    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # each script of a row was a process of its own
    if torch.cuda.memory_allocated():
        gc.unfreeze()
        gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == 0, "something of the row before is alive"
    gc.freeze()  # what is left are modules: looking through them for each row took most of the seconds
    build = PROGRAMS[op]
    if mode in ("forward", "backward"):
        build({**shapes, "mode": "full"}, getattr(torch, dtype))()  # its speed was measured first: workspaces
        gc.collect()
    function = build({**shapes, "mode": mode}, getattr(torch, dtype))
    if mode in ("allocated", "delta"):
        before = torch.cuda.memory_allocated() if mode == "delta" else 0
        _output = function()
        return int(torch.cuda.memory_allocated()) - before
    peaks = []
    for _ in range(NUM_CALLS):
        torch.cuda.reset_peak_memory_stats()
        function()
        peaks.append(torch.cuda.max_memory_allocated())
    return int(statistics.median(peaks))


def main() -> int:
    """Print every row; return 1 if one is off of which nothing is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--op", action="append", help="only rows of this op")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _child(json.load(sys.stdin))
        return 0
    made = record(row for row in read_rows() if not options.op or row.op in options.op)
    for one in made:
        row = one.row
        text = f"{row.case_id:16} {row.op:28} {row.mode:9} {row.measured_bytes:15,} {one.recorded_bytes:15,}"
        print(f"{text} {one.difference_bytes:15,} {one.error:8.3%}  {one.known}")
    within = [one for one in made if not one.known]
    exact = sum(1 for one in made if abs(one.error) < 1e-6)
    print(f"{len(within)} of {len(made)} rows within {TOLERANCE:.0%}, {exact} of them equal in float32.")
    return 1 if any(one.known == "not known" for one in made) else 0


if __name__ == "__main__":
    sys.exit(main())
