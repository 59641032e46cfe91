"""Recordings on an imaginary GPU, against unwatched runs and fresh processes; and what happens when things go wrong."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from gpu_fixture import installation, on_gpu  # noqa: F401
from recorder_fixture import BERT, LLAMA, T5, job, recorder, small_gpu  # noqa: F401

from memsim.errors import MemsimError, ModelError, UsageError
from memsim.gpus import find_gpu
from memsim.ledger import Category, Phase
from memsim.record.job import job_of
from memsim.record.recorder import Recorder
from memsim.record.training.totals import record_totals
from memsim.step.peaks import held_at, occupancy
from memsim.units import MIB

pytest.importorskip("transformers", minversion="5.0")

JOBS = {
    "llama": job(),
    "llama in bf16, checkpointed": job(dtype="bfloat16", activation_checkpointing=True),
    "llama with autocast and eager attention": job(autocast="bfloat16", attn_implementation="eager"),
    "bert": job(BERT, seq_len=100),
    "t5": job(T5, batch_size=3),
    "llama with AdamW, clipped, accumulated": job(
        kind="run", gradient_accumulation_steps=2, max_grad_norm=1.0, optimizer="torch.optim.AdamW"
    ),
    "llama with Accelerate": job(kind="run", loop="accelerate", autocast="bfloat16", max_grad_norm=1.0),
    "llama with the Trainer": job(kind="run", loop="trainer", optimizer="adafactor", gradient_accumulation_steps=2),
    "bert with SGD, gradients kept": job(BERT, kind="run", optimizer="sgd", zero_grad_set_to_none=False),
}

UNWATCHED = """
import sys
from memsim.record.job import job_of
from memsim.record.training.build import build_model, place
from memsim.record.training.inputs import example_batch
from memsim.record.training.loops import start_loop
from memsim.record.watch.values import Values

values = Values(torch)

def run(job):
    model = place(build_model(job.config, job.training), "cuda")
    loop = start_loop(model, job.training, with_optimizer=job.kind == "run")
    batch = example_batch(model, job.training)
    if job.kind == "program":
        for step in range(4):
            if step >= 2:
                loop.zero_grad()
            loop.micro_step(batch)
    else:
        for step in range(job.num_steps):
            for _ in range(job.training.gradient_accumulation_steps):
                loop.micro_step(batch)
            loop.optimizer_step()
            loop.zero_grad()
    return torch.cuda.memory_stats()

found = []
for job in json.loads(JOBS):
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    statistics = run(job_of(job))
    kinds = ("requested_bytes", "allocated_bytes", "reserved_bytes")
    found.append([statistics["allocation.all.allocated"], *(statistics[f"{kind}.all.peak"] for kind in kinds)])
print(json.dumps(found))
"""


def counted(recorded):
    """Return what the recorded process's own statistics say, the number of allocations first."""
    stats = recorded.trace.stats
    num_allocations = sum(event.action == "alloc" for event in recorded.trace.events)
    return [num_allocations, stats.peak_requested_bytes, stats.peak_allocated_bytes, stats.peak_reserved_bytes]


def section(recorded, number):
    """Return the events of a section, without addresses."""
    starts = [start.event_index for start in recorded.trace.sections] + [len(recorded.trace.events)]
    events = recorded.trace.events[starts[number] : starts[number + 1]]
    return [(event.action, event.nbytes, event.phase, event.holder) for event in events]


def test_being_watched_changes_no_allocation(recorder, on_gpu):  # noqa: F811
    script = f"JOBS = {json.dumps([one.to_dict() for one in JOBS.values()])!r}\n{UNWATCHED}"
    unwatched = on_gpu(script, memory_bytes=2**40)
    found = [counted(recorder.record(one)) for one in JOBS.values()]
    assert dict(zip(JOBS, found, strict=True)) == dict(zip(JOBS, unwatched, strict=True))


def test_a_recording_does_not_depend_on_what_was_recorded_before(recorder):  # noqa: F811
    wanted = JOBS["llama with AdamW, clipped, accumulated"]
    recorder.record(JOBS["bert"])
    first = recorder.record(wanted)
    again = recorder.record(wanted)
    with Recorder(find_gpu("A100")) as fresh:
        alone = fresh.record(wanted)
    assert len(alone.trace.events) > 1000
    assert first.trace == again.trace == alone.trace  # every address, link, phase, holder and statistic


TICKS = """
from pathlib import Path
from memsim.record.job import job_of
from memsim.record.recording import read_recording
from memsim.record.training.session import Session

session = Session()
wanted = job_of(json.loads(JOB))
session.record(wanted, Path("ticks.json"))
with_ticks = session._history.ticks is not None
session._history.ticks = None
session.record(wanted, Path("statistics.json"))
one, other = (read_recording(Path(name)) for name in ("ticks.json", "statistics.json"))
print(json.dumps([with_ticks, len(one.trace.events) > 1000, one == other]))
"""


def test_positions_that_the_history_carries_are_those_of_the_statistics(on_gpu):  # noqa: F811
    wanted = JOBS["llama with AdamW, clipped, accumulated"]
    assert on_gpu(f"JOB = {json.dumps(wanted.to_dict())!r}\n{TICKS}", memory_bytes=2**40) == [True, True, True]


