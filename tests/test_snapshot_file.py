"""Memory snapshots: files that PyTorch wrote are read whole, and no other file gets anything run, hung or swallowed."""

import json
import os
import pickle
import random
import struct
import time

import pytest
from gpu_fixture import installation, on_gpu  # noqa: F401
from hypothesis import given, settings
from hypothesis import strategies as st

from memsim.allocator import BlockState, SegmentState
from memsim.errors import MemsimError, UsageError
from memsim.ledger import Category, Phase
from memsim.snapshot_file import SnapshotFileError, read_snapshot, trace_of_snapshot
from memsim.snapshot_file.plain_pickle import MAX_FILE_BYTES, read_plain_pickle
from memsim.step import trace_of
from memsim.step.peaks import occupancy

MIB = 2**20
BASE = 2**45
NUM_LAYERS, WIDTH = 4, 256
WEIGHTS = NUM_LAYERS * (WIDTH * WIDTH * 4 + WIDTH * 4)  # float32; both are multiples of 512
WORKSPACE = 8_519_680  # of cuBLAS on compute capability 8.0, one for each thread (spec of getChosenWorkspaceSize)

TRAINING = """
def record(path, **options):
    torch.cuda.memory._record_memory_history(**options)
    torch.cuda.reset_peak_memory_stats()
    yield
    torch.cuda.memory._dump_snapshot(path)
    stats = torch.cuda.memory_stats()
    names = ("requested_bytes", "allocated_bytes", "reserved_bytes")
    found[path] = [*(stats[n + ".all.peak"] for n in names), *(stats[n + ".all.current"] for n in names[1:])]
    torch.cuda.memory._record_memory_history(None)
def step():
    x = torch.randn(32, 256, device="cuda")
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
found = {}
recording = record("whole.pickle", stacks="python")
next(recording)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
step()
step()
next(recording, None)
recording = record("midst.pickle", stacks="python")
next(recording)
step()
next(recording, None)
recording = record("unseen.pickle", context=None)
next(recording)
del model, optimizer
torch.cuda.empty_cache()
next(recording, None)
torch.cuda.memory._dump_snapshot("empty.pickle")
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def _training():
    return {}


@pytest.fixture
def training(on_gpu, _training, tmp_path):  # noqa: F811
    """The folder and the figures of `TRAINING`, run once."""
    if not _training:
        figures = on_gpu(TRAINING)
        _training.update(folder=tmp_path, figures=figures)
    return _training["folder"], _training["figures"]


def figures_of(trace):
    stats = trace.stats
    return [
        stats.peak_requested_bytes,
        stats.peak_allocated_bytes,
        stats.peak_reserved_bytes,
        stats.allocated_bytes,
        stats.reserved_bytes,
    ]


def test_the_data_are_those_that_pythons_own_reader_finds(training):
    folder, _ = training
    for name in ("whole.pickle", "midst.pickle", "unseen.pickle", "empty.pickle"):
        data = (folder / name).read_bytes()
        assert read_plain_pickle(data) == pickle.loads(data)


def test_a_whole_history_gives_pytorchs_own_totals_and_who_held_the_peak(training):
    folder, figures = training
    found = trace_of_snapshot(read_snapshot(folder / "whole.pickle"))
    assert figures_of(found.trace) == figures["whole.pickle"]
    assert found.trace.start == ()
    phases = {(p.step, p.phase): p for p in occupancy(found.trace).phases}
    assert phases[1, Phase.LOAD].by_category == {"parameter": WEIGHTS}
    peak = phases[2, Phase.OPTIMIZER_STEP]
    assert peak.by_category == {
        "workspace": 2 * WORKSPACE,
        "optimizer_state": 2 * WEIGHTS,
        "parameter": WEIGHTS,
        "gradient": WEIGHTS,
        "temporary": WEIGHTS,  # the square roots of one state
        "input": 32 * WIDTH * 4,
    }
    assert peak.peak_allocated_bytes == sum(peak.by_category.values())
    assert list(phases)[1:] == [
        (step, phase)
        for step in (1, 2)
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER_STEP, Phase.ZERO_GRAD)
    ]


def test_a_history_from_the_midst_of_a_run_starts_with_what_was_there(training):
    folder, figures = training
    found = trace_of_snapshot(read_snapshot(folder / "midst.pickle"))
    assert figures_of(found.trace) == figures["midst.pickle"]
    held = sum(b.nbytes for s in found.trace.start for b in s.blocks if b.state == "active_allocated")
    assert held == 3 * WEIGHTS + 2 * WORKSPACE  # weights, two states, the workspaces of two threads
    assert "whose they were, and what was there before, is not in the file" in found.notes[0]
    (peak,) = (p for p in occupancy(found.trace).phases if p.phase is Phase.OPTIMIZER_STEP)
    assert peak.by_category["gradient"] == peak.by_category["temporary"] == WEIGHTS
    assert trace_of(json.loads(json.dumps(found.trace.to_dict()))) == found.trace


def test_a_history_without_stacks_still_gives_the_totals(training):
    folder, figures = training
    found = trace_of_snapshot(read_snapshot(folder / "unseen.pickle"))
    assert figures_of(found.trace) == figures["unseen.pickle"]
    assert any("forward and backward cannot be told apart" in note for note in found.notes)


def test_a_file_without_a_history_says_how_to_record_one(training):
    folder, _ = training
    snapshot = read_snapshot(folder / "empty.pickle")
    with pytest.raises(MemsimError, match="_record_memory_history"):
        trace_of_snapshot(snapshot, device=0)


MIDLIFE = """
import random
MIB = 2**20
draw, live, found = random.Random(5), [], []
streams = [torch.cuda.default_stream(), torch.cuda.Stream()]
def operate():
    kind = draw.random()
    if kind < 0.5 or not live:
        nbytes = draw.randint(1, MIB) if draw.random() < 0.5 else draw.randint(MIB, 40 * MIB)
        try:
            with torch.cuda.stream(draw.choice(streams)):
                live.append(torch.empty(nbytes, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            pass
    elif kind < 0.93:
        live.pop(draw.randrange(len(live)))
    elif kind < 0.97:
        draw.choice(live).record_stream(draw.choice(streams))
    elif kind < 0.98:
        torch.cuda.empty_cache()
for number in range(12):
    torch.cuda.memory._record_memory_history(None)
    for _ in range(100):
        operate()
    torch.cuda.memory._record_memory_history(context=None, max_entries=10**6)
    torch.cuda.reset_peak_memory_stats()
    start = [[s["address"], s["total_size"], s["is_expandable"],
              [[b["address"], b["size"], b["state"]] for b in s["blocks"]]] for s in torch.cuda.memory_snapshot()]
    for _ in range(150):
        operate()
    torch.cuda.memory._dump_snapshot(f"{number}.pickle")
    stats = torch.cuda.memory_stats()
    names = ("requested_bytes", "allocated_bytes", "reserved_bytes")
    found.append([start, *(stats[n + ".all.peak"] for n in names), *(stats[n + ".all.current"] for n in names[1:])])
print(json.dumps(found))
"""


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "roundup_power2_divisions:4"])
def test_random_runs_are_read_backwards_to_what_was_held_at_the_start(on_gpu, tmp_path, conf):  # noqa: F811
    variables = {"PYTORCH_ALLOC_CONF": conf} if conf else {}
    for number, (start, *figures) in enumerate(on_gpu(MIDLIFE, memory_bytes=800 * MIB, **variables)):
        found = trace_of_snapshot(read_snapshot(tmp_path / f"{number}.pickle"))
        held = [
            [s.address, s.nbytes, s.expandable, [[b.address, b.nbytes, b.state] for b in s.blocks]]
            for s in found.trace.start
        ]
        uncertain = [int(note.split()[0]) for note in found.notes if "up to 1 MiB larger" in note]
        assert [segment[:3] for segment in held] == [segment[:3] for segment in start]
        if uncertain:
            differences = [abs(a - b) for a, b in zip(figures_of(found.trace), figures, strict=True)]
            assert max(differences) <= uncertain[0] * MIB
        else:
            assert (held, figures_of(found.trace)) == (start, figures)
        assert figures_of(found.trace)[3:] == figures[3:]
        assert conf != "expandable_segments:True" or not uncertain


def snapshot(events=(), segments=(), **more):
    return {"segments": list(segments), "device_traces": [list(events)], "allocator_settings": {}, **more}


def event(action, address, nbytes, **more):
    return {"action": action, "addr": address, "size": nbytes, "stream": 0, **more}


def segment(*blocks, address=BASE, **more):
    return {
        "device": 0,
        "address": address,
        "total_size": sum(size for size, _, _ in blocks),
        "stream": 0,
        "blocks": [{"size": size, "requested_size": asked, "state": state} for size, asked, state in blocks],
        **more,
    }


@pytest.fixture
def written(tmp_path):
    def write(data, name="snapshot.pickle", protocol=4):
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else pickle.dumps(data, protocol=protocol))
        return path

    return write


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_binary_protocol_is_read(written, protocol):
    grown = event("segment_alloc", BASE, 2 * MIB, note=None, ratio=1.5, pair=(1, -(2**62)), flags=[True, False, ()])
    held = segment((1024, 600, "active_allocated"), (2 * MIB - 1024, 0, "inactive"))
    data = snapshot([grown, event("alloc", BASE, 600)], [held])
    device = read_snapshot(written(data, protocol=protocol)).device()
    assert device.segments == (
        SegmentState(
            address=BASE,
            nbytes=2 * MIB,
            small=True,
            blocks=(
                BlockState(address=BASE, nbytes=1024, requested_bytes=600, state="active_allocated"),
                BlockState(address=BASE + 1024, nbytes=2 * MIB - 1024),
            ),
        ),
    )
    assert [entry.action for entry in device.events] == ["segment_alloc", "alloc"]


def test_what_a_freed_block_kept_beyond_its_request_is_told_by_what_stands_behind(written):
    """18.5 MiB in 20: 1.5 remain, enough for a block. 19.5 MiB: half a MiB remains, which belongs to the block."""
    for asked, allocated in ((18 * MIB + 512 * 1024, 18 * MIB + 512 * 1024), (19 * MIB + 512 * 1024, 20 * MIB)):
        data = snapshot(
            [event("free_requested", BASE, asked), event("free_completed", BASE, asked)],
            [segment((20 * MIB, 0, "inactive"))],
        )
        found = trace_of_snapshot(read_snapshot(written(data)))
        assert found.trace.stats.peak_allocated_bytes == allocated
        assert found.trace.stats.peak_requested_bytes == asked
        assert any("1 blocks of that time may have been up to 1 MiB larger" in n for n in found.notes) == (
            allocated != 20 * MIB
        )


def test_a_block_behind_which_something_was_allocated_in_time_is_known(written):
    """3 MiB at the start of 20, and 4 MiB come to stand half a MiB behind it: it had kept that half."""
    asked, behind = 3 * MIB, BASE + 3 * MIB + 512 * 1024
    data = snapshot(
        [
            event("alloc", behind, 4 * MIB),
            event("free_requested", BASE, asked),
            event("free_completed", BASE, asked),
        ],
        [
            segment(
                (3 * MIB + 512 * 1024, 0, "inactive"),
                (4 * MIB, 4 * MIB, "active_allocated"),
                (20 * MIB - 7 * MIB - 512 * 1024, 0, "inactive"),
            )
        ],
    )
    found = trace_of_snapshot(read_snapshot(written(data)))
    assert found.trace.stats.peak_allocated_bytes == 7 * MIB + 512 * 1024
    assert not any("larger" in note for note in found.notes)


@pytest.mark.parametrize(
    "events",
    [
        [event("segment_alloc", BASE + MIB, 2 * MIB)],  # no such segment in the end
        [event("alloc", BASE + 4096, 512)],  # live in the history, free in the end
        [event("free_requested", BASE + 4 * MIB, 512)],  # in no segment
        [event("free_requested", BASE, 512)],  # freed, and there in the end
        [event("free_requested", BASE + 512, 512)] * 2,
    ],
)
def test_a_history_that_does_not_lead_to_the_segments_is_refused(written, events):
    data = snapshot(events, [segment((512, 512, "active_allocated"), (2 * MIB - 512, 0, "inactive"))])
    with pytest.raises(MemsimError, match=r"does not lead to its segments|not whole"):
        trace_of_snapshot(read_snapshot(written(data)))


def test_one_of_several_devices_has_to_be_named(written):
    data = snapshot([event("segment_alloc", BASE, 2 * MIB)], [segment((2 * MIB, 0, "inactive"))])
    other = segment((20 * MIB, 0, "inactive"), address=2 * BASE)
    data["segments"].append(other | {"device": 3})
    found = read_snapshot(written(data))
    with pytest.raises(UsageError, match=r"2 devices that were used \(0, 3\): name one"):
        found.device()
    with pytest.raises(UsageError, match=r"no device 7; it has 0, 3"):
        found.device(7)
    assert found.device(3).segments[0].nbytes == 20 * MIB
    assert any("also holds device 3" in note for note in trace_of_snapshot(found, device=0).notes)


def refused(path, message=""):
    """Read a file that must be refused, in less than a second; return the message."""
    start = time.process_time()
    with pytest.raises(SnapshotFileError, match=message) as caught:
        read_snapshot(path)
    assert time.process_time() - start < 1
    assert len(str(caught.value)) < 500
    return str(caught.value)


SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text()
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.lists(inner).map(tuple),
    max_leaves=30,
)


@given(PLAIN, st.sampled_from([2, 3, 4, 5]))
@settings(deadline=None)
def test_plain_data_come_back_as_they_were_pickled(data, protocol):
    assert read_plain_pickle(pickle.dumps(data, protocol=protocol)) == data


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=300)
def test_no_bytes_lead_anywhere_but_to_plain_data_or_a_refusal(noise):
    try:
        found = read_plain_pickle(b"\x80\x04" + noise + b".")
    except SnapshotFileError:
        return
    assert type(found) in {type(None), bool, int, float, str, list, dict, tuple}


class Attack:
    """What pickles as a call, by whichever instruction the protocol has for it."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"segments": [x]}, lambda x: snapshot(more=[x])])
def test_a_pickle_that_calls_something_is_refused_and_nothing_is_run(written, tmp_path, protocol, wrap):
    proof = tmp_path / "proof"
    path = written(wrap(Attack(proof)), protocol=protocol)
    refused(path, "it holds the instruction|does not begin as a pickle")
    assert not proof.exists()
    pickle.loads(path.read_bytes())  # the attack is one: Python's own reader runs it
    assert proof.exists()


FORBIDDEN = {
    "global": b"cos\nsystem\n",
    "stack global": b"\x8c\x02os\x8c\x06system\x93",
    "inst": b"(ios\nsystem\n",
    "obj": b"(]o",
    "reduce": b"]]R",
    "build": b"}}b",
    "new object": b"]]\x81",
    "new object with keywords": b"]]}\x92",
    "persistent id": b"Pname\n",
    "binary persistent id": b"K\x01Q",
    "extension": b"\x82\x01",
    "extension of two bytes": b"\x83\x01\x01",
    "extension of four bytes": b"\x84\x01\x01\x01\x01",
    "out of band buffer": b"\x97",
    "read-only buffer": b"\x98",
    "bytes": b"C\x01a",
    "byte array": b"\x96" + struct.pack("<Q", 2**60),
    "set": b"\x8f",
    "frozen set": b"(\x91",
    "text number": b"I" + b"9" * 100_000 + b"\n",
    "long number": b"L" + b"9" * 100_000 + b"L\n",
    "very long number": b"\x8b" + struct.pack("<i", 2**30),
    "pop": b"N0",
    "duplicate": b"N2",
    "stop in the midst": b"N.N",
    "not an instruction": b"\xff",
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_every_instruction_that_a_snapshot_does_not_need_is_refused(written, name):
    message = "something follows its end" if name == "stop in the midst" else "it holds the instruction 0x"
    assert "Give a file that torch.cuda.memory._dump_snapshot wrote" in refused(
        written(b"\x80\x04" + FORBIDDEN[name] + b"."), message
    )


def doubled(times):
    value = [1]
    for _ in range(times):
        value = [value, value]
    return value


def self_referring(make):
    value = make()
    if isinstance(value, list):
        value.append([value])
    else:
        value["segments"] = [{"again": value}]
    return value


BOMBS = {
    "shared a million times over": (pickle.dumps(snapshot(more=[doubled(14)] * 50_000), 4), "if it were written out"),
    "nested": (pickle.dumps({"segments": doubled(30)}, 4), "nested deeper than 16"),
    "nested without end": (b"\x80\x04" + b"]" * 3_000_000 + b"a" * 2_999_999 + b".", "piles up"),
    "nested by marks": (b"\x80\x04" + b"](" * 2_000_000 + b".", "nested deeper than 16"),
    "nested by what is shared": (
        b"\x80\x04](" + b"]\x94" + b"".join(b"]h" + bytes([n]) + b"a\x94" for n in range(200)) + b"e.",
        "nested deeper than 16",
    ),
    "a list in itself": (pickle.dumps(self_referring(list), 4), "contains itself"),
    "a dict in itself": (pickle.dumps(self_referring(dict), 4), "contains itself"),
    "a tuple in itself": (b"\x80\x04]\x94h\x00\x85\x94a.", "contains itself"),
    "values without end": (b"\x80\x04" + b"N" * 5_000_000 + b".", "piles up"),
    "a long string": (b"\x80\x04X" + struct.pack("<I", 2**21) + b"a" * 2**21 + b".", "string of 2,097,152 bytes"),
    "a string of 2**62 bytes": (b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b".", "string of"),
    "a large integer": (b"\x80\x04\x8a\xff" + b"\x7f" * 255 + b".", "integer of 255 bytes"),
    "a frame of 2**62 bytes": (b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"N.", "damaged at byte"),
    "a memo of 2**32 places": (b"\x80\x04Nr\xff\xff\xff\xff.", "not dict"),
    "a memo that was not filled": (b"\x80\x04h\x07.", "damaged"),
    "a key that is no string": (pickle.dumps({1: 2}, 4), "damaged"),
    "a key that is a list": (b"\x80\x04}]Ns.", "damaged"),
    "an odd number of keys and values": (b"\x80\x04}(Nu.", "damaged"),
    "an append to nothing": (b"\x80\x04Na.", "damaged"),
    "an append to a dict": (b"\x80\x04}Na.", "damaged"),
    "a string that is no text": (b"\x80\x04\x8c\x01\xff.", "damaged"),
    "marks left over": (b"\x80\x04N(.", "damaged"),
    "two values": (b"\x80\x04NN.", "damaged"),
    "nothing": (b"", "does not begin"),
    "no value": (b"\x80\x04.", "damaged"),
    "protocol 6": (b"\x80\x06N.", "does not begin"),
    "json": (b'{"segments": []}', "does not begin"),
    "a zip archive": (b"PK\x03\x04" + b"\0" * 100, "does not begin"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_would_take_all_memory_or_is_no_snapshot_is_refused(written, name):
    data, message = BOMBS[name]
    refused(written(data), message)


def test_a_file_is_refused_by_its_size_before_it_is_read(tmp_path):
    path = tmp_path / "large.pickle"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    refused(path, "268,435,457 bytes; 268,435,456 are allowed")


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        refused(path, "no regular file")
    refused(tmp_path / "missing", "cannot read .*: No such file")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "it is of type list, not dict"),
        ({}, "it has no 'segments'"),
        (snapshot(segments=[1]), r"segments\[0\] is of type int, not dict"),
        (snapshot(segments=[segment((2 * MIB, 0, "inactive")) | {"total_size": 1}]), "do not fill its 1 bytes"),
        (snapshot(segments=[segment((0, 0, "inactive"))]), "has 0 bytes"),
        (snapshot(segments=[segment((512, 0, "gone"))]), "is 'gone'"),
        (snapshot(segments=[segment((512, 513, "active_allocated"))]), "holds 513 bytes in 512"),
        (snapshot(segments=[segment((512, 0, "inactive"), address=-1)]), "'address' of segments.0. is -1"),
        (snapshot(segments=[segment((512, 0, "inactive"))] * 2), "two segments share the address"),
        (snapshot(segments=[segment((512, 0, "inactive")) | {"device": 2**40}]), "devices"),
        (snapshot([1]), "an event of device_traces.0. is of type int"),
        (snapshot([event("alloc", True, 1)]), "'addr' of an event .* is of type bool"),
        (snapshot([event("alloc", BASE, 2**63)]), "'size' of an event of .* is 9223372036854775808"),
        (snapshot([event("alloc", BASE, 1, frames=[{"name": 1}])]), "'name' of .* is of type int, not str"),
        (snapshot([{"action": "alloc", "addr": BASE}]), "has no 'size'"),
        (snapshot(device_traces={}), "'device_traces' of it is of type dict"),
        (snapshot(external_annotations=[3]), r"external_annotations\[0\] is of type int"),
    ],
)
def test_values_of_another_type_or_size_are_refused(written, data, message):
    refused(written(data), message)


def test_damaged_files_are_refused_or_read_but_never_surprise(training, written):
    """Cut anywhere, or with any byte changed: refused, or read as something else that is a snapshot."""
    folder, _ = training
    data, draw = (folder / "midst.pickle").read_bytes(), random.Random(1)
    for _ in range(60):
        refused(written(data[: draw.randrange(len(data))]))
    outcomes = []
    for _ in range(120):
        changed = bytearray(data)
        changed[draw.randrange(len(data))] = draw.randrange(256)
        start = time.process_time()
        try:
            trace_of_snapshot(read_snapshot(written(bytes(changed))))
            outcomes.append("read")
        except MemsimError:
            outcomes.append("refused")
        assert time.process_time() - start < 1
    assert set(outcomes) == {"read", "refused"}


def test_a_workspace_is_told_from_what_lives_as_long(written):
    kept = 4096 * 8 * 1024  # of compute capability 9.0
    frame = {"name": "f", "filename": "train.py", "line": 3}
    events = [event("segment_alloc", BASE, kept), event("alloc", BASE, kept, frames=[frame])]
    found = trace_of_snapshot(read_snapshot(written(snapshot(events, [segment((kept, kept, "active_allocated"))]))))
    (held,) = occupancy(found.trace).held
    assert (held.holder.category, held.holder.line) == (Category.WORKSPACE, "train.py:3 in f")
