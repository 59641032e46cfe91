"""bitsandbytes: the state of every class of `bitsandbytes.optim`, compared with the real one on the CPU."""

from __future__ import annotations

import inspect
from typing import Any

import bitsandbytes as bnb
import optimizer_oracle as oracle
import pytest
import step_oracle
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_tracker import StorageTracker

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers import derive_state, resolve_optimizer, rules
from memsim.optimizers.step import step_events, step_peak_bytes
from memsim.tensors import TensorSpec

CLASSES = sorted(
    name
    for name, value in vars(bnb.optim).items()
    if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer)
)
MOMENTUM = {name: {"lr": 1e-3, "momentum": 0.9} for name in CLASSES if name.startswith(("SGD", "LARS"))}
TAKES_BITS = [
    name
    for name in CLASSES
    if "optim_bits" in inspect.signature(getattr(bnb.optim, name)).parameters and "bit" not in name
]
# Their step() cannot run on the CPU: AdEMAMix32bit indexes a state that has one average only, and paged AdEMAMix asks
# a CUDA library for memory.
WITHOUT_STEP = [name for name in CLASSES if "AdEMAMix" in name and ("Paged" in name or "32bit" in name)]
PAGED = [name for name in CLASSES if name.startswith("Paged")]


def build(name: str, parameters: dict[str, Any], **options: Any) -> Any:
    return getattr(bnb.optim, name)(list(parameters.values()), **MOMENTUM.get(name, {}), **options)


def make_state(optimizer: Any) -> None:
    """Create the state as the first step does, without the arithmetic."""
    optimizer.check_overrides()
    for group_index, group in enumerate(optimizer.param_groups):
        for index, p in enumerate(group["params"]):
            optimizer.init_state(group, p, group_index, index)


def assert_state(name: str, dtype: str = "float32", **options: Any) -> None:
    parameters = oracle.make_parameters(dtype=dtype)
    optimizer = build(name, parameters, **options)
    make_state(optimizer)
    oracle.assert_state_equals(f"bitsandbytes.optim.{name}", options, optimizer, parameters)


def test_every_class_of_bitsandbytes_optim_has_a_rule():
    known = {path.rpartition(".")[2] for path in rules() if path.startswith("bitsandbytes.optim.")}
    assert known == set(CLASSES)
    assert len(CLASSES) == 40


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", [name for name in CLASSES if name != "PytorchLARS"])
def test_state_is_the_real_one(name, dtype):
    assert_state(name, dtype)


@pytest.mark.parametrize("name", TAKES_BITS)
def test_state_is_the_real_one_with_optim_bits_8(name):
    assert_state(name, "bfloat16", optim_bits=8)


@pytest.mark.parametrize("min_8bit_size", [0, 1000, 4097, 16384])
@pytest.mark.parametrize("name", ["AdamW8bit", "Lion8bit", "LAMB8bit", "AdEMAMix8bit"])
def test_state_is_the_real_one_for_another_min_8bit_size(name, min_8bit_size):
    assert_state(name, min_8bit_size=min_8bit_size)


@pytest.mark.parametrize("max_unorm", [0.0, 0.5])
@pytest.mark.parametrize("name", ["LAMB", "LAMB32bit", "LARS", "LARS8bit"])
def test_the_norm_scalar_exists_only_with_max_unorm(name, max_unorm):
    assert_state(name, max_unorm=max_unorm)


@pytest.mark.parametrize("options", [{}, {"nesterov": True}, {"weight_decay": 0.1}])
def test_pytorch_lars_keeps_one_momentum_buffer(options):
    assert_lars("float32", options)


def test_pytorch_lars_keeps_the_gradients_dtype():
    assert_lars("bfloat16", {"max_unorm": 0.0})


def assert_lars(dtype: str, options: dict[str, Any]) -> None:
    parameters = oracle.make_parameters(dtype=dtype)
    options = {"lr": 0.01, "momentum": 0.9, **options}
    optimizer = bnb.optim.PytorchLARS(list(parameters.values()), **options)
    oracle.step_twice(optimizer, parameters)
    oracle.assert_state_equals("bitsandbytes.optim.PytorchLARS", options, optimizer, parameters)


