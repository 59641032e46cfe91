"""Step programs against fresh recordings at batches, lengths and depths that they were not made of; and their store."""

import gzip
import json
import threading
from dataclasses import replace

import pytest
from gpu_fixture import installation  # noqa: F401
from recorder_fixture import BERT, LLAMA, T5, job, recorder  # noqa: F401

from memsim.errors import OutputError
from memsim.record.program import Range, points_for, record_program
from memsim.step.cut import sections_of
from memsim.step.fit import Point
from memsim.step.program import NotCoveredError, difference, joined
from memsim.step.program_file import program_data, program_of
from memsim.step.store import ProgramStore

pytest.importorskip("transformers", minversion="5.0")

DEEP = {**LLAMA, "num_hidden_layers": 9}
CASES = {
    "llama": (job(DEEP), 512),
    "llama in bf16": (job(DEEP, dtype="bfloat16"), 512),
    "llama with autocast, checkpointed": (job(DEEP, autocast="bfloat16", activation_checkpointing=True), 512),
    "llama with eager attention": (job(DEEP, attn_implementation="eager"), 512),
    "bert": (job({**BERT, "num_hidden_layers": 7}), 128),
    "t5": (job({**T5, "num_layers": 7, "num_decoder_layers": 8}), None),
}
ASKED = Point(4, 64)
KEY = {"model": "llama", "versions": ["2.13.0", "5.24.0"]}


def at(one, point):
    return replace(one, training=replace(one.training, batch_size=point.batch_size, seq_len=point.seq_len))


@pytest.fixture(scope="module")
def program(recorder):  # noqa: F811
    return record_program(CASES["llama"][0], Range(asked=ASKED, length_limit=512), recorder)


@pytest.mark.parametrize("case", CASES)
def test_a_program_tells_every_event_of_a_fresh_recording_of_the_whole_model(recorder, case):  # noqa: F811
    one, limit = CASES[case]
    made = record_program(one, Range(asked=ASKED, length_limit=limit), recorder)
    assert made.unexplained == ()
    recorded_at = {point for regime in made.regimes for point in regime.points}
    for point in (Point(6, 64), Point(11, 128)):
        assert point not in recorded_at
        assert difference(made, point, sections_of(recorder.record(at(one, point)).trace), {}) == ""


def test_a_difference_is_told(program, recorder):  # noqa: F811
    sections = sections_of(recorder.record(at(CASES["llama"][0], Point(6, 64))).trace)
    assert "recorded was" in difference(program, Point(5, 64), sections, {})
    assert "recorded were" in difference(program, Point(6, 64), (*sections[:3], replace(sections[3], left={})), {})


def test_what_was_not_recorded_is_not_told(program):
    assert program.covers(*ASKED) == ""
    for point in (Point(1, 64), Point(4, 70), Point(4, 1024), Point(500, 64)):
        assert "not between recorded points" in program.covers(*point)
        with pytest.raises(NotCoveredError):
            program.evaluate(*point)
    with pytest.raises(NotCoveredError, match=r"model.layers repeats after 1 layers, from 3 up: 2 layers"):
        program.evaluate(*ASKED, {"model.layers": 2})


def test_the_whole_models_depth_is_told_from_few_recorded_layers(program):
    assert program.depths == {"model.layers": 9}
    assert program.regimes[0].folded.stacks[0].num_recorded < 9
    load = program.evaluate(*ASKED)[0]
    names = [event.slot for event in load.events if event.slot.startswith("parameter:model.layers.")]
    assert len(names) == 9 * 9  # seven projections and two norms
    assert len(program.evaluate(*ASKED, {"model.layers": 12})[0].events) - len(load.events) == 3 * 9


def test_points_reach_from_the_shortest_to_the_longest_length_of_the_class_that_was_asked_for():
    points = points_for(Range(asked=Point(4, 100), length_limit=1000))
    assert points[0] == (4, 100)
    assert {point.seq_len % 64 for point in points} == {36}
    assert min(point.seq_len for point in points) == 36
    assert max(point.seq_len for point in points) == 996  # 36 + 15 * 64
    assert {point.batch_size for point in points_for(Range(asked=Point(1, 100), length_limit=None))} == {1}


