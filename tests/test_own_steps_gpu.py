"""A user's own steps on a CUDA device, which an imaginary GPU stands for: PyTorch's real CUDA build and allocator."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_fixture import installation, on_gpu  # noqa: F401

# ruff: noqa: F811

SETUP = """
import random
import memsim
from memsim.step.peaks import occupancy
from memsim.integrations.module import ModuleRun, verify_module

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(300, 5000)
        self.norm = torch.nn.BatchNorm1d(5000)
        self.down = torch.nn.Linear(5000, 70)
    def forward(self, x):
        return self.down(torch.relu(self.norm(self.up(x))))

def told(comparison):
    wrong = [str(row) for row in comparison.judged if row.difference_bytes]
    return {"passed": comparison.passed, "verdict": comparison.verdict, "wrong": wrong,
            "device": comparison.device, "steps": comparison.num_steps,
            "modules": [str(m) for m in comparison.modules],
            "state": {s.name: [s.predicted_bytes, s.measured_bytes] for s in comparison.optimizer_state}}
"""

USED_BEFORE = """
# A program that has been running for a while: blocks of many sizes, some freed, some of whose rest is in use again.
random.seed(0)
kept = []
for _ in range(400):
    kept.append(torch.empty(random.choice([3, 600, 70_000, 1_500_000, 9_000_000]), dtype=torch.uint8, device="cuda"))
    if random.random() < 0.6:
        kept.pop(random.randrange(len(kept)))
"""


def test_static_memory_and_the_optimizers_step_are_predicted_to_the_byte(on_gpu):
    found = on_gpu(
        SETUP
        + """