@pytest.mark.parametrize("name", ["AdamW8bit", "Adam8bit", "Lion8bit", "AdEMAMix8bit", "RMSprop8bit"])
def test_embeddings_in_32bit_is_the_override_that_the_trainer_registers(name):
    model = torch.nn.Sequential(torch.nn.Embedding(300, 32), torch.nn.Linear(128, 64), torch.nn.Embedding(10, 4))
    parameters = dict(model.named_parameters())
    optimizer = build(name, parameters)
    manager = bnb.optim.GlobalOptimManager.get_instance()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})
    oracle.step_twice(optimizer, parameters)
    classes = {"0.weight": "Embedding", "1.weight": "Linear", "1.bias": "Linear", "2.weight": "Embedding"}
    args = {"embeddings_in_32bit": True}
    oracle.assert_state_equals(f"bitsandbytes.optim.{name}", args, optimizer, parameters, classes)
    with pytest.raises(AssertionError, match=r"0\.weight"):
        oracle.assert_state_equals(f"bitsandbytes.optim.{name}", {}, optimizer, parameters, classes)


@pytest.mark.parametrize("name", PAGED)
@pytest.mark.parametrize("bits", [8, 32])
def test_paged_state_is_in_unified_memory_from_100000_elements_on(name, bits, monkeypatch):
    """On a device that is not the CPU the real code asks `get_paged` for exactly the states that memsim calls managed.

    The meta device stands for the accelerator, and `get_paged`, which needs a CUDA library, is replaced.
    """
    options = {"optim_bits": bits} if name in TAKES_BITS else {}
    paged: list[int] = []

    def get_paged(*shape: int, dtype: Any, device: Any) -> Any:
        buffer = torch.empty(shape, dtype=dtype, device=device)
        paged.append(id(buffer))
        return buffer

    monkeypatch.setattr(bnb.functional, "get_paged", get_paged)
    monkeypatch.setattr(bnb.functional, "fill", lambda *_: None)
    shapes = {"small": (10,), "below": (99_999,), "at": (100_000,), "matrix": (400, 251), "half": (50_000,)}
    parameters = {n: torch.nn.Parameter(torch.empty(s, device="meta")) for n, s in shapes.items()}
    optimizer = build(name, parameters, **options)
    make_state(optimizer)
    real = {(n, key) for n, p in parameters.items() for key, value in optimizer.state[p].items() if id(value) in paged}
    oracle.assert_state_equals(f"bitsandbytes.optim.{name}", options, optimizer, parameters)
    predicted = oracle.predicted_state(f"bitsandbytes.optim.{name}", options, parameters)
    assert {(r.parameter, r.name) for r in predicted if r.device == "managed"} == real
    assert {n for n, _ in real} == {"at", "matrix"}


WITH_STEP = [name for name in CLASSES if name not in WITHOUT_STEP]


def assert_steps(name: str, args: dict[str, Any], optimizer: Any, parameters: dict[str, Any], device="cpu") -> None:
    """Like `step_oracle.assert_step_equals`, with the tables that the constructor made on the CPU known to be there."""
    resolved = resolve_optimizer(f"bitsandbytes.optim.{name}", args)
    for first_step in (True, False):
        oracle.fill_gradients(parameters.values())
        gradients = [p.grad for p in parameters.values()]
        tables = getattr(optimizer, "name2qmap", {}).values()
        known = [*parameters.values(), *gradients, *tables, *oracle.state_tensors(optimizer)]
        with StorageTracker(known) as tracker:
            optimizer.step()
        specs = oracle.specs(parameters)
        events = step_events(resolved, specs, first_step=first_step, on_cpu=device == "cpu")
        step_oracle.assert_same_events(tracker, events, device)
    oracle.assert_state_equals(f"bitsandbytes.optim.{name}", args, optimizer, parameters)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", [name for name in WITH_STEP if name != "PytorchLARS"])
def test_two_steps_allocate_what_memsim_says_outside_the_kernels(name, dtype):
    parameters = oracle.make_parameters(dtype=dtype)
    assert_steps(name, {}, build(name, parameters), parameters)


@pytest.mark.parametrize("options", [{}, {"nesterov": True}, {"weight_decay": 0.1}, {"max_unorm": 0.0}])
def test_the_step_of_pytorch_lars_allocates_what_memsim_says(options):
    # One random element may have so small a gradient that its update is not scaled.
    shapes = {name: shape for name, shape in oracle.SHAPES.items() if torch.Size(shape).numel() != 1}
    parameters = oracle.make_parameters(shapes)
    options = {"lr": 0.01, "momentum": 0.9, **options}
    optimizer = bnb.optim.PytorchLARS(list(parameters.values()), **options)
    assert_steps("PytorchLARS", options, optimizer, parameters)


