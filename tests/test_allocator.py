"""The rules of the caching allocator, by arithmetic; segments, settings, and what is refused.

Small pool: segments of 2 MiB, split when 512 bytes remain. Large pool, from more than 1 MiB on: segments of 20 MiB
below 10 MiB, then of the request's own size in steps of 2 MiB; split when more than 1 MiB remains.
"""

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from memsim.allocator import (
    AllocatorConfig,
    BlockState,
    CachingAllocator,
    DeviceMemory,
    DeviceOutOfMemory,
    SegmentState,
)
from memsim.errors import MemsimError, UnknownNameError, UsageError

MIB = 2**20
GIB = 2**30


def allocator(conf="", *, total_bytes=80 * GIB, **kw):
    return CachingAllocator(AllocatorConfig.parse(conf), total_bytes=total_bytes, **kw)


class Steps:
    """Named blocks, and (allocated, reserved) after each step."""

    def __init__(self, model):
        self.model, self.addresses, self.figures = model, {}, []

    def figure(self):
        self.figures.append((self.model.allocated_bytes, self.model.reserved_bytes))

    def get(self, name, nbytes):
        self.addresses[name] = self.model.malloc(nbytes)
        self.figure()

    def drop(self, *names):
        for name in names:
            self.model.free(self.addresses.pop(name))
            self.figure()

    def empty(self):
        self.model.empty_cache()
        self.figure()


def test_small_blocks_share_segments_and_the_best_fit_is_taken():
    steps = Steps(allocator())
    steps.get("a", 1)
    steps.get("b", MIB)
    steps.get("c", MIB)
    steps.drop("b")
    steps.get("d", 300_000)
    steps.drop("a", "d", "c")
    steps.empty()
    assert steps.figures == [
        (512, 2 * MIB),
        (512 + MIB, 2 * MIB),  # 2,096,640 were free
        (512 + 2 * MIB, 4 * MIB),  # 1,048,064 are too few
        (512 + MIB, 4 * MIB),
        (512 + MIB + 300_032, 4 * MIB),  # from the 1,048,576 of the second segment, not the 2,096,640 of the first
        (MIB + 300_032, 4 * MIB),
        (MIB, 4 * MIB),
        (0, 4 * MIB),
        (0, 0),
    ]
    assert steps.model.peaks.allocated_bytes == 2_097_664
    assert steps.model.peaks.reserved_bytes == 4 * MIB


def test_what_is_not_split_off_counts_as_allocated():
    steps = Steps(allocator())
    steps.get("a", MIB + 1)  # 1,049,088: the large pool; 19,922,432 remain
    steps.get("b", 19_922_432 - MIB)  # exactly 1 MiB would remain, which is not more than 1 MiB
    assert steps.figures == [(MIB + 512, 20 * MIB), (20 * MIB, 20 * MIB)]
    assert steps.model.requested_bytes == MIB + 1 + 19_922_432 - MIB
    steps.drop("b", "a")
    steps.empty()
    assert steps.figures[2:] == [(MIB + 512, 20 * MIB), (0, 20 * MIB), (0, 0)]


def test_from_ten_mib_on_a_segment_has_the_requests_own_size():
    steps = Steps(allocator())
    steps.get("a", 10 * MIB - 512)
    steps.get("b", 10 * MIB - 511)  # 10 MiB after rounding; of the rest, 10 MiB + 512, 512 would remain
    steps.get("c", 10 * MIB)
    steps.get("d", 10 * MIB + 1)  # 10 MiB + 512, from 12 MiB: 2 MiB - 512 remain
    assert steps.figures == [
        (10 * MIB - 512, 20 * MIB),
        (20 * MIB, 20 * MIB),
        (30 * MIB, 30 * MIB),
        (40 * MIB + 512, 42 * MIB),
    ]


