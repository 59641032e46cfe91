"""Traces: replayed by PyTorch's rules into blocks, peaks and phases, and saved without loss."""

import json

import pytest

from memsim.errors import MemsimError, OutputError
from memsim.ledger import Category, Phase
from memsim.step import AllocatorSettings, AllocatorStats, Holder, StepTrace, TraceDevice, TraceEvent, trace_of
from memsim.step.blocks import BlockReplay, round_request
from memsim.step.peaks import BACKWARD, OUTSIDE, HeldTensor, by_category, by_module, occupancy

MIB = 2**20
BASE = 0x7F0000000000
PLAIN = AllocatorSettings()
STATS = AllocatorStats(
    peak_requested_bytes=0,
    peak_allocated_bytes=0,
    peak_reserved_bytes=0,
    allocated_bytes=0,
    reserved_bytes=0,
    num_alloc_retries=0,
    num_ooms=0,
)
DEVICE = TraceDevice(name="GPU", total_bytes=80 * 2**30, compute_capability="8.0", torch_version="2.13.0")


def event(action, address, nbytes, *, phase=Phase.FORWARD, step=1, holder=None):
    return TraceEvent(action=action, address=address, nbytes=nbytes, stream=0, step=step, phase=phase, holder=holder)


def free(address, nbytes, **kw):
    return [event("free_requested", address, nbytes, **kw), event("free_completed", address, nbytes, **kw)]


def trace(*events, spans=()):
    return StepTrace(device=DEVICE, settings=PLAIN, stats=STATS, spans=spans, events=tuple(events))


def sizes(replay):
    return replay.allocated_bytes, replay.reserved_bytes


def replayed(events, settings=PLAIN):
    """Return (allocated, reserved) after each event."""
    replay = BlockReplay(settings)
    result = []
    for item in events:
        replay.apply(item)
        result.append(sizes(replay))
    return result


def test_small_requests_share_a_two_mib_segment_and_merge_when_they_are_freed():
    # 1 B takes 512. 1 MiB fits behind it. The next MiB does not: 2,097,152 - 512 - 1,048,576 = 1,048,064 < 1 MiB.
    second = BASE + 4 * MIB
    events = [
        event("segment_alloc", BASE, 2 * MIB),
        event("alloc", BASE, 1),
        event("alloc", BASE + 512, MIB),
        event("segment_alloc", second, 2 * MIB),
        event("alloc", second, MIB),
        *free(BASE + 512, MIB),
        event("alloc", second + MIB, 300_000),  # 300,032 after rounding
        *free(BASE, 1),
        *free(second + MIB, 300_000),
        *free(second, MIB),
        event("segment_free", BASE, 2 * MIB),
        event("segment_free", second, 2 * MIB),
    ]
    assert replayed(events) == [
        (0, 2 * MIB),
        (512, 2 * MIB),
        (1_049_088, 2 * MIB),
        (1_049_088, 4 * MIB),
        (2_097_664, 4 * MIB),
        (1_049_088, 4 * MIB),
        (1_049_088, 4 * MIB),
        (1_349_120, 4 * MIB),
        (1_348_608, 4 * MIB),
        (1_348_608, 4 * MIB),
        (1_048_576, 4 * MIB),
        (1_048_576, 4 * MIB),
        (0, 4 * MIB),
        (0, 4 * MIB),
        (0, 2 * MIB),
        (0, 0),
    ]


def test_a_large_block_is_handed_out_whole_if_at_most_one_mib_would_remain():
    large = [event("segment_alloc", BASE, 20 * MIB)]
    assert replayed([*large, event("alloc", BASE, 19 * MIB)])[-1] == (20 * MIB, 20 * MIB)
    assert replayed([*large, event("alloc", BASE, 19 * MIB - 1024)])[-1] == (19 * MIB - 1024, 20 * MIB)