@pytest.mark.parametrize("name", [n for n in WITH_STEP if not n.startswith(("Paged", "LAMB", "LARS", "Pytorch"))])
def test_on_a_device_that_is_not_the_cpu_the_first_8bit_parameter_makes_the_tables(name, monkeypatch):
    """The meta device stands for the accelerator; its kernels, which allocate nothing, are left out."""
    monkeypatch.setattr(bnb.functional, "optimizer_update_8bit_blockwise", lambda *_, **__: None)
    monkeypatch.setattr(bnb.functional, "optimizer_update_32bit", lambda *_, **__: None)
    parameters = oracle.make_parameters(device="meta")
    assert_steps(name, {}, build(name, parameters), parameters, "meta")


def test_lamb_converts_one_half_precision_parameter_at_a_time_for_its_norm():
    parameters = oracle.specs(oracle.make_parameters({"small": (10,), "large": (4096,)}, "bfloat16"))
    resolved = resolve_optimizer("bitsandbytes.optim.LAMB")
    # 4,096 float32 elements and the norm itself.
    assert step_peak_bytes(resolved, parameters, first_step=False) == 4096 * 4 + 4
    resolved = resolve_optimizer("bitsandbytes.optim.LAMB", {"max_unorm": 0.0})
    assert step_peak_bytes(resolved, parameters, first_step=False) == 0


def test_tables_are_counted_once_however_many_parameters_use_them():
    # 2 tables x 256 float32 values = 2,048 bytes; 100 parameters of 4,096 elements: 2 states of one byte each and
    # 2 x 16 absmax values.
    parameters = [ParameterSpec(name=f"p{i}", tensor=TensorSpec((4096,), "float32")) for i in range(100)]
    state = derive_state(resolve_optimizer("bitsandbytes.optim.AdamW8bit"), parameters)
    assert state.shared_bytes == 2 * 256 * 4
    assert state.total_bytes == 100 * (2 * 4096 + 2 * 16 * 4) + 2 * 256 * 4


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("AdamW8bit", {"amsgrad": True}),
        ("AdamW8bit", {"optim_bits": 8}),
        ("PagedAdam8bit", {"amsgrad": True}),
        ("LAMB8bit", {"max_unorm": 0.5}),
        ("LAMB8bit", {"amsgrad": True}),
        ("SGD", {"lr": 1e-3, "momentum": 0.0}),
        ("LARS", {"lr": 1e-3, "momentum": 0.0}),
        ("RMSprop", {"centered": True}),
        ("RMSprop", {"alpha": 0.0}),
        ("Adagrad", {"lr_decay": 0.1}),
        ("Adagrad", {"initial_accumulator_value": 0.1}),
        ("Adagrad8bit", {"optim_bits": 32}),
        ("AdamW", {"optim_bits": 16}),
    ],
)
def test_what_the_real_class_refuses_memsim_refuses_too(name, options):
    parameters = oracle.make_parameters({"weight": (5000,)})
    with pytest.raises((ValueError, NotImplementedError)):
        make_state(getattr(bnb.optim, name)(list(parameters.values()), **options))
    with pytest.raises(UsageError):
        oracle.predicted_state(f"bitsandbytes.optim.{name}", options, parameters)


def test_an_args_object_is_refused_since_memsim_cannot_look_into_it():
    with pytest.raises(UsageError, match="args="):
        oracle.predicted_state("bitsandbytes.optim.AdamW", {"args": object()}, oracle.make_parameters({"w": (3,)}))


_shape = st.lists(st.integers(0, 40), max_size=4).map(tuple) | st.integers(4000, 4200).map(lambda n: (n,))


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from([name for name in CLASSES if name != "PytorchLARS" and not name.startswith("Paged")]),
    shapes=st.lists(_shape, min_size=1, max_size=4),
    min_8bit_size=st.integers(0, 5000),
    dtype=st.sampled_from(sorted(oracle.DTYPES)),
)
def test_state_is_the_real_one_for_any_shapes(name, shapes, min_8bit_size, dtype):
    parameters = oracle.make_parameters({f"p{i}": shape for i, shape in enumerate(shapes)}, dtype)
    optimizer = build(name, parameters, min_8bit_size=min_8bit_size)
    make_state(optimizer)
    args = {"min_8bit_size": min_8bit_size}
    oracle.assert_state_equals(f"bitsandbytes.optim.{name}", args, optimizer, parameters)