def test_a_freed_block_serves_smaller_ones_until_its_rest_is_too_small():
    steps = Steps(allocator())
    steps.get("a", 30 * MIB)
    steps.get("b", 50 * MIB)
    steps.drop("a", "b")
    steps.get("c", 20 * MIB)  # from the 30
    steps.get("d", 25 * MIB)  # from the 50
    steps.get("e", 12 * MIB)  # 10 are too few: from the other 25
    steps.drop("c", "d", "e")
    allocated = [30, 80, 50, 0, 20, 45, 57, 37, 12, 0]
    assert [figure[0] for figure in steps.figures] == [n * MIB for n in allocated]
    assert {figure[1] for figure in steps.figures[1:]} == {80 * MIB}


def test_free_neighbours_become_one_block():
    model = allocator()
    steps = Steps(model)
    split = []
    for action, name, nbytes in [
        ("get", "a", 4),
        ("get", "b", 4),
        ("get", "c", 4),
        ("drop", "a", 0),
        ("drop", "c", 0),
        ("get", "d", 6),
        ("drop", "b", 0),
        ("drop", "d", 0),
    ]:
        steps.get(name, nbytes * MIB) if action == "get" else steps.drop(name)
        split.append(model.memory_stats()["inactive_split_bytes.all.current"] // MIB)
    assert [figure[0] // MIB for figure in steps.figures] == [4, 8, 12, 8, 4, 10, 6, 0]
    assert {figure[1] for figure in steps.figures} == {20 * MIB}
    # after each: the tail; the hole of 4; the hole and a tail of 12; 6 from that; a hole of 8 and the 6; whole again
    assert split == [16, 12, 8, 4 + 8, 4 + 12, 4 + 6, 8 + 6, 0]


def test_blocks_of_the_split_limit_are_never_split():
    steps = Steps(allocator("max_split_size_mb:64"))
    steps.get("a", 100 * MIB)
    steps.drop("a")
    steps.get("b", 90 * MIB)  # 100 < 90 + 20: taken, whole
    steps.drop("b")
    steps.get("c", 70 * MIB)  # 100 >= 70 + 20: refused
    steps.drop("c")
    steps.get("d", 30 * MIB)  # below the limit: not from a block of the limit
    assert steps.figures == [
        (100 * MIB, 100 * MIB),
        (0, 100 * MIB),
        (100 * MIB, 100 * MIB),
        (0, 100 * MIB),
        (70 * MIB, 170 * MIB),
        (0, 170 * MIB),
        (30 * MIB, 200 * MIB),
    ]
    stats = steps.model.memory_stats()
    assert stats["max_split_size"] == 64 * MIB
    assert (stats["oversize_segments.current"], stats["oversize_segments.allocated"]) == (2, 2)
    assert (stats["oversize_allocations.current"], stats["oversize_allocations.allocated"]) == (0, 3)


def test_expandable_segments_map_whole_pages_and_give_them_back():
    steps = Steps(allocator("expandable_segments:True"))
    steps.get("a", 3 * MIB)
    steps.get("b", 10 * MIB)
    steps.get("c", 30 * MIB)  # 7 MiB are free at the end, 23 are missing: two pages of 20
    steps.drop("a", "c")
    steps.get("d", 35 * MIB)  # 47 MiB are free at the end
    steps.drop("b")
    steps.empty()  # the free 13 and 12 MiB hold no whole page
    steps.get("e", 1000)  # a small segment of its own: a page of 2 MiB
    steps.drop("d")
    steps.empty()
    assert steps.figures == [
        (3 * MIB, 20 * MIB),
        (13 * MIB, 20 * MIB),
        (43 * MIB, 60 * MIB),
        (40 * MIB, 60 * MIB),
        (10 * MIB, 60 * MIB),
        (45 * MIB, 60 * MIB),
        (35 * MIB, 60 * MIB),
        (35 * MIB, 60 * MIB),
        (35 * MIB + 1024, 62 * MIB),
        (1024, 62 * MIB),
        (1024, 2 * MIB),
    ]
    assert steps.model.memory_stats()["segment.all.allocated"] == 0


def test_divisions_round_up_to_a_part_of_a_power_of_two():
    steps = Steps(allocator("roundup_power2_divisions:4"))
    steps.get("a", 1200)  # not above 512 * 4: a multiple of 512
    steps.get("b", 2049)  # in steps of 2048 / 4
    steps.get("c", 5 * MIB)  # in steps of 1 MiB
    steps.get("d", 9 * MIB)  # in steps of 2 MiB: 10
    assert steps.figures == [
        (1536, 2 * MIB),
        (1536 + 2560, 2 * MIB),
        (4096 + 5 * MIB, 22 * MIB),
        (4096 + 15 * MIB, 22 * MIB),
    ]
    assert steps.model.memory_stats()["inactive_split_bytes.all.current"] == 22 * MIB - 4096 - 15 * MIB


def test_when_memory_runs_out_the_cache_is_given_back_and_the_request_tried_again():
    steps = Steps(allocator(total_bytes=64 * MIB))
    steps.get("a", 30 * MIB)
    steps.get("b", 20 * MIB)
    steps.drop("b")
    steps.get("c", 32 * MIB)  # 20 cached are too few, 14 left too: the cached ones go
    with pytest.raises(DeviceOutOfMemory, match=r"10\.00 MiB asked, 2\.00 MiB free") as caught:
        steps.get("d", 10 * MIB)
    assert steps.figures == [(30 * MIB, 30 * MIB), (50 * MIB, 50 * MIB), (30 * MIB, 50 * MIB), (62 * MIB, 62 * MIB)]
    error = caught.value
    assert (error.asked_bytes, error.free_bytes) == (10 * MIB, 2 * MIB)
    assert (error.allocated_bytes, error.reserved_bytes) == (62 * MIB, 62 * MIB)
    stats = steps.model.memory_stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"]) == (2, 1)  # the last request was tried again too


def test_a_block_used_by_another_stream_waits_for_it():
    model = allocator()
    first = model.malloc(4 * MIB)
    model.record_stream(first, 7)
    model.events_pending = True
    model.free(first)
    assert (model.allocated_bytes, model.active_bytes) == (0, 4 * MIB)
    second = model.malloc(4 * MIB)
    assert second != first
    assert (model.allocated_bytes, model.active_bytes, model.reserved_bytes) == (4 * MIB, 8 * MIB, 20 * MIB)
    (segment,) = model.segments()
    assert [block.state for block in segment.blocks] == ["active_pending_free", "active_allocated", "inactive"]
    model.events_pending = False
    assert model.malloc(4 * MIB) == first
    assert (model.allocated_bytes, model.active_bytes, model.reserved_bytes) == (8 * MIB, 8 * MIB, 20 * MIB)


def test_emptying_the_cache_waits_for_other_streams():
    model = allocator()
    address = model.malloc(30 * MIB)
    model.record_stream(address, 7)
    model.events_pending = True
    model.free(address)
    model.empty_cache()
    assert (model.active_bytes, model.reserved_bytes) == (0, 0)


def test_the_blocks_own_stream_is_no_other_stream():
    model = allocator()
    address = model.malloc(MIB, 7)
    model.record_stream(address, 7)
    model.events_pending = True
    model.free(address)
    assert model.active_bytes == 0


def test_a_free_block_serves_only_its_stream():
    model = allocator()
    model.free(model.malloc(30 * MIB, 1))
    model.malloc(30 * MIB, 2)
    assert model.reserved_bytes == 60 * MIB


def test_equal_free_blocks_are_taken_in_each_versions_own_order():
    """Two segments of 20 MiB, the older one at the higher address; a hole of 4 MiB in each."""

    class Downwards(DeviceMemory):
        def malloc(self, nbytes):
            address = super().malloc(nbytes)
            return 2**46 - address

    for version, older_first in (("2.11", False), ("2.12", True), ("2.13.0+cu130", True)):
        model = allocator(torch_version=version, driver=Downwards(80 * GIB))
        older, newer = (
            [model.malloc(4 * MIB), model.malloc(4 * MIB), model.malloc(9 * MIB), model.malloc(2 * MIB)]
            for _ in range(2)
        )
        assert newer[0] < older[0]
        model.free(newer[1])
        model.free(older[1])
        assert model.malloc(4 * MIB) == (older if older_first else newer)[1]


def test_memory_for_others_and_a_fraction_leave_less():
    outside = DeviceMemory(64 * MIB, outside_bytes=40 * MIB)
    model = allocator(total_bytes=64 * MIB, driver=outside)
    model.malloc(20 * MIB)
    with pytest.raises(DeviceOutOfMemory, match=r"4\.00 MiB free"):
        model.malloc(6 * MIB)
    half = allocator("per_process_memory_fraction:0.5", total_bytes=64 * MIB)
    half.malloc(32 * MIB)
    with pytest.raises(DeviceOutOfMemory):
        half.malloc(1)


def test_garbage_collection_gives_back_what_was_free_for_longer_than_the_average():
    model = allocator("per_process_memory_fraction:0.5,garbage_collection_threshold:0.4", total_bytes=400 * MIB)
    oldest, older, _ = (model.malloc(24 * MIB) for _ in range(3))
    model.free(oldest)  # after 3 searches
    model.malloc(26 * MIB)  # the 4th; 72 MiB are held, not more than 0.4 of 200
    model.free(older)
    assert model.reserved_bytes == 98 * MIB
    model.malloc(28 * MIB)  # the 5th; 98 MiB are held: 18 too many. Free for 2 searches and 1, on average for 1.5
    assert model.reserved_bytes == (98 - 24 + 28) * MIB
    assert older in {segment.address for segment in model.segments()}


def test_a_request_for_nothing_gets_nothing_and_changes_nothing():
    model = allocator()
    before = model.memory_stats()
    assert model.malloc(0) == 0
    model.free(0)
    model.record_stream(0, 3)
    assert model.memory_stats() == before


def test_impossible_requests_are_refused():
    model = allocator()
    with pytest.raises(UsageError, match="-1 bytes"):
        model.malloc(-1)
    with pytest.raises(DeviceOutOfMemory):
        model.malloc(2**60)
    assert model.memory_stats()["num_ooms"] == 0  # PyTorch refuses it before its allocator sees it
    address = model.malloc(1)
    model.free(address)
    for call in (model.free, lambda address: model.record_stream(address, 1)):
        with pytest.raises(MemsimError, match="no allocated block begins at"):
            call(address)
    with pytest.raises(UsageError, match="'nightly' is no version of torch"):
        allocator(torch_version="nightly")


def test_an_allocator_goes_on_from_the_state_of_another():
    first = allocator()
    held = [first.malloc(n) for n in (700, 3 * MIB, 5 * MIB, 40 * MIB, MIB)]
    first.free(held[1])
    second = allocator(segments=first.segments())
    names = ("allocated_bytes", "reserved_bytes", "requested_bytes", "active", "segment", "inactive_split_bytes")
    for name in names:
        key = f"{name}.all.current"
        assert second.memory_stats()[key] == first.memory_stats()[key]
    assert second.segments() == first.segments()
    assert second.malloc(2 * MIB) == first.malloc(2 * MIB) == held[1]
    second.free(held[3])
    second.empty_cache()
    assert second.reserved_bytes == 2 * MIB + 20 * MIB  # 700 bytes and 1 MiB; 2 and 5 MiB


@pytest.mark.parametrize(
    "segment",
    [
        SegmentState(address=0, nbytes=2 * MIB, small=True, blocks=(BlockState(address=0, nbytes=MIB),)),
        SegmentState(address=0, nbytes=2 * MIB, small=True, blocks=(BlockState(address=512, nbytes=2 * MIB),)),
        SegmentState(
            address=0,
            nbytes=2 * MIB,
            small=True,
            blocks=(BlockState(address=0, nbytes=2 * MIB, state="active_pending_free"),),
        ),
        SegmentState(
            address=0, nbytes=2 * MIB, small=True, expandable=True, blocks=(BlockState(address=0, nbytes=2 * MIB),)
        ),
    ],
)
def test_a_state_with_gaps_or_pending_blocks_is_no_start(segment):
    with pytest.raises(MemsimError, match="cannot start from"):
        allocator(segments=[segment])


def test_every_event_is_told_in_pytorchs_words():
    told = []
    model = allocator(sink=lambda *event: told.append(event))
    address = model.malloc(1000, 5)
    model.free(address)
    model.empty_cache()
    assert told == [
        ("segment_alloc", address, 2 * MIB, 5),
        ("alloc", address, 1000, 5),
        ("free_requested", address, 1000, 5),
        ("free_completed", address, 1000, 5),
        ("segment_free", address, 2 * MIB, 5),
    ]


def test_the_settings_of_pytorchs_notes_are_read():
    config = AllocatorConfig.parse(
        " backend:native, expandable_segments:True,max_split_size_mb:128, roundup_power2_divisions:[256:1,512:2,>:8],"
        "garbage_collection_threshold:0.8,per_process_memory_fraction:0.9,pinned_num_register_threads:8,"
    )
    assert config == AllocatorConfig(
        expandable_segments=True,
        max_split_bytes=128 * MIB,
        roundup_power2_divisions=(1,) * 9 + (2,) + (8,) * 6,
        garbage_collection_threshold=0.8,
        per_process_memory_fraction=0.9,
    )
    assert AllocatorConfig.parse("") == AllocatorConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_split_size_mb:10", "max_split_size_mb must be a whole number of 20 or more"),
        ("max_split_size_mb:64.5", "whole number"),
        ("max_split_size_mb:" + "9" * 5000, "whole number"),
        ("large_segment_size_mb:10", "11 or more"),
        ("large_segment_size_mb:40,max_split_size_mb:30", "40 or more"),
        ("large_segment_size_mb:33,expandable_segments:True", "even number with expandable_segments"),
        ("expandable_segments:true", "True or False, not 'true'"),
        ("garbage_collection_threshold:0", "between 0 and 1"),
        ("garbage_collection_threshold:1", "between 0 and 1"),
        ("garbage_collection_threshold:nan", "a number from 0 to 1"),
        ("per_process_memory_fraction:1.1", "from 0 to 1"),
        ("roundup_power2_divisions:3", "powers of two"),
        ("roundup_power2_divisions:0", "powers of two"),
        ("roundup_power2_divisions:[3:4]", "powers of two"),
        ("roundup_power2_divisions:[1]", "powers of two"),
        ("backend:cudaMallocAsync", "only that one is modelled"),
        ("throw_on_cudamalloc_oom:True", "once cached memory was given back"),
        ("max_split_size_mb", "give KEY:VALUE"),
        ("max_split_size_mb:", "give KEY:VALUE"),
        ("max_split_size_mb:30:40", "give KEY:VALUE"),
        ("roundup_power2_divisions:[1:4", "give KEY:VALUE"),
        ("max_split_size_mb:30 expandable_segments:True", "give KEY:VALUE"),
        (",", "give KEY:VALUE"),
    ],
)
def test_a_setting_that_pytorch_does_not_take_is_refused(text, message):
    with pytest.raises(UsageError, match=message) as caught:
        AllocatorConfig.parse(text)
    assert len(str(caught.value)) < 400