def test_a_request_of_the_split_limit_gets_its_whole_segment():
    limited = AllocatorSettings(max_split_bytes=20 * MIB)
    grown = [event("segment_alloc", BASE, 30 * MIB), event("alloc", BASE, 21 * MIB)]
    assert replayed(grown, limited)[-1] == (30 * MIB, 30 * MIB)
    assert replayed(grown)[-1] == (21 * MIB, 30 * MIB)


def test_mapped_ranges_that_touch_are_one_range():
    events = [
        event("segment_map", BASE, 20 * MIB),
        event("alloc", BASE, 15 * MIB),
        event("segment_map", BASE + 20 * MIB, 20 * MIB),
        event("alloc", BASE + 15 * MIB, 25 * MIB),  # 5 MiB of the first page and the second
        *free(BASE + 15 * MIB, 25 * MIB),
        event("segment_unmap", BASE + 20 * MIB, 20 * MIB),
    ]
    assert replayed(events)[-1] == (15 * MIB, 20 * MIB)
    assert max(replayed(events)) == (40 * MIB, 40 * MIB)


def test_blocks_fill_their_segment():
    replay = BlockReplay(PLAIN)
    for item in [event("segment_alloc", BASE, 20 * MIB), event("alloc", BASE, 3 * MIB)]:
        replay.apply(item)
    (segment,) = replay.segments()
    assert [(b.address, b.nbytes, b.state) for b in segment.in_order()] == [
        (BASE, 3 * MIB, "active_allocated"),
        (BASE + 3 * MIB, 17 * MIB, "inactive"),
    ]


@pytest.mark.parametrize(
    ("nbytes", "divisions", "rounded"),
    [
        (1, 0, 512),
        (513, 0, 1024),
        (1200 * MIB, 4, 1280 * MIB),  # PyTorch's notes on CUDA: 1200 lies between 1024 and 1280
        (1024 * MIB, 4, 1024 * MIB),
        (1200, 4, 1536),  # divisions begin above 512 bytes times their number
    ],
)
def test_requests_are_rounded_as_the_settings_say(nbytes, divisions, rounded):
    settings = AllocatorSettings(roundup_power2_divisions=(divisions,) * 16 if divisions else ())
    assert round_request(nbytes, settings) == rounded


@pytest.mark.parametrize(
    "broken",
    [
        [event("alloc", BASE, 1)],
        [event("segment_alloc", BASE, 2 * MIB), *free(BASE, 1)],
        [event("segment_alloc", BASE, 2 * MIB), event("alloc", BASE, 1), event("alloc", BASE, 1)],
        [event("segment_alloc", BASE, 2 * MIB), event("alloc", BASE, 1), event("segment_free", BASE, 2 * MIB)],
        [event("segment_free", BASE, 2 * MIB)],
    ],
)
def test_a_trace_with_a_missing_event_is_refused(broken):
    with pytest.raises(MemsimError, match="not whole"):
        replayed(broken)


def weight(name, category=Category.PARAMETER):
    return Holder(category=category, module=name.rpartition(".")[0], name=name, shape=(1024, 1024), dtype="float32")


def test_the_peak_is_found_and_split_by_category_and_phase():
    parameter, activation = weight("w"), Holder(category=Category.ACTIVATION, module="h.0", op="MmBackward0")
    kept = {"phase": Phase.LOAD, "holder": parameter}
    made = {"phase": Phase.FORWARD, "holder": activation}
    result = occupancy(
        trace(
            event("segment_alloc", BASE, 20 * MIB, phase=Phase.LOAD),
            event("alloc", BASE, 4 * MIB, **kept),
            event("alloc", BASE + 4 * MIB, 8 * MIB - 100, **made),
            *free(BASE + 4 * MIB, 8 * MIB - 100, phase=Phase.BACKWARD, holder=activation),
        )
    )
    assert (result.peak_requested_bytes, result.peak_allocated_bytes) == (12 * MIB - 100, 12 * MIB)
    assert (result.peak_reserved_bytes, result.step, result.phase) == (20 * MIB, 1, Phase.FORWARD)
    assert by_category(result.held) == {"activation": 8 * MIB, "parameter": 4 * MIB}
    assert [t.holder for t in result.held] == [activation, parameter]
    forward = next(p for p in result.phases if p.phase is Phase.FORWARD)
    assert forward.by_category == {"activation": 8 * MIB, "parameter": 4 * MIB}
    assert [(p.phase, p.peak_allocated_bytes, p.end_allocated_bytes) for p in result.phases] == [
        (Phase.LOAD, 4 * MIB, 4 * MIB),
        (Phase.FORWARD, 12 * MIB, 12 * MIB),
        (Phase.BACKWARD, 4 * MIB, 4 * MIB),
    ]
    ends = [p.end_by_category for p in result.phases]
    assert ends == [{"parameter": 4 * MIB}, {"activation": 8 * MIB, "parameter": 4 * MIB}, {"parameter": 4 * MIB}]


