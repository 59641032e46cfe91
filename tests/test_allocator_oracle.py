"""The allocator against PyTorch's own on an imaginary GPU, compared after each of thousands of requests."""

import json
from pathlib import Path

from gpu_fixture import installation, on_gpu  # noqa: F401

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


def cases(num_operations, seed):
    defaults = {"total_bytes": 80 * GIB, "num_operations": num_operations, "seed": seed}
    return [{"name": name, "conf": conf, **defaults, **options} for name, (conf, options) in CASES.items()]


def test_every_address_event_and_statistic_is_the_real_allocators(on_gpu):  # noqa: F811
    results = on_gpu(FUZZ.read_text(encoding="utf-8"), CASES=json.dumps(cases(1500, seed=7)))
    assert {name: text for name, text in results.items() if isinstance(text, str)} == {}
    assert results.keys() == CASES.keys()
    for name, (_, options) in CASES.items():
        if "total_bytes" in options:  # memory did run out
            assert 0 < results[name]["num_ooms"] <= results[name]["num_alloc_retries"], name
        assert results[name]["num_device_free"] > 0, name


def test_a_wrong_rule_would_be_seen(on_gpu):  # noqa: F811
    """The cases do tell the settings apart: each one with memsim's own settings left at their defaults fails."""
    script = FUZZ.read_text(encoding="utf-8").replace('AllocatorConfig.parse(case["conf"])', "AllocatorConfig()")
    chosen = [case for case in cases(400, seed=7) if case["conf"]]
    results = on_gpu(script, CASES=json.dumps(chosen))
    assert [name for name, result in results.items() if not isinstance(result, str)] == []
    assert all("AssertionError" in text for text in results.values())