model = Net().cuda()
result = {}
for name, build in {
    "AdamW": torch.optim.AdamW,
    "fused": lambda p: torch.optim.AdamW(p, fused=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adafactor": torch.optim.Adafactor,
}.items():
    result[name] = told(verify_module(model, build(model.parameters()), torch.randn(64, 300)))
print(json.dumps(result))
"""
    )
    # 300 x 5000 + 5000 + 2 x 5000 + 5000 x 70 + 70 float32; the step of foreach AdamW is on the host.
    weights = 4 * (1_500_000 + 5000 + 10_000 + 350_000 + 70)
    assert found["AdamW"]["state"] == {"exp_avg": [weights] * 2, "exp_avg_sq": [weights] * 2}
    assert found["fused"]["state"]["step"] == [24, 24]
    for name, one in found.items():
        assert (one["modules"], one["device"], one["steps"]) == ([], "imaginary", 2), name
    # The kernels of Adafactor's norms take scratch memory inside themselves, which no rule of its step has.
    adafactor = found.pop("Adafactor")
    assert all("Category.TEMPORARY" in row for row in adafactor["wrong"])
    assert [(one["wrong"], one["passed"]) for one in found.values()] == [([], True)] * 3


def test_a_program_that_has_run_before_is_measured_from_there_on(on_gpu):
    found = on_gpu(
        SETUP
        + USED_BEFORE
        + """
model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters())
def step():
    model(torch.randn(64, 300, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
step()
result = []
for _ in range(2):
    before = torch.cuda.memory_stats()
    torch.cuda.reset_peak_memory_stats()
    with memsim.measure_steps(model, optimizer) as run:
        step()
        step()
        stats = torch.cuda.memory_stats()
    trace = run.measurement.trace
    replayed = occupancy(trace)
    result.append({
        # The first batch is made before the first forward.
        "found": [replayed.phases[0].end_allocated_bytes, before["allocated_bytes.all.current"] + 64 * 300 * 4],
        "allocated": [replayed.phases[-1].end_allocated_bytes, stats["allocated_bytes.all.current"]],
        "peak": [replayed.peak_allocated_bytes, stats["allocated_bytes.all.peak"]],
        "requested": [replayed.peak_requested_bytes, stats["requested_bytes.all.peak"]],
        "reserved": [replayed.peak_reserved_bytes, stats["reserved_bytes.all.peak"]],
        **told(run.compare()),
    })
print(json.dumps(result))
"""
    )
    for one in found:
        for name in ("found", "allocated", "peak", "requested", "reserved"):
            replayed, real = one[name]
            assert replayed == real, name
        assert (one["wrong"], one["passed"], one["steps"]) == ([], True, 2)


START = """
model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(64, 300, device="cuda")
model(batch).sum().backward()
optimizer.step()  # the gradients stay
whole = torch.empty(115 * 2**20, dtype=torch.uint8, device="cuda")
del whole
gone = [torch.empty(25 * 2**20, dtype=torch.uint8, device="cuda") for _ in range(4)]
kept.append(torch.empty(15 * 2**20, dtype=torch.uint8, device="cuda"))  # behind 100 MiB that are free
del gone

real = {}
for block in (block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]):
    if block["state"] == "active_allocated":
        real[block["address"]] = block["size"]
def bytes_of(tensors):
    addresses = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    return sum(real.pop(address) for address in list(real) if address in addresses)

state = [tensor for one in optimizer.state.values() for tensor in one.values() if tensor.is_cuda]
there = {
    "parameter": bytes_of(model.parameters()),
    "buffer": bytes_of(model.buffers()),
    "gradient": bytes_of(parameter.grad for parameter in model.parameters()),
    "optimizer_state": bytes_of(state),
    "input": bytes_of([batch, *kept]),  # waiting for the first forward
    "workspace": sum(real.values()),
}
live, requested = torch.cuda.memory_allocated(), torch.cuda.memory_stats()["requested_bytes.all.current"]
torch.cuda.reset_peak_memory_stats()
with memsim.measure_steps(model, optimizer) as run:
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    stats = torch.cuda.memory_stats()
trace = run.measurement.trace
replayed = occupancy(trace)
load = replayed.phases[0]
first = held_at(trace, -1)
names = sorted(t.holder.name for t in first if t.holder.name)
again = occupancy(trace_of(json.loads(json.dumps(trace.to_dict()))))
print(json.dumps({
    "there": there, "load": load.end_by_category, "peak": load.by_category, "phase": load.phase.value,
    "live": [load.peak_allocated_bytes, load.end_allocated_bytes, live],
    "requested": [sum(t.requested_bytes for t in first), requested],
    "names": names,
    "after": [
        [replayed.peak_allocated_bytes, stats["allocated_bytes.all.peak"]],
        [replayed.peak_requested_bytes, stats["requested_bytes.all.peak"]],
        [replayed.peak_reserved_bytes, stats["reserved_bytes.all.peak"]],
        [replayed.phases[-1].end_allocated_bytes, stats["allocated_bytes.all.current"]],
    ],
    "held": [sum(t.allocated_bytes for t in replayed.held), replayed.peak_allocated_bytes],
    "shown": max(m.allocated_bytes - sum(m.by_category.values()) for m in timeline_of(trace, 50).moments),
    "saved": again == replayed,
    "segments": [
        sum(b["size"] for s in snapshot_of(trace)["segments"] for b in s["blocks"] if b["state"] == "active_allocated"),
        stats["allocated_bytes.all.current"],
    ],
    "requests": {kind.value: nbytes for kind, nbytes in requests_by_phase(trace)[0].peak.items()},
}))
"""


@pytest.mark.parametrize("config", ["", "roundup_power2_divisions:4", "expandable_segments:True"])
def test_what_is_there_when_a_measurement_begins_is_its_start_and_keeps_its_names(on_gpu, config):
    imports = """
from memsim.snapshot import snapshot_of
from memsim.step import trace_of
from memsim.step.peaks import held_at
from memsim.step.requests import requests_by_phase
from memsim.step.timeline import timeline_of
"""
    found = on_gpu(SETUP + USED_BEFORE + imports + START, PYTORCH_CUDA_ALLOC_CONF=config)
    there = {name: nbytes for name, nbytes in found["there"].items() if nbytes}
    assert found["phase"] == "load"
    assert found["load"] == found["peak"] == there
    assert len(set(found["live"])) == 1, found["live"]
    assert sum(there.values()) == found["live"][0]
    parameters = [f"{module}.{name}" for module in ("down", "norm", "up") for name in ("bias", "weight")]
    of_a_parameter = ("", "", "exp_avg of ", "exp_avg_sq of ")  # itself, its gradient and its state
    buffers = ["norm.num_batches_tracked", "norm.running_mean", "norm.running_var"]
    assert found["names"] == sorted(buffers + [prefix + name for prefix in of_a_parameter for name in parameters])
    for replayed, real in (found["requested"], *found["after"], found["held"], found["segments"]):
        assert replayed == real
    assert (found["shown"], found["saved"]) == (0, True)
    assert set(found["requests"]) == set(there)
    if config == "expandable_segments:True":  # whose blocks are split down to the last 512 bytes
        assert found["requests"] == there


def test_memory_that_runs_out_is_a_result_and_the_process_goes_on(on_gpu):
    found = on_gpu(
        SETUP
        + """
model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters())
before = torch.cuda.memory_allocated()
comparison = verify_module(model, optimizer, torch.randn(64, 300))
print(json.dumps({
    **told(comparison), "phase": comparison.oom.phase.value, "asked": comparison.oom.asked_bytes,
    "hooks": len(torch.nn.modules.module._global_forward_hooks),
    "judged": sorted({row.phase.value for row in comparison.judged}),
}))
""",
        # The weights take 7.5 MB of a segment of 20 MiB; with activations and gradients a second one is needed.
        memory_bytes=26 * 2**20,
    )
    assert (found["passed"], found["phase"], found["hooks"]) == (False, "backward", 0)
    assert found["verdict"] == "It ran out of memory in step 1, backward; a peak was not predicted."
    assert (found["wrong"], found["judged"]) == ([], ["load"])


def test_a_program_that_records_its_own_history_is_told_that_there_is_only_one(on_gpu):
    found = on_gpu(
        SETUP
        + """
