"""The optimizers of `torch_optimizer` against their rules: every entry of every real state, after two real steps."""

from __future__ import annotations

import warnings

import optimizer_oracle as oracle
import pytest

from memsim.errors import UsageError
from memsim.optimizers import rules

torch_optimizer = pytest.importorskip("torch_optimizer", reason="torch-optimizer is not installed")

DTYPES = ("float32", "bfloat16")
SHAPES = {name: shape for name, shape in oracle.SHAPES.items() if name not in {"scalar", "empty"}}
SMALL = {"square": (24, 24), "matrix": (12, 40), "row": (1, 32), "vector": (30,), "one_element": (1,)}
PLAIN = sorted(
    name
    for name in (path.removeprefix("torch_optimizer.") for path in rules() if path.startswith("torch_optimizer."))
    if name not in {"Adafactor", "Adahessian", "Shampoo"}
)


def check(name, dtype, shapes=SHAPES, **args):
    parameters = oracle.make_parameters(shapes, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = getattr(torch_optimizer, name)(list(parameters.values()), **args)
        oracle.step_twice(optimizer, parameters)
    state = {p: values for p, values in optimizer.state.items() if p in set(parameters.values())}
    oracle.assert_state_equals(f"torch_optimizer.{name}", args, state, parameters)


def test_at_least_twenty_five_classes_are_compared():
    assert len(PLAIN) >= 25


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PLAIN)
def test_the_rule_is_the_real_state(name, dtype):
    check(name, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beta1", [None, 0.9])
def test_adafactor_is_the_real_state(beta1, dtype):
    check("Adafactor", dtype, SMALL, beta1=beta1)


def test_adafactor_fails_where_the_rule_refuses():
    parameters = oracle.make_parameters({"conv": (8, 3, 5, 5)})
    with pytest.raises(RuntimeError, match="must match"):
        oracle.step_twice(torch_optimizer.Adafactor(parameters.values()), parameters)
    with pytest.raises(UsageError, match="beyond two dimensions"):
        oracle.predicted_state("torch_optimizer.Adafactor", {}, parameters)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_shampoo_is_the_real_state(momentum):
    check("Shampoo", "float32", SMALL | {"batch": (4, 6, 5)}, momentum=momentum)


def test_adahessian_keeps_two_moments():
    parameters = oracle.make_parameters({"matrix": (12, 40), "vector": (30,), "conv": (4, 3, 3, 3)})
    optimizer = torch_optimizer.Adahessian(list(parameters.values()))
    for _ in range(2):
        optimizer.zero_grad()
        sum((p**3).sum() for p in parameters.values()).backward(create_graph=True)
        optimizer.step()
    oracle.assert_state_equals("torch_optimizer.Adahessian", {}, optimizer, parameters)
    for p in parameters.values():
        p.grad = None  # the graph of a gradient leads back to its parameter


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("AdaBelief", {"amsgrad": True}),
        ("AdaBelief", {"rectify": True}),
        ("AdaBound", {"amsbound": True}),
        ("AggMo", {"betas": (0.0, 0.5)}),
        ("LARS", {"momentum": 0.9}),
        ("MADGRAD", {"momentum": 0.0}),
        ("NovoGrad", {"amsgrad": True}),
        ("PID", {"momentum": 0.9}),
        ("RangerVA", {"amsgrad": False}),
        ("SGDW", {"momentum": 0.9}),
        ("SWATS", {"amsgrad": True}),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_argument_that_changes_the_state_is_followed(name, args, dtype):
    check(name, dtype, **args)