def test_an_unknown_setting_names_the_nearest():
    with pytest.raises(UnknownNameError, match=r"max_split_size'.*Did you mean max_split_size_mb"):
        AllocatorConfig.parse("max_split_size:30")


class AllocatorMachine(RuleBasedStateMachine):
    """Any sequence of requests, under any settings."""

    def __init__(self):
        super().__init__()
        self.model, self.live, self.waiting = None, {}, {}

    @precondition(lambda self: self.model is None)
    @rule(
        conf=st.sampled_from(
            [
                "",
                "expandable_segments:True",
                "max_split_size_mb:20",
                "roundup_power2_divisions:4",
                "per_process_memory_fraction:0.7,garbage_collection_threshold:0.5",
            ]
        ),
        version=st.sampled_from(["2.11", "2.12", "2.13"]),
    )
    def start(self, conf, version):
        self.model = allocator(conf, total_bytes=256 * MIB, torch_version=version)

    @precondition(lambda self: self.model is not None)
    @rule(
        nbytes=st.one_of(st.integers(1, 2 * MIB), st.integers(MIB, 12 * MIB), st.integers(10 * MIB, 80 * MIB)),
        stream=st.sampled_from([0, 0, 0, 7]),
    )
    def malloc(self, nbytes, stream):
        try:
            address = self.model.malloc(nbytes, stream)
        except DeviceOutOfMemory:
            return
        assert address not in self.live
        assert address % 512 == 0
        self.live[address] = nbytes

    @precondition(lambda self: self.live)
    @rule(data=st.data(), recorded=st.booleans())
    def free(self, data, recorded):
        address = data.draw(st.sampled_from(sorted(self.live)))
        if recorded:
            self.model.record_stream(address, 9)
        self.model.free(address)
        del self.live[address]

    @precondition(lambda self: self.model is not None)
    @rule(pending=st.booleans())
    def other_streams(self, pending):
        self.model.events_pending = pending

    @precondition(lambda self: self.model is not None)
    @rule()
    def empty_cache(self):
        self.model.empty_cache()
        assert self.model.active_bytes == self.model.allocated_bytes

    @precondition(lambda self: self.model is not None)
    @rule()
    def reset_peaks(self):
        self.model.reset_peak_memory_stats()
        assert self.model.peaks.allocated_bytes == self.model.allocated_bytes

    @invariant()
    def parts_fill_their_segments_and_add_up(self):
        if self.model is None:
            return
        end, blocks = 0, []
        for segment in self.model.segments():
            assert segment.address >= end
            end = segment.address
            for block in segment.blocks:
                assert block.address == end
                assert block.nbytes > 0
                assert block.nbytes % 512 == 0
                end += block.nbytes
            assert end == segment.address + segment.nbytes
            states = [block.state for block in segment.blocks]
            assert ("inactive", "inactive") not in set(pairwise(states))
            blocks.extend(segment.blocks)
        allocated = {b.address: b for b in blocks if b.state == "active_allocated"}
        assert {address: b.requested_bytes for address, b in allocated.items()} == self.live
        assert all(b.requested_bytes <= b.nbytes for b in blocks)
        active = [b for b in blocks if b.state != "inactive"]
        assert sum(b.nbytes for b in allocated.values()) == self.model.allocated_bytes
        assert sum(b.nbytes for b in active) == self.model.active_bytes
        assert sum(b.requested_bytes for b in active) == self.model.requested_bytes
        assert sum(b.nbytes for b in blocks) == self.model.reserved_bytes <= 256 * MIB

    @invariant()
    def the_statistics_keep_their_order(self):
        if self.model is None:
            return
        stats, peaks = self.model.memory_stats(), self.model.peaks
        assert sum(self.live.values()) <= self.model.requested_bytes <= self.model.active_bytes
        assert self.model.allocated_bytes <= self.model.active_bytes <= self.model.reserved_bytes
        assert peaks.allocated_bytes >= self.model.allocated_bytes
        assert peaks.requested_bytes <= peaks.active_bytes <= peaks.reserved_bytes
        for name in ("allocation", "active", "allocated_bytes", "requested_bytes", "reserved_bytes", "segment"):
            for field in ("current", "allocated", "freed"):
                both = stats[f"{name}.small_pool.{field}"] + stats[f"{name}.large_pool.{field}"]
                assert stats[f"{name}.all.{field}"] == both
            assert stats[f"{name}.all.peak"] >= stats[f"{name}.all.current"] >= 0

    def teardown(self):
        if self.model is None:
            return
        for address in self.live:
            self.model.free(address)
        self.model.empty_cache()
        assert self.model.segments() == ()
        stats = self.model.memory_stats()
        assert {key: value for key, value in stats.items() if key.endswith(".current") and value} == {}


AllocatorMachine.TestCase.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAllocatorMachine = AllocatorMachine.TestCase