def test_a_trace_without_segments_is_one_of_storages_which_take_what_they_asked_for():
    parameter, activation = Holder(category=Category.PARAMETER), Holder(category=Category.ACTIVATION)
    made = {"phase": Phase.FORWARD, "holder": activation}
    events = (
        event("alloc", 1, 100, phase=Phase.LOAD, holder=parameter),
        event("alloc", 2, 7, **made),
        *free(2, 7, **made),
        event("alloc", 3, 5, **made),
    )
    result = occupancy(trace(*events))
    assert (result.peak_requested_bytes, result.peak_allocated_bytes, result.peak_reserved_bytes) == (107, 107, 107)
    assert by_category(result.held) == {"parameter": 100, "activation": 7}
    assert result.phases[1].end_by_category == {"parameter": 100, "activation": 5}
    with pytest.raises(MemsimError, match="not whole: alloc of 9 bytes at 0x3 fits no storage"):
        occupancy(trace(*events, event("alloc", 3, 9, **made)))


def test_an_empty_trace_has_no_peak():
    result = occupancy(trace())
    assert (result.peak_allocated_bytes, result.held, result.phases, result.event_index) == (0, (), (), -1)


def test_equal_layers_are_folded_into_one_line():
    def held(module, nbytes, category=Category.ACTIVATION, line="a.py:1 in f"):
        holder = Holder(category=category, module=module, library_line=line)
        return HeldTensor(allocated_bytes=nbytes, requested_bytes=nbytes, holder=holder)

    rows = by_module(
        [
            held("model.layers.0.mlp.up_proj", 10),
            held("model.layers.0.mlp.experts.7.down_proj", 1),
            held("model.layers.1.mlp.up_proj", 10),
            held("model.layers.1.mlp.up_proj", 5, Category.PARAMETER),
            held("lm_head", 3),
            held("", 2),
            held("", 1, Category.TEMPORARY, line=""),
        ]
    )
    assert [(r.num_modules, r.module, r.allocated_bytes) for r in rows] == [
        (2, "model.layers.*.mlp", 26),
        (1, "lm_head", 3),
        (1, OUTSIDE, 2),
        (1, BACKWARD, 1),
    ]
    assert rows[0].by_category == {"activation": 21, "parameter": 5}


def test_a_trace_survives_json():
    holder = weight("h.0.w")
    whole = trace(
        event("segment_alloc", BASE, 2 * MIB),
        event("alloc", BASE, 1, holder=holder),
        event("oom", 0, 90 * 2**30, phase=Phase.OPTIMIZER_STEP, step=2),
        *free(BASE, 1, holder=holder),
    )
    again = trace_of(json.loads(json.dumps(whole.to_dict())))
    assert again == whole
    alloc, freed = again.events[1], again.events[3]
    assert alloc.holder is freed.holder


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.update(schema=99),
        lambda data: data.update(kind="estimate"),
        lambda data: data.pop("holders"),
        lambda data: data["events"]["phase"].append(0),
        lambda data: data["actions"].append("explode"),
    ],
)
def test_a_damaged_trace_is_refused(damage):
    data = trace(event("segment_alloc", BASE, 2 * MIB)).to_dict()
    damage(data)
    with pytest.raises(OutputError):
        trace_of(data)
