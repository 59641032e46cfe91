"""A simulated run: every event of the allocator, saved and loaded, as a frame, and where memory runs out."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_step import KIB, MIB, run

import memsim
from memsim.allocator import AllocatorConfig
from memsim.errors import OutputError
from memsim.ledger import Category, Phase
from memsim.simulated_run import SimulatedRun
from memsim.simulation import Request, Script, replay
from memsim.simulation.script import EMPTY_CACHE
from memsim.snapshot import snapshot_of
from memsim.step import Holder, Span, TraceDevice
from memsim.step.peaks import held_at, occupancy
from memsim.step.timeline import running_bytes, timeline_of

W, BATCH, KEPT = 4 * MIB, 2 * KIB, 6 * MIB
FREE = ("free_requested", "free_completed")
# w, the kept activation and the gradient are above 1 MiB and below 10: one segment of 20 MiB serves the 14 MiB of all
# three. The batch is small: a segment of 2 MiB.
MICRO_STEP = [("alloc", BATCH), ("alloc", KEPT), ("alloc", W), *((f, KEPT) for f in FREE), *((f, BATCH) for f in FREE)]
EXPECTED = [
    ("segment_alloc", 20 * MIB),
    ("alloc", W),
    ("segment_alloc", 2 * MIB),
    *MICRO_STEP,
    *((f, W) for f in FREE),
    *MICRO_STEP,
    *((f, W) for f in FREE),
]
# After each event; a block counts as free from free_requested on.
PEAK = W + BATCH + KEPT + W
HELD = [W + BATCH, W + BATCH + KEPT, PEAK, *[2 * W + BATCH] * 2, *[2 * W] * 2]
ALLOCATED = [0, W, W, *HELD, W, W, *HELD, W, W]
RESERVED = [20 * MIB, 20 * MIB, *[22 * MIB] * 19]


def test_the_run_is_every_event_of_the_allocator_in_order():
    trace = run().trace
    assert [(event.action, event.nbytes) for event in trace.events] == EXPECTED
    spans = [(span.step, span.phase.value, span.event_index) for span in trace.spans]
    assert spans == [
        (1, "load", 0),
        (1, "forward", 2),
        (1, "backward", 5),
        (1, "optimizer_step", 10),
        (1, "zero_grad", 10),
        (2, "forward", 12),
        (2, "backward", 14),
        (2, "optimizer_step", 19),
        (2, "zero_grad", 19),
    ]


def test_after_every_event_it_says_what_is_allocated_and_reserved():
    allocated, reserved = running_bytes(run().trace)
    assert (allocated.tolist(), reserved.tolist()) == (ALLOCATED, RESERVED)


def test_its_peak_is_that_of_its_estimate():
    simulated = run()
    assert simulated.simulation.peak == simulated.estimate.peak
    assert simulated.simulation.peak.allocated_bytes == PEAK
    assert simulated.simulation.peak.device_bytes == 22 * MIB + 400 * MIB  # the usual CUDA context
    assert simulated.trace.stats.peak_allocated_bytes == PEAK


def test_a_frame_has_a_row_for_every_event_or_for_every_phase():
    frame = run().to_frame(details=True)
    assert list(zip(frame["action"], frame["nbytes"], strict=True)) == EXPECTED
    assert (frame["allocated_bytes"].tolist(), frame["reserved_bytes"].tolist()) == (ALLOCATED, RESERVED)
    assert frame["index"].tolist() == list(range(21))
    row = frame.iloc[3]
    assert (row["step"], row["phase"], row["category"], row["shape"], row["dtype"]) == (
        1,
        "forward",
        "input",
        [2, 256],
        "float32",
    )
    assert frame["name"][5] == "layer.w"
    assert frame["module"][4] == "layer"
    assert frame["op"][4] == "MmBackward0"
    assert frame["address"][4] - frame["address"][1] == W  # behind w, in the same segment
    phases = run().to_frame()
    assert phases["phase"].tolist()[:3] == ["load", "forward", "backward"]
    assert phases["peak_allocated_bytes"].tolist()[:3] == [W, W + BATCH + KEPT, PEAK]
    assert phases["activation_bytes"].tolist()[:3] == [0, KEPT, KEPT]


def test_a_saved_run_loads_back_as_it_was(tmp_path):
    simulated = run(gpu="1GiB")
    simulated.save(tmp_path / "run.json")
    loaded = memsim.load(tmp_path / "run.json")
    assert isinstance(loaded, SimulatedRun)
    assert loaded.simulation == simulated.simulation
    assert loaded.to_dict(details=True) == simulated.to_dict(details=True)
    with pytest.raises(OutputError, match="exists"):
        simulated.save(tmp_path / "run.json")


def test_the_json_has_what_is_allocated_and_reserved_after_each_event():
    data = json.loads(json.dumps(run().to_dict()))
    events = data["trace"]["events"]
    assert (events["allocated_bytes"], events["reserved_bytes"]) == (ALLOCATED, RESERVED)
    assert (data["schema"], data["kind"], data["oom"], data["num_retries"]) == (1, "simulation", None, 0)
    assert "optimizer_state" not in data["estimate"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data.pop("trace"), "'trace'"),
        (lambda data: data.pop("estimate"), "'estimate'"),
        (lambda data: data.update(estimate={"results": [data["estimate"]]}), "not several"),
        (lambda data: data.update(num_retries=-1), "num_retries must not be negative"),
        (lambda data: data["trace"]["events"].update(action=[0]), "step trace"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, damage, said):
    data = run().to_dict()
    damage(data)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(data))
    with pytest.raises(OutputError, match=said):
        memsim.load(path)


def test_where_memory_runs_out_the_run_ends_with_the_request_that_failed():
    simulated = run(700 * MIB, gpu="1GiB")
    oom = simulated.oom
    assert oom is not None
    # 1 GiB less 400 MiB of context less the segments of 20 and 2 MiB.
    assert (oom.asked_bytes, oom.free_bytes) == (700 * MIB, (1024 - 400 - 22) * MIB)
    assert (oom.allocated_bytes, oom.reserved_bytes) == (W + BATCH, 22 * MIB)
    assert (oom.step, oom.phase.value, oom.module) == (1, "forward", "layer")
    assert [(event.action, event.nbytes) for event in simulated.trace.events][-2:] == [
        ("alloc", BATCH),
        ("oom", 700 * MIB),
    ]
    assert simulated.simulation.held.moment == "out_of_memory"
    assert simulated.simulation.held.by_category == {"parameter": W, "input": BATCH}
    # The estimate tells what a GPU would need: w, gradient and batch as above, and a segment of 700 MiB.
    assert simulated.estimate.fit.missing_bytes == (700 + 22 + 400 - 1024) * MIB


def test_the_allocator_has_the_gpu_without_its_context():
    assert run(gpu="1GiB").capacity_bytes == (1024 - 400) * MIB
    assert run().capacity_bytes is None
    # half of the GPU is less than the GPU without its context
    assert run(gpu="1GiB", alloc_conf="per_process_memory_fraction:0.5").capacity_bytes == 512 * MIB


def test_settings_of_the_allocator_change_the_run():
    actions = {event.action for event in run(alloc_conf="expandable_segments:True").trace.events}
    assert "segment_map" in actions
    assert "segment_alloc" not in actions


@pytest.mark.parametrize("num_moments", range(1, 25))
def test_a_timeline_of_few_moments_covers_every_event_and_keeps_the_peak(num_moments):
    timeline = timeline_of(run().trace, num_moments)
    assert len(timeline.moments) == min(num_moments, 21)
    firsts = [moment.first_event for moment in timeline.moments]
    assert firsts[0] == 0
    for moment, end in zip(timeline.moments, [*firsts[1:], 21], strict=True):
        assert moment.allocated_bytes == max(ALLOCATED[moment.first_event : end])
        assert moment.reserved_bytes == max(RESERVED[moment.first_event : end])
        assert ALLOCATED[moment.event_index] == moment.allocated_bytes == sum(moment.by_category.values())
    assert timeline.peak.event_index == 5
    assert [(s.phase.value, s.first_event, s.end_event) for s in timeline.stretches][3:] == [
        ("zero_grad", 10, 12),
        ("forward", 12, 14),
        ("backward", 14, 19),
        ("zero_grad", 19, 21),
    ]


CONFS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "roundup_power2_divisions:4",
    "large_segment_size_mb:40",
    "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
)
CATEGORIES = (Category.PARAMETER, Category.ACTIVATION, Category.TEMPORARY)


@st.composite
def scripts(draw):
    """Blocks of all pools that come and go, in five phases; now and then the cache is emptied."""
    requests, live = [], []
    sizes = st.sampled_from((1, 512, 40_000, MIB, 3 * MIB, 9 * MIB, 12 * MIB, 33 * MIB, 70 * MIB))
    for choice in draw(st.lists(st.integers(0, 9), min_size=5, max_size=60)):
        if choice == 0:
            requests.append(Request(EMPTY_CACHE, 0, None))
        elif choice < 4 and live:
            requests.append(Request(live.pop(draw(st.integers(0, len(live) - 1))), 0, None))
        else:
            key = sum(1 for request in requests if request.nbytes)
            requests.append(Request(key, draw(sizes), Holder(category=draw(st.sampled_from(CATEGORIES)))))
            live.append(key)
    fifth = len(requests) // 5
    phases = ((1, Phase.LOAD), (1, Phase.FORWARD), (1, Phase.BACKWARD), (2, Phase.FORWARD), (2, Phase.BACKWARD))
    spans = [Span(step=step, phase=phase, event_index=i * fifth) for i, (step, phase) in enumerate(phases)]
    return Script(requests=requests, spans=spans, num_keys=sum(1 for request in requests if request.nbytes))


@settings(max_examples=60, deadline=None)
@given(scripts(), st.sampled_from(CONFS), st.sampled_from((150 * MIB, 400 * MIB, 2**50)))
def test_the_events_read_back_by_other_books_give_the_same_figures(script, conf, total_bytes):
    device = TraceDevice(name="GPU", total_bytes=total_bytes, compute_capability="8.0", torch_version="2.13.0")
    simulation = replay(script, device, AllocatorConfig.parse(conf), keep_events=True)
    trace, peak = simulation.trace, simulation.peak
    books = occupancy(trace)
    assert (books.peak_requested_bytes, books.peak_allocated_bytes, books.peak_reserved_bytes) == (
        peak.requested_bytes,
        peak.allocated_bytes,
        peak.reserved_bytes,
    )
    assert books.phases == simulation.phases
    held = held_at(trace, len(trace.events) - 1) if simulation.oom else books.held
    assert sum(tensor.allocated_bytes for tensor in held) == simulation.held.allocated_bytes
    left = snapshot_of(trace)["segments"]
    assert sum(segment["total_size"] for segment in left) == trace.stats.reserved_bytes
    assert sum(segment["allocated_size"] for segment in left) == trace.stats.allocated_bytes