model = Net().cuda()
torch.cuda.memory._record_memory_history()
kept = torch.zeros(10, device="cuda")
try:
    with memsim.measure_steps(model, torch.optim.SGD(model.parameters(), lr=0.1)):
        pass
except memsim.MemsimError as error:
    print(json.dumps(str(error)))
"""
    )
    assert "recorded already" in found


def test_the_callback_measures_a_trainer_on_a_gpu_and_ends_a_run_that_does_not_fit(on_gpu, tmp_path):
    script = (
        SETUP
        + """
import gc
import sys
sys.path.insert(0, TESTS)
import transformers
from test_trainer_callback import Rows
from memsim.integrations.trainer import DoesNotFitError, MemsimCallback

config = transformers.LlamaConfig(
    hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, vocab_size=5000)

def trainer(callback, **options):
    arguments = transformers.TrainingArguments(
        output_dir=FOLDER, report_to=[], save_strategy="no", max_steps=3, per_device_train_batch_size=2,
        disable_tqdm=True, logging_strategy="no", **options)
    model = transformers.LlamaForCausalLM(config)
    return transformers.Trainer(model=model, args=arguments, train_dataset=Rows(64), callbacks=[callback])

callback = MemsimCallback()
trainer(callback, optim="adamw_torch_fused", bf16=True).train()
measured = told(callback.comparison)
gc.collect()
torch.cuda.empty_cache()
blocker = torch.empty(torch.cuda.mem_get_info(0)[0] - 22 * 2**20, dtype=torch.uint8, device="cuda")
ended = trainer(MemsimCallback(stop_if_over=True))
try:
    ended.train()
except DoesNotFitError as error:
    measured["error"] = str(error)
print(json.dumps(measured))
"""
    )
    places = f"TESTS, FOLDER = {str(Path(__file__).parent)!r}, {str(tmp_path)!r}\n"
    found = on_gpu(places + script)
    assert (found["passed"], found["device"], found["steps"]) == (True, "imaginary", 2), found["verdict"]
    assert [row for row in found["wrong"] if "Category.TEMPORARY" not in row] == []
    assert "the run was ended before its first step: a step needs at least" in found["error"]
