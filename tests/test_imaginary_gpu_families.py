"""Forty model families train on imaginary GPUs of six compute capabilities, as real PyTorch lets them."""

import sys
from itertools import cycle
from pathlib import Path

import pytest
from gpu_fixture import installation  # noqa: F401

pytest.importorskip("transformers", minversion="5.0")

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import imaginary_gpu_families as families  # noqa: E402

# bf16 on every capability; the two others once each for every family, spread over the capabilities.
OTHERS = {
    capability: [
        (family.name, dtype)
        for dtype in ("fp32", "bf16-autocast")
        for family, turn in zip(families.FAMILIES, cycle(families.CAPABILITIES), strict=False)
        if turn == capability
    ]
    for capability in families.CAPABILITIES
}


def runs_of(capability):
    pairs = [(family.name, "bf16") for family in families.FAMILIES] + OTHERS[capability]
    return families.run(capability, pairs, num_steps=3)[0]


@pytest.mark.parametrize("capability", families.CAPABILITIES)
@pytest.mark.usefixtures("installation")
def test_every_family_trains_steadily_on_compute_capability(capability):
    runs = runs_of(capability)
    assert [(run.family, run.dtype, run.error) for run in runs if run.error] == []
    assert len(runs) == len(families.FAMILIES) + len(OTHERS[capability])
    for run in runs:
        name = (run.family, run.dtype)
        first, second, third = run.peak_bytes
        # Weights, gradients and AdamW's two states, all of the dtype of the weights, are there together from the first
        # optimizer step on; what the allocator rounds up comes on top.
        assert min(run.peak_bytes) >= 4 * run.parameter_bytes, name
        # The second step keeps the states over its forward and backward; no more than that can be added but cuBLAS'
        # workspaces, which are made once.
        assert second <= first + 2 * run.parameter_bytes + 2**25, name
        # From then on the steps are alike, but for blocks that are reused with up to 1 MiB unsplit.
        assert third == pytest.approx(second, rel=0.01), name


def test_forty_families_are_tried():
    assert len({family.name for family in families.FAMILIES}) == 40
