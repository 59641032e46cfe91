"""The state of every `torch.optim` class equals the real optimizer's, entry by entry."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import optimizer_oracle as oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers import derive_state, resolve_optimizer, rules
from memsim.tensors import TensorSpec

ELEMENTWISE: dict[str, list[dict[str, Any]]] = {
    "Adam": [{}, {"amsgrad": True}, {"weight_decay": 0.1}, {"decoupled_weight_decay": True, "maximize": True}],
    "AdamW": [{}, {"amsgrad": True}, {"weight_decay": 0.0}, {"maximize": True}],
    "Adamax": [{}, {"weight_decay": 0.1}],
    "NAdam": [{}, {"decoupled_weight_decay": True, "weight_decay": 0.1}],
    "RAdam": [{}, {"decoupled_weight_decay": True, "weight_decay": 0.1}],
    "Adadelta": [{}, {"weight_decay": 0.1}],
    "Adagrad": [{}, {"initial_accumulator_value": 0.5}],
    "RMSprop": [{}, {"momentum": 0.9}, {"centered": True}, {"momentum": 0.9, "centered": True}],
    "Rprop": [{}, {"maximize": True}],
    "ASGD": [{}, {"weight_decay": 0.1}],
    "SGD": [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "weight_decay": 0.1}],
}
FUSED = ("Adam", "AdamW", "Adagrad", "SGD")


def _forms(name: str) -> list[dict[str, bool]]:
    return [{}, {"foreach": True}, {"foreach": False}, *([{"fused": True}] if name in FUSED else [])]


CASES = [
    pytest.param(name, {**options, **form}, id=f"{name}-{ ({**options, **form}) }")
    for name, choices in ELEMENTWISE.items()
    for options in choices
    for form in _forms(name)
]


def _check(name: str, args: dict[str, Any], dtype: str, shapes: dict[str, tuple[int, ...]] = oracle.SHAPES) -> None:
    parameters = oracle.make_parameters(shapes, dtype)
    optimizer = getattr(torch.optim, name)(parameters.values(), **args)
    oracle.step_twice(optimizer, parameters)
    oracle.assert_state_equals(f"torch.optim.{name}", args, optimizer, parameters)


@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize(("name", "args"), CASES)
def test_the_state_equals_the_real_one(name, args, dtype):
    _check(name, args, dtype)


_NOT_EMPTY = {name: shape for name, shape in oracle.SHAPES.items() if 0 not in shape}
_MATRICES = {name: shape for name, shape in _NOT_EMPTY.items() if len(shape) == 2}


@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize("args", [{}, {"foreach": True}, {"maximize": True}], ids=str)
def test_the_state_of_adafactor_equals_the_real_one(args, dtype):
    _check("Adafactor", args, dtype, _NOT_EMPTY)


@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize("args", [{}, {"nesterov": False}], ids=str)
def test_the_state_of_muon_equals_the_real_one(args, dtype):
    _check("Muon", args, dtype, _MATRICES)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_state_of_sparse_adam_equals_the_real_one(dtype):
    parameters = oracle.make_parameters({"embedding": (997, 64), "vector": (768,)}, dtype)
    optimizer = torch.optim.SparseAdam(list(parameters.values()))
    for _ in range(2):
        for p in parameters.values():
            rows = torch.tensor([[0, 3, 3, 7]])
            values = torch.randn(4, *p.shape[1:]).to(p.dtype)
            p.grad = torch.sparse_coo_tensor(rows, values, p.shape)
        optimizer.step()
    oracle.assert_state_equals("torch.optim.SparseAdam", {}, optimizer, parameters)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "args",
    [
        {"max_iter": 1, "lr": 0.01},
        {"max_iter": 2, "lr": 0.01},
        {"max_iter": 5, "lr": 0.01},
        {"max_iter": 5, "lr": 0.01, "history_size": 2},
        {"max_iter": 4, "lr": 0.01, "history_size": 3},
        {"max_iter": 3},
    ],
    ids=str,
)
def test_the_state_of_lbfgs_equals_the_real_one_after_as_many_iterations(args, dtype):
    parameters = oracle.make_parameters({"weight": (8, 5), "empty": (0,), "bias": (7,)}, dtype)
    optimizer = torch.optim.LBFGS(parameters.values(), tolerance_change=0.0, tolerance_grad=0.0, **args)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = sum((p.float() * (i + 1 + torch.arange(p.numel()).view(p.shape) / 7) - 1).pow(2).sum()
                   for i, p in enumerate(parameters.values()))  # fmt: skip
        loss.backward()
        return loss

    optimizer.step(closure)
    state = optimizer.state[parameters["weight"]]
    learnt = len(state.get("old_dirs", ()))
    # The rule assumes that every iteration adds a pair; this problem is so smooth that each one does.
    assert learnt == min(state["n_iter"] - 1, args.get("history_size", 100))
    own = {"num_iterations": state["n_iter"]}
    oracle.assert_state_equals("torch.optim.LBFGS", {**args, **own}, optimizer, parameters)


def test_lbfgs_is_shown_with_a_full_history_unless_told_otherwise():
    parameters = oracle.specs(oracle.make_parameters({"weight": (8, 5)}))
    state = derive_state(resolve_optimizer("torch.optim.LBFGS", {"history_size": 7}), parameters)
    # d, prev_flat_grad and two vectors for each of the 7 pairs, all of 40 elements; ro and al per pair and one H_diag.
    assert state.total_bytes == (2 + 2 * 7) * 40 * 4 + (7 + 7 + 1) * 4


@pytest.mark.parametrize("dtype", oracle.DTYPES)
@settings(max_examples=10, deadline=None)
@given(shapes=st.lists(st.lists(st.integers(0, 9), max_size=4).map(tuple), min_size=1, max_size=4))
def test_the_state_equals_the_real_one_for_any_shape(dtype, shapes):
    named = {f"p{i}": shape for i, shape in enumerate(shapes)}
    for name, choices in ELEMENTWISE.items():
        _check(name, choices[-1], dtype, named)
    not_empty = {name: shape for name, shape in named.items() if 0 not in shape}
    if not_empty:
        _check("Adafactor", {}, dtype, not_empty)


def test_a_parameter_without_gradient_has_no_state_and_one_of_adagrad_has():
    for name, made in (("AdamW", False), ("Adagrad", True)):
        parameters = oracle.make_parameters({"trained": (3, 2), "unused": (4,)})
        optimizer = getattr(torch.optim, name)(parameters.values())
        before_first_step = bool(oracle.real_state(optimizer, parameters))
        oracle.fill_gradients([parameters["trained"]])
        optimizer.step()
        assert (parameters["unused"] in optimizer.state) == before_first_step == made
        rule = rules()[f"torch.optim.{name}"]
        assert rule.created == ("constructor" if made else "first step")


CAPTURABLE = ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adadelta", "RMSprop", "Rprop", "ASGD")
PLACES = [
    *((name, {}) for name in (*ELEMENTWISE, "Adafactor")),
    *((name, {"capturable": True}) for name in CAPTURABLE),
    ("Adam", {"fused": True}),
    ("AdamW", {"fused": True, "amsgrad": True}),
    ("Adagrad", {"fused": True}),
    ("SGD", {"momentum": 0.9}),
]


@pytest.mark.parametrize(("name", "args"), PLACES, ids=[f"{name}-{args}" for name, args in PLACES])
def test_each_entry_lives_where_the_real_one_does(name, args, monkeypatch):
    """Parameters on the meta device stand for an accelerator: what is not made there is on the host."""
    for module in ("adam", "adagrad"):
        monkeypatch.setattr(sys.modules[f"torch.optim.{module}"], "_device_dtype_check_for_fused", lambda *_: None)
    parameters = oracle.make_parameters({"weight": (6, 4)}, device="meta")
    optimizer = getattr(torch.optim, name)(parameters.values(), **args)
    parameters["weight"].grad = torch.empty_like(parameters["weight"])
    # The state is made before the arithmetic, which has no meta kernel or refuses the device.
    with contextlib.suppress(NotImplementedError, RuntimeError, AssertionError):
        optimizer.step()
    real = {key: "device" if value.is_meta else "host" for key, value in optimizer.state[parameters["weight"]].items()}
    assert real or (name, args) == ("SGD", {})
    predicted = derive_state(resolve_optimizer(f"torch.optim.{name}", args), oracle.specs(parameters))
    assert {row.name: row.device for row in predicted} == real


def _one(shape: tuple[int, ...] = (4, 3), dtype: str = "float32") -> list[ParameterSpec]:
    return [ParameterSpec(name="layer.weight", tensor=TensorSpec(shape, dtype))]


@pytest.mark.parametrize(
    ("name", "args", "shape", "message"),
    [
        ("Muon", {}, (4,), r"2-D parameters only; 'layer.weight' has shape \(4,\)"),
        ("Adafactor", {}, (0, 3), "'layer.weight', which has no elements"),
        ("AdamW", {"foreach": True, "fused": True}, (4, 3), "foreach=True and fused=True exclude each other"),
        ("AdamW", {"differentiable": True, "fused": True}, (4, 3), "differentiable=True has no fused form"),
        ("SGD", {"nesterov": True}, (4, 3), "needs momentum > 0"),
        ("LBFGS", {"history_size": 0}, (4, 3), "history_size must be from 1 to 10,000, not 0"),
        ("LBFGS", {"num_iterations": 0}, (4, 3), "num_iterations must be from 1 to 10,000, not 0"),
    ],
)
def test_what_the_real_class_refuses_is_a_usage_error(name, args, shape, message):
    with pytest.raises(UsageError, match=message):
        derive_state(resolve_optimizer(f"torch.optim.{name}", args), _one(shape))


@pytest.mark.parametrize(
    ("name", "args", "shape"),
    [
        ("Muon", {}, (4,)),
        ("Adafactor", {}, (0, 3)),
        ("AdamW", {"foreach": True, "fused": True}, (4, 3)),
        ("AdamW", {"differentiable": True, "fused": True}, (4, 3)),
        ("SGD", {"nesterov": True}, (4, 3)),
    ],
)
def test_the_real_class_refuses_it_too(name, args, shape):
    parameters = oracle.make_parameters({"weight": shape})
    oracle.fill_gradients(parameters.values())
    with pytest.raises((ValueError, RuntimeError, ZeroDivisionError)):
        getattr(torch.optim, name)(parameters.values(), **args).step()


def test_a_form_that_the_class_does_not_have_is_a_usage_error():
    with pytest.raises(UsageError, match=r"torch\.optim\.Adamax has no fused form"):
        resolve_optimizer("torch.optim.Adamax", impl="fused")


def test_an_asked_form_replaces_the_one_that_a_name_brings():
    args = resolve_optimizer("adamw_torch_fused", impl="foreach").args
    assert (args["foreach"], args["fused"]) == (True, False)
