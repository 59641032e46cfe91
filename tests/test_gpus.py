"""The table of GPUs."""

import re
from pathlib import Path

import pytest
from conftest import run_memsim

import memsim
from memsim.errors import UnknownNameError, UsageError
from memsim.gpus import all_gpus, find_gpu

GIB = 2**30


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("rtx4090", "NVIDIA GeForce RTX 4090"),
        ("nvidia-geforce-rtx-4090", "NVIDIA GeForce RTX 4090"),
        ("h100", "NVIDIA H100 80GB HBM3"),
        ("A100", "NVIDIA A100-SXM4-80GB"),
        ("a100-40gb", "NVIDIA A100-SXM4-40GB"),
        ("Tesla T4", "Tesla T4"),
        ("t4", "Tesla T4"),
    ],
)
def test_a_gpu_is_found_by_name_or_alias_in_any_spelling(given, name):
    assert find_gpu(given).name == name


def test_a_size_stands_for_a_gpu_with_that_memory_and_says_what_it_assumes():
    gpu = find_gpu("24GiB")
    assert gpu.memory_bytes == 24 * GIB
    assert gpu.compute_capability == (8, 0)
    assert "A100" in gpu.assumptions[0]
    assert find_gpu("24GB").memory_bytes == 24 * 10**9


def test_an_unknown_gpu_names_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        find_gpu("RTX 4099")
    assert "RTX 4090" in caught.value.nearest
    with pytest.raises(UnknownNameError):
        find_gpu("4091")  # a number is a name: a size has a unit


@pytest.mark.parametrize("size", ["0GiB", "1MiB", "2TiB"])
def test_a_size_that_no_gpu_has_is_refused(size):
    with pytest.raises(UsageError, match="256MiB to 1TiB"):
        find_gpu(size)


def test_no_name_means_two_gpus():
    keys = [{re.sub(r"[\s_-]+", "", name.lower()) for name in (gpu.name, *gpu.aliases)} for gpu in all_gpus()]
    assert sum(map(len, keys)) == len(set().union(*keys))


@pytest.mark.parametrize(
    ("name", "capability", "num_multiprocessors", "advertised_gib"),
    [  # NVIDIA's data sheets and whitepapers
        ("V100", (7, 0), 80, 16),
        ("T4", (7, 5), 40, 16),
        ("A100", (8, 0), 108, 80),
        ("A10", (8, 6), 72, 24),
        ("RTX 3090", (8, 6), 82, 24),
        ("RTX 4090", (8, 9), 128, 24),
        ("L4", (8, 9), 58, 24),
        ("L40S", (8, 9), 142, 48),
        ("H100", (9, 0), 132, 80),
        ("H200", (9, 0), 132, 141),
        ("B200", (10, 0), 148, 180),
        ("RTX 5090", (12, 0), 170, 32),
        ("A6000", (8, 6), 84, 48),
    ],
)
def test_the_facts_are_those_of_the_data_sheet(name, capability, num_multiprocessors, advertised_gib):
    gpu = find_gpu(name)
    assert (gpu.compute_capability, gpu.num_multiprocessors) == (capability, num_multiprocessors)
    assert 0.89 * advertised_gib < gpu.memory_bytes / GIB < advertised_gib
    assert gpu.memory_source


def test_the_stand_ins_know_the_limits_of_every_compute_capability():
    settings = Path(memsim.__file__).parent / "imaginary_gpu" / "csrc" / "settings.c"
    known = {int(number) for number in re.findall(r"\{(\d+), \d+, \d+, \d+, \d+\}", settings.read_text())}
    assert {10 * major + minor for major, minor in (gpu.compute_capability for gpu in all_gpus())} <= known


def test_the_command_lists_and_shows_gpus():
    assert "NVIDIA H200" in run_memsim("gpus").out
    shown = run_memsim("gpus", "rtx 4090", "--format", "json").json
    assert (shown["name"], shown["compute_capability"]) == ("NVIDIA GeForce RTX 4090", "8.9")
    listed = run_memsim("gpus", "40", "--format", "json").json
    assert {"NVIDIA L40S", "NVIDIA GeForce RTX 4090"} <= {row["name"] for row in listed}
    unknown = run_memsim("gpus", "RTX 4099")
    assert unknown.code == 2
    assert "RTX 4090" in unknown.err
    assert unknown.out == ""
