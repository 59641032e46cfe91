"""The allocator against PyTorch's own on an imaginary GPU, compared after each of thousands of requests."""

import json
from pathlib import Path

import pytest
from gpu_fixture import installation, on_gpu  # noqa: F401

from memsim.allocator import AllocatorConfig
from memsim.errors import UsageError

MIB = 2**20
GIB = 2**30
FUZZ = Path(__file__).with_name("allocator_fuzz.py")

CASES = {
    "default": ("", {}),
    "three streams": ("", {"num_streams": 3}),
    "small device": ("", {"total_bytes": 3 * GIB}),
    "fraction": ("per_process_memory_fraction:0.4", {"total_bytes": 4 * GIB}),
    "expandable": ("expandable_segments:True", {}),
    "expandable on a small device": ("expandable_segments:True", {"total_bytes": 3 * GIB, "num_streams": 3}),
    "max split": ("max_split_size_mb:64,max_non_split_rounding_mb:40", {"total_bytes": 3 * GIB}),
    "garbage collection": (
        "garbage_collection_threshold:0.5,max_split_size_mb:100,per_process_memory_fraction:0.6",
        {"total_bytes": 5 * GIB},
    ),
    "divisions": ("roundup_power2_divisions:8", {}),
    "divisions by size": ("roundup_power2_divisions:[1:4,16:8,>:2]", {}),
    "large segments": ("large_segment_size_mb:40", {"most_bytes": 15 * MIB}),
    "large expandable segments": ("large_segment_size_mb:40,expandable_segments:True", {"total_bytes": 3 * GIB}),
    "recorded streams": ("", {"total_bytes": 3 * GIB, "num_streams": 4, "records": True}),
    "recorded streams, expandable": (
        "expandable_segments:True",
        {"total_bytes": 3 * GIB, "num_streams": 4, "records": True},
    ),
}


SEED = 3  # one with which the orders of torch 2.11 and 2.12 do show in the default case


def cases():
    """Yield every case; those with settings again without them in memsim's own; the orders of other versions."""
    for name, (conf, options) in CASES.items():
        case = {"name": name, "conf": conf, "total_bytes": 80 * GIB, "seed": SEED, **options}
        yield {**case, "num_operations": 1500}
        if conf:
            yield {**case, "num_operations": 400, "name": f"{name}, ignored", "model_conf": ""}
        if name == "default":
            for version in ("2.11", "2.12"):
                yield {**case, "num_operations": 1500, "name": f"order of {version}", "model_version": version}


@pytest.fixture(scope="module")
def known():
    return {}


@pytest.fixture
def answers(on_gpu, known):  # noqa: F811
    """What each case saw: counts, or the text of its first difference; run once."""
    if not known:
        known.update(on_gpu(FUZZ.read_text(encoding="utf-8"), CASES=json.dumps(list(cases()))))
    return known


def test_every_address_event_and_statistic_is_the_real_allocators(answers):
    assert {name: answers[name] for name in CASES if isinstance(answers[name], str)} == {}
    for name, (_, options) in CASES.items():
        counts = answers[name]
        if "total_bytes" in options:  # memory did run out
            assert 0 < counts["num_ooms"] <= counts["num_alloc_retries"], name
        assert counts["num_device_free"] > 0, name


def test_a_setting_that_is_not_heeded_would_be_seen(answers):
    texts = [answers[f"{name}, ignored"] for name, (conf, _) in CASES.items() if conf]
    assert all(isinstance(text, str) and "AssertionError" in text for text in texts)


def test_the_order_of_equal_blocks_of_another_version_would_be_seen(answers):
    for version in ("2.11", "2.12"):
        text = answers[f"order of {version}"]
        assert isinstance(text, str)
        assert "'address'" in text  # the first difference is where a block went


READ = """
import os
rows = {}
for text in json.loads(os.environ["TEXTS"]):
    torch.cuda.memory._set_allocator_settings("expandable_segments:False")
    try:
        torch.cuda.memory._set_allocator_settings(text)
    except (ValueError, RuntimeError, IndexError):
        rows[text] = None
        continue
    found = torch.cuda.memory._snapshot()["allocator_settings"]
    divisions = list(found["roundup_power2_divisions"].values())
    rows[text] = [found["max_split_size"], found["garbage_collection_threshold"], found["expandable_segments"],
                  divisions if any(divisions) else []]
print(json.dumps(rows))
"""
TEXTS = (
    "",
    "max_split_size_mb:64",
    " max_split_size_mb : 30 ,  expandable_segments:True,",
    "max_split_size_mb:30,max_split_size_mb:40",
    "max_split_size_mb:19",
    "max_split_size_mb:20",
    "max_split_size_mb:abc",
    "max_split_size_mb:",
    "max_split_size_mb",
    "max_split_size:30",
    "expandable_segments:True",
    "expandable_segments:true",
    "garbage_collection_threshold:1e-1",
    "garbage_collection_threshold:0",
    "garbage_collection_threshold:1.0",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:1",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:[256:1,512:2,>:8]",
    "roundup_power2_divisions:[>:8]",
    "roundup_power2_divisions:[1:4,16:8]",
    "roundup_power2_divisions:[16:8,1:4,>:2]",
    "roundup_power2_divisions:[65536:4]",
    "roundup_power2_divisions:[1:4,64:0,>:2]",
    "roundup_power2_divisions:[1:4,]",
    "roundup_power2_divisions:[]",
    "roundup_power2_divisions:[3:4]",
    "roundup_power2_divisions:[1:4",
    "max_non_split_rounding_mb:19",
    "max_non_split_rounding_mb:64",
    "per_process_memory_fraction:0",
    "per_process_memory_fraction:1.1",
    "pinned_use_cuda_host_register:True,pinned_max_cached_size_mb:8,release_lock_on_cudamalloc:True",
    "backend:native",
    "backend:other",
    ",",
)


def test_settings_are_read_as_pytorch_reads_them(on_gpu):  # noqa: F811
    for text, row in on_gpu(READ, TEXTS=json.dumps(TEXTS)).items():
        if row is None:
            with pytest.raises(UsageError):
                AllocatorConfig.parse(text)
            continue
        config = AllocatorConfig.parse(text)
        max_split = -1 if config.max_split_bytes is None else config.max_split_bytes
        divisions = list(config.roundup_power2_divisions)
        assert [max_split, config.garbage_collection_threshold, config.expandable_segments, divisions] == row, text
