"""transformers' Adafactor: its state, compared with the real one on the CPU."""

from __future__ import annotations

import optimizer_oracle as oracle
import pytest
import step_oracle
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_tracker import StorageTracker
from transformers.optimization import Adafactor

from memsim.optimizers import resolve_optimizer
from memsim.optimizers.step import step_events, step_peak_bytes

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


def track_step(optimizer, parameters):
    """Run one real step; the `RMS` of the step before, which the step replaces, is seen to die."""
    replaced = [state["RMS"] for state in optimizer.state.values()]
    kept = [t for t in oracle.state_tensors(optimizer) if not any(t is rms for rms in replaced)]
    tracker = StorageTracker([*parameters.values(), *(p.grad for p in parameters.values()), *kept], mortal=replaced)
    del replaced
    with tracker:
        optimizer.step()
    return tracker


def assert_steps(options, dtype, shapes=None, device="cpu"):
    parameters = oracle.make_parameters(shapes or SHAPES, dtype, device)
    optimizer = Adafactor(parameters.values(), **options)
    for number in (1, 2, 3):
        oracle.fill_gradients(parameters.values())
        tracker = track_step(optimizer, parameters)
        resolved, on_cpu = resolve_optimizer(PATH, options), device == "cpu"
        events = step_events(resolved, oracle.specs(parameters), first_step=number == 1, on_cpu=on_cpu)
        step_oracle.assert_same_events(tracker, events, device)


OPTIONS = [
    {},
    MANUAL,
    {**MANUAL, "beta1": 0.9},
    {**MANUAL, "weight_decay": 0.1},
    {**MANUAL, "scale_parameter": True},
    {"beta1": 0.9, "weight_decay": 0.1, "warmup_init": True},
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: ",".join(f"{k}={v}" for k, v in o.items()) or "defaults")
def test_the_step_allocates_and_frees_what_memsim_says(options, dtype):
    assert_steps(options, dtype)


@settings(max_examples=25, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(1, 12), max_size=4).map(tuple), min_size=1, max_size=4),
    options=st.sampled_from(OPTIONS),
    dtype=st.sampled_from(sorted(oracle.DTYPES)),
)
def test_the_step_allocates_and_frees_what_memsim_says_for_any_shapes(shapes, options, dtype):
    assert_steps(options, dtype, {f"p{i}": shape for i, shape in enumerate(shapes)})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("options", [MANUAL, {**MANUAL, "beta1": 0.9, "weight_decay": 0.1}])
def test_on_a_device_that_is_not_the_cpu_the_means_are_made_on_the_host_first(options, dtype):
    # The meta device stands for the accelerator; it cannot compare a scalar, which `scale_parameter` would ask for.
    assert_steps(options, dtype, device="meta")


def test_half_precision_weights_need_five_copies_in_float32():
    # float32: the update of the one before, grad**2 and grad**2 + eps are alive together.
    # bfloat16: those three, and grad and p_data_fp32, all in 4 bytes an element: 20 bytes against 12.
    n = 512 * 512
    for dtype, expected in (("float32", 12), ("bfloat16", 20)):
        parameters = oracle.specs(oracle.make_parameters({"a": (512, 512), "b": (512, 512)}, dtype))
        peak = step_peak_bytes(resolve_optimizer(PATH, MANUAL), parameters, first_step=False)
        assert expected * n <= peak < (expected + 0.1) * n