def test_a_program_reads_back_as_it_was_and_takes_few_bytes(program):
    text = json.dumps(program_data(program))
    assert program_of(json.loads(text)) == program
    assert len(gzip.compress(text.encode())) < 30_000


def test_two_programs_of_a_model_know_together_what_each_knows(program, recorder):  # noqa: F811
    single = record_program(CASES["llama"][0], Range(asked=Point(1, 64), length_limit=512), recorder)
    both = joined(program, single)
    assert [both.covers(*point) for point in (ASKED, Point(1, 128))] == ["", ""]
    assert both.evaluate(*ASKED) == program.evaluate(*ASKED)
    with pytest.raises(ValueError, match="cannot be joined"):
        joined(program, replace(single, model_class="GPT2LMHeadModel"))


@pytest.mark.parametrize("key", ["schema", "tables", "regimes", "monomials", "processors"])
def test_what_is_no_program_is_refused(program, key):
    data = json.loads(json.dumps(program_data(program)))
    for wrong in (None, 7, [], {}):
        with pytest.raises(OutputError):
            program_of({**data, key: wrong})


def test_the_store_gives_back_what_it_was_given(program, tmp_path):
    store = ProgramStore(tmp_path / "programs")
    assert store.load(KEY) is None
    store.save(KEY, program)
    assert store.load(KEY) == program
    assert store.load({**KEY, "model": "gpt2"}) is None
    assert store.notes == []


def test_a_damaged_or_foreign_file_is_a_note_and_recorded_anew(program, tmp_path):
    store = ProgramStore(tmp_path)
    store.save(KEY, program)
    (path,) = tmp_path.glob("*.json.gz")
    good = path.read_bytes()
    foreign = gzip.compress(json.dumps({"key": {"model": "other"}, "program": {}}).encode())
    bomb = gzip.compress(b" " * 300 * 2**20)
    for bad in (
        good[:-20],
        good[:100],
        b"",
        b"no gzip",
        gzip.compress(b"{}"),
        gzip.compress(b"[" * 10**6),
        foreign,
        bomb,
    ):
        path.write_bytes(bad)
        store.notes.clear()
        assert store.load(KEY) is None
        assert len(store.notes) == 1
        assert "recorded anew" in store.notes[0]
    store.save(KEY, program)
    assert store.load(KEY) == program


def test_a_folder_that_cannot_be_written_is_a_note(program, tmp_path):
    (tmp_path / "file").write_text("")
    store = ProgramStore(tmp_path / "file" / "programs")
    store.save(KEY, program)
    assert len(store.notes) == 1
    assert "could not be stored" in store.notes[0]
    assert ProgramStore(tmp_path / "nowhere").load(KEY) is None


def test_the_store_forgets_what_was_used_longest_ago(program, tmp_path):
    import os

    store = ProgramStore(tmp_path)
    store.save({"model": 0}, program)
    (first,) = tmp_path.glob("*.json.gz")
    size = first.stat().st_size
    os.utime(first, (1, 1))
    store = ProgramStore(tmp_path, max_bytes=2 * size + size // 2)
    for model in (1, 2):
        store.save({"model": model}, program)
    assert store.load({"model": 0}) is None
    assert store.load({"model": 1}) == store.load({"model": 2}) == program


def test_writers_and_readers_at_once_never_see_half_a_file(program, tmp_path):
    stores = [ProgramStore(tmp_path) for _ in range(4)]
    seen = []

    def work(store):
        for _ in range(5):
            store.save(KEY, program)
            seen.append(store.load(KEY) == program)

    threads = [threading.Thread(target=work, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 20
    assert [store.notes for store in stores] == [[]] * 4
    assert len(list(tmp_path.iterdir())) == 1
