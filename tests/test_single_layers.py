"""Single layers of plain torch and transformers take on the imaginary GPU what others measured on real ones.

The rows, their sources and the reasons of the misses are in `benchmarks/single_layers.py`, which goes through all of
them. Here: the two ends of every sweep.
"""

import sys
from pathlib import Path

import pytest
from conftest import needs_shared
from gpu_fixture import installation  # noqa: F401

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import single_layers

MIB = 2**20


def ends_of_sweeps():
    sweeps = {}
    for row in single_layers.read_rows():
        sweeps.setdefault((row.gpu, row.kind, row.mode, row.shapes.get("dilation")), []).append(row)
    return [row for sweep in sweeps.values() for row in (sweep[0], sweep[-1])[: len(sweep)]]


@needs_shared
@pytest.mark.usefixtures("installation")
def test_single_layers_take_what_was_measured_on_real_gpus_or_miss_for_a_named_reason():
    made = single_layers.record(ends_of_sweeps())
    missed = {one.row.kind for one in made if abs(one.error) > 0.01}
    assert missed == set(single_layers.MISSES)
    assert sum(1 for one in made if abs(one.error) > 0.01) < len(made) / 3

    def off_by(kind):
        return [one.row.measured_bytes - one.recorded_bytes for one in made if one.row.kind == kind]

    tables_of_the_other_sweep = 3 * sum(2**power * 4096 * 4 for power in range(10, 18))
    assert off_by("embedding") == [tables_of_the_other_sweep] * 2
    first, last = off_by("fused_linear_orpo_loss T=4096")
    assert first == pytest.approx(last, abs=4096)  # a float32 of 64 GiB
    assert all(off > 0 for off in off_by("multi_token_attention"))