def test_a_program_job_names_its_sections_and_ends_steadily(recorder):  # noqa: F811
    recorded = recorder.record(job())
    names = [start.name for start in recorded.trace.sections]
    assert names == ["load", "first", "accumulate", "zero_grad", "steady", "zero_grad", "steady"]
    assert section(recorded, 4) == section(recorded, 6)
    assert len(section(recorded, 4)) > 100
    # A micro-step begins with its batch: ids, mask and labels of 2 x 64 int64 each, 8 bytes a number.
    assert [event[:3] for event in section(recorded, 4)[:3]] == [("alloc", 2 * 64 * 8, Phase.FORWARD)] * 3
    assert {event[0] for event in section(recorded, 3)} == {"free_requested", "free_completed"}
    gradients = {holder.name for _, _, _, holder in section(recorded, 3)}
    # 3 layers with 9 parameters, the embedding, the last norm, the head.
    assert len(gradients) == 3 * 9 + 3


def test_a_run_names_the_sections_of_every_step(recorder):  # noqa: F811
    recorded = recorder.record(JOBS["llama with AdamW, clipped, accumulated"])
    names = [start.name for start in recorded.trace.sections]
    assert names == [
        *("load", "first", "accumulate", "optimizer_step", "zero_grad"),
        *("steady", "accumulate", "optimizer_step", "zero_grad"),
    ]
    assert recorded.num_steps == 2
    made = [event for event in section(recorded, 3) if event[0] == "alloc"]
    states = [e for e in made if e[3].category is Category.OPTIMIZER_STATE]
    # exp_avg and exp_avg_sq of 30 parameters; `step` is on the CPU where the optimizer is not fused.
    assert len(states) == 2 * 30


def test_the_largest_tensors_of_a_peak_have_shape_dtype_op_and_module(recorder):  # noqa: F811
    found = occupancy(recorder.record(job(dtype="bfloat16", seq_len=256, batch_size=8)).trace)
    assert found.phase is Phase.BACKWARD
    tensors = [tensor for tensor in found.held if tensor.holder.category is not Category.WORKSPACE]
    for tensor in tensors[:10]:
        holder = tensor.holder
        numel = 1
        for size in holder.shape or (0,):
            numel *= size
        assert numel * {"bfloat16": 2, "float32": 4}[holder.dtype] == tensor.requested_bytes
        assert holder.module
        assert holder.op or holder.category is Category.PARAMETER
    # The loss is taken of 8 x 256 rows of 8,000 float32 numbers: their logarithms, and the gradients of both.
    shapes = [(tensor.holder.shape, tensor.holder.dtype) for tensor in tensors[:3]]
    assert shapes == [((8 * 256, 8000), "float32")] * 3


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (job(BERT, seq_len=129), UsageError, "128"),
        (job(freeze=("model.nothing",)), UsageError, "model.nothing"),
        (job({**LLAMA, "hidden_size": 250}), ModelError, "llama"),
        (job({"model_type": "nothing_such"}), MemsimError, "nothing_such"),
        (job(task="ctc"), ModelError, "ctc"),
        (job(attn_implementation="flash_attention_2"), ModelError, "FlashAttention2|flash_attn"),
        (job({**LLAMA, "pad_token_id": 8001}), MemsimError, "Llama|llama"),
    ],
)
def test_what_cannot_be_recorded_is_an_error_in_few_lines_and_the_next_job_works(recorder, wrong, error, says):  # noqa: F811
    recorder.record(job(BERT))
    worker = recorder.process_id
    with pytest.raises(error, match=says) as raised:
        recorder.record(wrong)
    assert str(raised.value).count("\n") <= 2
    assert recorder.record(job(BERT)).model_class == "BertForMaskedLM"
    assert recorder.process_id == worker


@pytest.mark.usefixtures("installation")
def test_out_of_memory_is_a_result_and_the_next_job_starts_clean():
    # 6.2 million float32 parameters are 24 MiB; gradients and two states of AdamW make it 95 MiB.
    with Recorder(small_gpu(80 * MIB), limited=True) as limited:
        recorded = limited.record(job(kind="run"))
        small = limited.record(job(BERT, kind="run"))
    assert recorded.oom is not None
    assert recorded.oom.phase in {Phase.BACKWARD, Phase.OPTIMIZER_STEP}
    assert recorded.oom.total_bytes == 80 * MIB
    assert recorded.num_steps == 0
    assert occupancy(recorded.trace).peak_reserved_bytes <= 80 * MIB
    assert recorded.trace.stats.num_ooms == 1
    assert small.oom is None
    assert small.num_steps == 2


TOTALS = """
from dataclasses import asdict
from memsim.record.job import job_of
from memsim.record.training.totals import record_totals
from memsim.record.watch.values import Values

values = Values(torch)
print(json.dumps([asdict(one) for one in record_totals(job_of(json.loads(JOB)), "cuda")]))
"""


