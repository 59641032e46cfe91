"""Drawn shapes: rules that divide, clip or pick dimensions equal the real state whatever the shape."""

from __future__ import annotations

import warnings

import optimizer_oracle as oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memsim.optimizers import names, rules

sizes = st.integers(1, 40)
matrices = st.tuples(sizes, sizes)
tensors = st.lists(st.integers(1, 12), min_size=0, max_size=4).map(tuple)
few = settings(max_examples=25, deadline=None)


def _real(module, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(pytest.importorskip(module, reason=f"{module} is not installed"), name)


@few
@given(numel=st.integers(1, 40_000), block_size=st.sampled_from([1, 7, 64, 100, 256]))
def test_torchao_quantizes_whole_blocks_only(numel, block_size):
    optimizers = pytest.importorskip("torchao.optim", reason="torchao is not installed")
    parameters = oracle.make_parameters({"w": (numel,)}, "bfloat16")
    optimizer = optimizers.AdamW8bit(parameters.values(), block_size=block_size)
    p = parameters["w"]
    moments = {name: optimizer._new_buffer(p, name == "exp_avg") for name in ("exp_avg", "exp_avg_sq")}
    state = {p: {"step": torch.tensor(0.0), **moments}}
    oracle.assert_state_equals("torchao.optim.AdamW8bit", {"block_size": block_size}, state, parameters)


@few
@given(shape=matrices, rank=sizes, dtype=st.sampled_from(["float32", "bfloat16"]))
def test_galore_clips_its_rank_to_the_matrix(shape, rank, dtype):
    group = {"rank": rank, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
    parameters = oracle.make_parameters({"w": shape}, dtype)
    optimizer = _real("galore_torch", "GaLoreAdamW")([{"params": list(parameters.values()), **group}])
    oracle.step_twice(optimizer, parameters)
    oracle.assert_state_equals("galore_torch.GaLoreAdamW", group, optimizer, parameters)


@few
@given(shape=matrices, rank=sizes)
def test_apollo_does_not(shape, rank):
    group = {"rank": rank, "update_proj_gap": 200, "scale": 1.0, "proj_type": "std"}
    group |= {"proj": "random", "scale_type": "channel"}
    parameters = oracle.make_parameters({"w": shape})
    optimizer = _real("apollo_torch", "APOLLOAdamW")([{"params": list(parameters.values()), **group}])
    oracle.step_twice(optimizer, parameters)
    oracle.assert_state_equals("apollo_torch.APOLLOAdamW", group, optimizer, parameters)


@few
@given(shape=tensors)
def test_came_factors_the_last_two_dimensions(shape):
    parameters = oracle.make_parameters({"w": shape}, "bfloat16")
    optimizer = _real("came_pytorch", "CAME")(parameters.values(), lr=1e-3)
    oracle.step_twice(optimizer, parameters)
    oracle.assert_state_equals("came_pytorch.CAME", {}, optimizer, parameters)


@few
@given(shape=st.lists(st.integers(1, 40), min_size=0, max_size=4).map(tuple))
def test_prodigy_plus_factors_the_two_largest_dimensions(shape):
    parameters = oracle.make_parameters({"w": shape})
    optimizer = _real("prodigyplus", "ProdigyPlusScheduleFree")(list(parameters.values()))
    oracle.step_twice(optimizer, parameters)
    oracle.assert_state_equals("prodigyplus.ProdigyPlusScheduleFree", {}, optimizer, parameters)


@few
@given(shape=st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple), mode=st.sampled_from([None, "one_diag"]))
def test_kron_merges_dimensions_into_the_narrower_matrix(shape, mode):
    real = _real("kron_torch", "Kron")
    parameters = oracle.make_parameters({"w": shape})
    optimizer = real(parameters.values(), memory_save_mode=mode)
    oracle.fill_gradients(parameters.values())
    with torch.compiler.set_stance("force_eager"):
        optimizer.step()
    state = {
        p: {key: [int(v) for v in value] if key == "merged_shape" else value for key, value in values.items()}
        for p, values in optimizer.state.items()
    }
    for values in state.values():
        del values["exprs"]
    oracle.assert_state_equals("kron_torch.Kron", {"memory_save_mode": mode}, state, parameters)


def test_memsim_knows_every_name_of_the_trainer_and_more_than_75_optimizers():
    from transformers.training_args import OptimizerNames

    assert {name.value for name in OptimizerNames} <= set(names())
    assert len(rules()) >= 75


def test_each_rule_says_where_it_was_read():
    for class_path, rule in rules().items():
        assert rule.source, class_path
        assert rule.version, class_path
