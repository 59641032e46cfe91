"""The programs behind the logs of real GPUs, run again on the imaginary GPU: every request, in order, and every peak.

The logs: allocator histories that two students of a course recorded on their GPUs (`snapshots.json` names repository,
commit and program). The modules in `logged_programs` were written from their descriptions; a run of them starts from
an empty allocator, goes through the same warm-ups, and from where the log begins its requests must be the log's.
Which of the two GPUs a log is from shows in it: the cuBLAS workspace of 8,519,680 bytes of an A100, or the 32 MiB of
an H100.

One of the ten logs cannot be rebuilt as a plain module: its older script compiled the model. The log shows Triton's
autotuning, which clears the GPU's cache with a buffer of 256 MiB before each measurement
(`triton.testing.do_bench`), and the fused kernels keep fewer tensors.
"""

import json
from pathlib import Path

import pytest
from conftest import SHARED, needs_shared
from gpu_fixture import TESTED_TORCH, installation, on_gpu  # noqa: F401

from memsim.allocator import AllocatorConfig
from memsim.ledger import Phase
from memsim.simulation import Request, Script, replay
from memsim.simulation.script import EMPTY_CACHE
from memsim.step.trace import Span, TraceDevice

MIB = 2**20
GIB = 2**30
FOLDER = SHARED / "ground_truth" / "replay"
COURSE = "Wedsonlin_results_medium_{}_memory_snapshot.json"
OWN = "kkaitlyn111_memory_files_memory_ctx128_{}.json"
COMPILED = "kkaitlyn111_cs336_systems_memory_logs_memory_ctx128_forward.json"

PROGRAMS = {
    "A100": [
        (("medium", {"length": 128, "train": False, "autocast": False}), [COURSE.format("128_inference")]),
        (("medium", {"length": 128, "train": True, "autocast": False}), [COURSE.format("128_training")]),
        (("medium", {"length": 512, "train": False, "autocast": True}), [COURSE.format("512_inference")]),
        (("medium", {"length": 512, "train": True, "autocast": True}), [COURSE.format("512_training")]),
    ],
    "H100": [
        (("large", {"train": False}), [OWN.format("forward"), OWN.format("forward_")]),
        (("large", {"train": False, "autocast": True}), [OWN.format("forward_mixed")]),
        (("large", {"train": True}), [OWN.format("fullstep")]),
        (("large", {"train": True, "after_forward": True}), [OWN.format("fullstep_")]),
    ],
}
NAMES = [name for programs in PROGRAMS.values() for _, names in programs for name in names]
LOGGED_TORCH = {"A100": "2.11", "H100": "2.6"}


def read_log(name):
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def sizes_of(log):
    """The bytes of every alloc of a log, and minus them where the block is let go."""
    size, sizes = {}, []
    for kind, address, nbytes in log["events"]:
        if kind == "a":
            size[address] = nbytes
            sizes.append(nbytes)
        elif kind == "r":
            sizes.append(-nbytes)
    return sizes


def recorded_sizes(run):
    size, sizes = {}, []
    for key, nbytes in run["requests"]:
        size[key] = nbytes or size[key]
        sizes.append(nbytes or -size[key])
    return sizes[run["num_before"] :]


def simulated(run, torch_version):
    """The same requests through memsim's own allocator, as the torch of the log has it."""
    requests = [Request(key, nbytes, None) for key, nbytes in run["requests"]]
    if run["empties_cache"]:
        requests.insert(run["num_before"], Request(EMPTY_CACHE, 0, None))
    script = Script(
        requests=requests,
        spans=[
            Span(step=1, phase=Phase.LOAD, event_index=0),
            Span(step=1, phase=Phase.FORWARD, event_index=run["num_before"]),
        ],
        num_keys=len(requests),
    )
    device = TraceDevice(name="", total_bytes=80 * GIB, compute_capability="", torch_version=torch_version)
    return replay(script, device, AllocatorConfig()).phases[-1]


@needs_shared
@pytest.mark.parametrize("gpu", PROGRAMS)
def test_the_programs_behind_the_logs_ask_for_what_the_logs_show(on_gpu, gpu):  # noqa: F811
    programs = [program for program, _ in PROGRAMS[gpu]]
    script = f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nimport logged_runs\n"
    found = on_gpu(script + f"print(json.dumps(logged_runs.record({programs!r})))", gpu)
    for run, (_, names) in zip(found["runs"], PROGRAMS[gpu], strict=True):
        phase = simulated(run, LOGGED_TORCH[gpu])
        for name in names:
            log = read_log(name)
            if found["torch"].startswith(TESTED_TORCH):
                assert recorded_sizes(run) == sizes_of(log), name
            expected = log["expected"]
            for total in ("peak_allocated", "peak_reserved", "allocated_start", "allocated_end"):
                assert run[total] == pytest.approx(expected[total], rel=0.005), (name, total)
            assert phase.peak_allocated_bytes == pytest.approx(expected["peak_allocated"], rel=0.005), name
            assert phase.peak_reserved_bytes == pytest.approx(expected["peak_reserved"], rel=0.005), name


@needs_shared
def test_the_one_log_that_is_left_out_is_of_a_compiled_model():
    assert {path.name for path in FOLDER.glob("*.json")} == {COMPILED, *NAMES}
    triton_clears_with = 256 * MIB
    assert sizes_of(read_log(COMPILED)).count(triton_clears_with) == 37
    assert all(triton_clears_with not in sizes_of(read_log(name)) for name in NAMES)