def test_totals_of_a_device_without_history_are_those_of_the_recording(recorder, on_gpu):  # noqa: F811
    wanted = JOBS["llama"]
    totals = on_gpu(f"JOB = {json.dumps(wanted.to_dict())!r}\n{TOTALS}")
    trace = recorder.record(wanted).trace
    ends = [start.event_index for start in trace.sections[1:]] + [len(trace.events)]
    assert [one["name"] for one in totals] == [start.name for start in trace.sections]
    for one, end in zip(totals, ends, strict=True):
        assert one["allocated_bytes"] == sum(tensor.allocated_bytes for tensor in held_at(trace, end - 1)), one
    assert max(one["peak_allocated_bytes"] for one in totals) == trace.stats.peak_allocated_bytes


@pytest.mark.parametrize(("device", "says"), [("mps", "no mps device"), ("xpu", "no xpu device"), ("hpu", "mps, xpu")])
def test_a_device_that_is_not_there_is_named(device, says):
    with pytest.raises(MemsimError, match=says):
        record_totals(job(), device)


DOUBTS = """
from memsim.record.watch.functions import Doubts, seeing_functions
from memsim.record.watch.history import History
from memsim.record.watch.hooks import Watch

watch = Watch(torch, position=History(torch).position)
doubts = Doubts(torch, lambda: "model.layers.3.moe")
scores, ids = torch.ones(4, 8, device="cuda"), torch.ones(4, 8, dtype=torch.long, device="cuda")
notes = []
with seeing_functions(torch, watch.sightings, doubts):
    for step in (
        lambda: (ids == 1).nonzero(),
        lambda: ids.sum().item(),
        lambda: scores.softmax(-1).sum(),
        lambda: scores.sum().item(),
        lambda: scores.topk(2).indices.eq(0).nonzero(),
    ):
        step()
        notes.append(list(doubts.notes))
print(json.dumps(notes))
"""


def test_what_depends_on_values_that_are_not_computed_is_noted(on_gpu):  # noqa: F811
    *quiet, read, sized = on_gpu(DOUBTS)
    assert quiet == [[], [], []]
    assert read == ["model.layers.*.moe reads values back from the GPU (item): they were 0 there."]
    assert sized[1:] == [
        "model.layers.*.moe makes tensors whose size depends on values (nonzero): all choices fell on the first."
    ]


def test_a_worker_that_was_killed_is_an_error_and_replaced(recorder):  # noqa: F811
    recorder.record(job(BERT))
    os.kill(recorder.process_id, signal.SIGKILL)
    with pytest.raises(MemsimError, match="killed, most likely because this machine ran out of memory"):
        recorder.record(job(BERT))
    assert recorder.record(job(BERT)).trace.events


@pytest.mark.usefixtures("installation")
def test_a_worker_that_takes_too_long_is_ended():
    with Recorder(find_gpu("A100"), timeout_seconds=0.3) as slow:
        with pytest.raises(MemsimError, match=r"longer than 0\.3 seconds"):
            slow.record(job(BERT))
        assert slow.process_id is None


@pytest.mark.usefixtures("installation")
def test_ctrl_c_ends_the_worker():
    workers = []

    def interrupt(_number, _frame):
        workers.append(running.process_id)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Recorder(find_gpu("A100")) as running:
            running.progress = lambda _text: signal.setitimer(signal.ITIMER_REAL, 1.0)
            with pytest.raises(KeyboardInterrupt):
                running.record(job(BERT))
            assert running.process_id is None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    (worker,) = workers
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_what_a_model_prints_does_not_get_among_the_answers():
    script = (
        "import os\nfrom memsim.record.training.worker import _channels\nasked, answers = _channels()\n"
        "print('noise', flush=True)\nos.system('echo more noise')\nassert input is not None\n"
        "answers.write(asked.readline())\nanswers.flush()\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], input="job\n", capture_output=True, text=True, check=True, timeout=60
    )
    assert process.stdout == "job\n"
    assert process.stderr == "noise\nmore noise\n"


def test_a_worker_without_a_gpu_says_so():
    process = subprocess.run(
        [sys.executable, "-m", "memsim.record.training.worker"],
        input="",
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    answer = json.loads(process.stdout)
    assert answer["kind"] == "MemsimError"
    assert "no CUDA device" in answer["error"]


def test_a_job_survives_json():
    wanted = job(
        {**LLAMA, "eos_token_id": [1, 2], "rope_parameters": {"rope_theta": 1e4}}, freeze=("model.embed_tokens",)
    )
    assert job_of(json.loads(json.dumps(wanted.to_dict()))) == wanted


def test_recording_needs_no_torch_in_this_process():
    script = "import sys, memsim.record.recorder; print(any(name in sys.modules for name in ('torch', 'transformers')))"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert process.stdout == "False\n"


def test_a_recorder_is_told_what_begins(recorder):  # noqa: F811
    said = []
    before, recorder.progress = recorder.progress, said.append
    try:
        begun = time.monotonic()
        recorded = recorder.record(job(BERT))
        assert 0 < recorded.seconds <= time.monotonic() - begun
    finally:
        recorder.progress = before
    assert said == ["recording batch 2 x 64"]
