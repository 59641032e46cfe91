"""Steps recorded on the CPU against the log of PyTorch's own CPU allocator, and whose memory each storage was."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from memsim.ledger import Category, Phase
from memsim.record.cpu import CpuRecording
from memsim.step.peaks import occupancy


class Net(torch.nn.Module):
    def __init__(self, checkpointed=False):
        super().__init__()
        self.up = torch.nn.Linear(30, 50)
        self.down = torch.nn.Linear(50, 7)
        self.register_buffer("scale", torch.ones(7))
        self.checkpointed = checkpointed

    def forward(self, x):
        if self.checkpointed:
            hidden = checkpoint(lambda x: torch.relu(self.up(x)), x, use_reentrant=False, preserve_rng_state=False)
        else:
            hidden = torch.relu(self.up(x))
        return self.down(hidden) * self.scale


def train(model, optimizer, num_steps):
    for _ in range(num_steps):
        model(torch.randn(11, 30)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def allocator_log(function):
    """Return what PyTorch's CPU allocator reports while a function runs: bytes that came, negative ones that went."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    return [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]


def recorded(model, optimizer, function, **options):
    with CpuRecording(**options) as recording:
        recording.find(model, optimizer)
        function()
    return recording.recording()


def changes(recording):
    counted = [e for e in recording.trace.events if e.action != "free_completed" and e.holder.line]
    return [e.nbytes if e.action == "alloc" else -e.nbytes for e in counted]


def scratch_between(log, seen):
    """Return what the log holds between the events that were seen, which must be in it in their order."""
    between = [[]]
    for nbytes in log:
        if len(between) <= len(seen) and nbytes == seen[len(between) - 1]:
            between.append([])
        else:
            between[-1].append(nbytes)
    assert len(between) == len(seen) + 1, f"event {len(between) - 1} of {len(seen)} is not in the log"
    return [scratch for scratch in between if scratch]


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        (torch.optim.Adagrad, {}),
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.Adafactor, {}),
    ],
)
def test_every_event_of_two_steps_is_in_the_allocators_own_log_in_the_same_order(optimizer, options):
    def fresh():
        model = Net()
        return model, optimizer(model.parameters(), lr=0.1, **options)

    model, stepping = fresh()
    log = allocator_log(lambda: train(model, stepping, 2))
    model, stepping = fresh()
    scratch = scratch_between(log, changes(recorded(model, stepping, lambda: train(model, stepping, 2))))
    # All that is missing are single numbers that operators wrap in a tensor (8 bytes), convert (4) and give back.
    missing = [nbytes for between in scratch for nbytes in between]
    assert {abs(nbytes) for nbytes in missing} <= {4, 8}
    assert sum(missing) == 0


def test_a_recomputed_layer_is_recorded_too():
    model = Net(checkpointed=True)
    stepping = torch.optim.SGD(model.parameters(), lr=0.1)
    log = allocator_log(lambda: train(model, stepping, 1))
    model = Net(checkpointed=True)
    stepping = torch.optim.SGD(model.parameters(), lr=0.1)
    recording = recorded(model, stepping, lambda: train(model, stepping, 1))
    assert changes(recording) == log
    # up's output, 11 x 50 float32 = 2200 bytes, is made in forward and again in backward, where ReLU's result is kept.
    kept = [
        e.phase
        for e in recording.trace.events
        if e.action == "alloc" and e.nbytes == 2200 and e.holder.category is Category.ACTIVATION
    ]
    assert Phase.BACKWARD in kept


def test_every_byte_has_its_category_phase_by_phase():
    model = Net()
    stepping = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    recording = recorded(model, stepping, lambda: train(model, stepping, 2))
    # up 30 x 50 + 50 and down 50 x 7 + 7 float32; a batch 11 x 30; the scale 7.
    weights, batch, scale = 4 * (1550 + 357), 4 * 330, 4 * 7
    always = {"parameter": weights, "buffer": scale}
    ends = {(p.step, p.phase): p.end_by_category for p in occupancy(recording.trace).phases}
    assert ends[1, Phase.LOAD] == {**always, "input": batch}
    # Kept for backward: ReLU's output 11 x 50 (up's own is not). The loss lives as long as its statement.
    assert ends[1, Phase.FORWARD] == {**always, "input": batch, "activation": 4 * (550 + 1)}
    assert ends[1, Phase.BACKWARD] == {**always, "gradient": weights, "activation": 4}
    assert ends[1, Phase.OPTIMIZER_STEP] == {**always, "gradient": weights, "optimizer_state": weights}
    assert ends[2, Phase.BACKWARD] == {**always, "gradient": weights, "optimizer_state": weights, "activation": 4}
    assert recording.num_steps == 2


def test_holders_say_module_name_shape_and_line():
    model = Net()
    stepping = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    recording = recorded(model, stepping, lambda: train(model, stepping, 1))
    holders = {e.holder.name: e.holder for e in recording.trace.events if e.holder.name}
    state = holders["momentum_buffer of up.weight"]
    assert (state.category, state.module, state.shape, state.dtype) == (
        Category.OPTIMIZER_STATE,
        "up",
        (50, 30),
        "float32",
    )
    assert "test_cpu_recording.py" in state.line
    assert state.line.endswith(" in train")
    weight = next(e.holder for e in recording.trace.events if e.holder.name == "up.weight")
    assert (weight.category, weight.line) == (Category.PARAMETER, "")


def test_a_batch_that_no_operator_of_the_run_made_is_input():
    model = Net()
    batch = torch.randn(11, 30)
    recording = recorded(model, None, lambda: model(batch).sum().backward())
    found = Counter(e.holder.category for e in recording.trace.events if e.action == "alloc" and e.nbytes == 1320)
    assert found == {Category.INPUT: 1}


def test_a_storage_that_grows_is_freed_and_made_anew():
    with CpuRecording() as recording:
        grown = torch.zeros(10)
        grown.resize_(100)
    actions = [(e.action, e.nbytes) for e in recording.recording().trace.events]
    assert actions == [("alloc", 40), ("free_requested", 40), ("free_completed", 40), ("alloc", 400)]


def test_nothing_stays_behind_when_a_recording_ends():
    modules = torch.nn.modules.module
    hooks = (modules._global_forward_pre_hooks, modules._global_forward_hooks)
    before = [len(h) for h in hooks], torch.autograd.backward, torch.optim.Optimizer.zero_grad
    with CpuRecording() as recording:
        kept = torch.zeros(10)
        assert [len(h) for h in hooks] != before[0]
    num_events = len(recording.recording().trace.events)
    del kept
    assert len(recording.recording().trace.events) == num_events
    assert ([len(h) for h in hooks], torch.autograd.backward, torch.optim.Optimizer.zero_grad) == before


def test_statistics_are_those_of_the_replay():
    model = Net()
    stepping = torch.optim.Adam(model.parameters())
    trace = recorded(model, stepping, lambda: train(model, stepping, 2), with_lines=False).trace
    found = occupancy(trace)
    assert found.peak_allocated_bytes == trace.stats.peak_allocated_bytes == trace.stats.peak_reserved_bytes
    assert found.phases[-1].end_allocated_bytes == trace.stats.allocated_bytes
    assert all(not e.holder.line for e in trace.events)
