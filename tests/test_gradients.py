"""Clipping and unscaling gradients allocate and free what the real functions do."""

from __future__ import annotations

import re
from pathlib import Path

import optimizer_oracle as oracle
import pytest
import step_oracle
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_tracker import StorageTracker

from memsim.model import ParameterSpec
from memsim.optimizers import StepEvent, peak_bytes
from memsim.optimizers.gradients import CHUNK, clip_grad_norm_events, unscale_events
from memsim.tensors import TensorSpec

SHAPES = {"embedding": (997, 64), "matrix": (7, 9), "vector": (11,), "scalar": (), "empty": (0,)}


def _check_clip(parameters: dict[str, torch.nn.Parameter], norm_type: float, foreach: bool | None) -> None:
    oracle.fill_gradients(parameters.values())
    device = next(iter(parameters.values())).device.type
    known = [t for p in parameters.values() for t in (p, p.grad)]
    with StorageTracker(known) as tracker:
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0, norm_type, foreach=foreach)
        tracked = list(tracker.events)
    events = clip_grad_norm_events(
        oracle.specs(parameters), norm_type=norm_type, foreach=foreach is not False, on_cpu=device == "cpu"
    )
    assert tracked == step_oracle.visible(events, device)
    handed_on = {e.key: e for e in events if e.action == "alloc"}
    for event in events:
        if event.action == "free":
            del handed_on[event.key]
    assert [(e.name, e.tensor.dtype) for e in handed_on.values()] == [
        ("total_norm", str(norm.dtype).removeprefix("torch."))
    ]


@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, float("inf")])
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_clipping_allocates_and_frees_what_the_real_function_does(dtype, norm_type, foreach):
    shapes = {name: shape for name, shape in SHAPES.items() if norm_type != float("inf") or name != "empty"}
    _check_clip(oracle.make_parameters(shapes, dtype), norm_type, foreach)


@pytest.mark.parametrize("foreach", [True, False])
def test_clipping_two_dtypes_does_too(foreach):
    wide = oracle.make_parameters({"a": (5, 4), "b": (3,)}, "float32")
    narrow = oracle.make_parameters({"c": (9, 2)}, "bfloat16")
    _check_clip({**wide, **narrow}, 2.0, foreach)
    _check_clip({**narrow, **wide}, 2.0, foreach)


def test_clipping_on_an_accelerator_in_for_loop_form_does_too():
    _check_clip(oracle.make_parameters(SHAPES, "bfloat16", "meta"), 2.0, False)


@settings(max_examples=25, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(0, 9), max_size=4).map(tuple), min_size=1, max_size=6), foreach=st.booleans()
)
def test_clipping_any_shapes_does_too(shapes, foreach):
    _check_clip(oracle.make_parameters({f"p{i}": s for i, s in enumerate(shapes)}), 2.0, foreach)


def _specs(*numels: int, dtype: str = "bfloat16") -> list[ParameterSpec]:
    return [ParameterSpec(name=f"p{i}", tensor=TensorSpec((n,), dtype)) for i, n in enumerate(numels)]


def _allocated(events: list[StepEvent], name: str) -> list[TensorSpec]:
    return [e.tensor for e in events if e.action == "alloc" and e.name == name]


def test_the_cuda_norm_keeps_a_float32_for_each_chunk_of_the_largest_tensor_and_each_tensor():
    events = clip_grad_norm_events(_specs(10, 3 * 65536 + 1, 65536))
    # 3 tensors, 4 chunks of 65,536 in the largest.
    assert _allocated(events, "output_per_tensor") == [TensorSpec((12,), "float32")]
    # The partial sums, and one bfloat16 for each of the three norms.
    assert peak_bytes(events) == 12 * 4 + 3 * 2
    # A norm that has no kernel, or the for-loop, or the CPU, keeps none.
    for other in ({"norm_type": 3.0}, {"foreach": False}, {"on_cpu": True}):
        assert not _allocated(clip_grad_norm_events(_specs(10, 3 * 65536 + 1), **other), "output_per_tensor")


def test_a_tensor_without_elements_gets_a_zero_beside_its_unused_result():
    events = clip_grad_norm_events(_specs(10, 0))
    assert len(_allocated(events, "norms")) == 3 + 1  # two results, one zero, and all of them stacked


def test_the_chunk_is_the_one_of_the_installed_headers():
    header = Path(torch.__file__).parent / "include/ATen/native/cuda/MultiTensorApply.cuh"
    if not header.exists():
        pytest.skip("this build of torch has no CUDA headers")
    found = re.search(r"constexpr int64_t kChunkSize = (\d+);", header.read_text())
    assert found
    assert int(found.group(1)) == CHUNK


def test_unscaling_allocates_and_frees_what_the_real_scaler_does():
    parameters = oracle.make_parameters(SHAPES)
    optimizer = torch.optim.SGD(parameters.values())
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))  # makes the scale, which is there from the first forward on
    oracle.fill_gradients(parameters.values())
    known = [scaler._scale, scaler._growth_tracker, *(t for p in parameters.values() for t in (p, p.grad))]
    with StorageTracker(known) as tracker:
        scaler.unscale_(optimizer)
        tracked = list(tracker.events)
    assert tracked == step_oracle.visible(unscale_events(oracle.specs(parameters)), "cpu")


def test_without_gradients_nothing_happens():
    assert clip_grad_norm_events([]) == []
    assert unscale_events([]) == []
