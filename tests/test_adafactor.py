"""transformers' Adafactor: its state, compared with the real one on the CPU."""

from __future__ import annotations

import optimizer_oracle as oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.optimization import Adafactor

PATH = "transformers.optimization.Adafactor"
MANUAL = {"lr": 1e-3, "scale_parameter": False, "relative_step": False}
SHAPES = {**oracle.SHAPES, "matrix_without_rows": (0, 4)}


def assert_state(options, dtype, shapes=None):
    parameters = oracle.make_parameters(shapes or SHAPES, dtype)
    optimizer = Adafactor(parameters.values(), **options)
    oracle.step_twice(optimizer, parameters)
    oracle.assert_state_equals(PATH, options, optimizer, parameters)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        MANUAL,
        {**MANUAL, "beta1": 0.9},
        {**MANUAL, "beta1": 0.0},
        {**MANUAL, "weight_decay": 0.1},
        {"warmup_init": True},
        {**MANUAL, "scale_parameter": True},
    ],
    ids=lambda options: ",".join(f"{k}={v}" for k, v in options.items()) or "defaults",
)
def test_state_is_the_real_one(options, dtype):
    assert_state(options, dtype)


def test_state_of_float64_parameters_is_float64():
    parameters = {"w": torch.nn.Parameter(torch.randn(4, 3, dtype=torch.float64))}
    optimizer = Adafactor(parameters.values(), **MANUAL)
    oracle.step_twice(optimizer, parameters)
    assert {e.dtype for e in oracle.real_state(optimizer, parameters)} == {"float64", "python:int"}
    oracle.assert_state_equals(PATH, MANUAL, optimizer, parameters)


@settings(max_examples=40, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(1, 12), max_size=4).map(tuple), min_size=1, max_size=4),
    beta1=st.sampled_from([None, 0.9]),
    dtype=st.sampled_from(sorted(oracle.DTYPES)),
)
def test_state_is_the_real_one_for_any_shapes(shapes, beta1, dtype):
    assert_state({**MANUAL, "beta1": beta1}, dtype, {f"p{i}": shape for i, shape in enumerate(shapes)})
