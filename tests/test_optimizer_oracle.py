"""The comparison that every optimizer test rests on can fail."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import optimizer_oracle as oracle
import pytest
import torch

from memsim.optimizers import OptimizerRule, rules
from memsim.optimizers.arguments import Opaque, Optional, Required

_SHAPES = {"weight": (4, 3), "bias": (3,)}


def _stepped_adam(**options: Any) -> tuple[dict[str, torch.nn.Parameter], torch.optim.Optimizer]:
    parameters = oracle.make_parameters(_SHAPES)
    optimizer = torch.optim.Adam(parameters.values(), **options)
    oracle.step_twice(optimizer, parameters)
    return parameters, optimizer


def test_the_comparison_accepts_a_correct_rule():
    parameters, optimizer = _stepped_adam()
    oracle.assert_state_equals("torch.optim.Adam", {}, optimizer, parameters)


def test_the_comparison_sees_a_missing_entry():
    parameters, optimizer = _stepped_adam(amsgrad=True)
    with pytest.raises(AssertionError, match="max_exp_avg_sq"):
        oracle.assert_state_equals("torch.optim.Adam", {}, optimizer, parameters)


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros(4, 3, dtype=torch.bfloat16),
        torch.zeros(3, 4),
        torch.zeros(5, 3)[:4],
        None,
        [torch.zeros(4, 3)],
    ],
    ids=["dtype", "shape", "a view of a larger storage", "None", "a list"],
)
def test_the_comparison_sees_a_wrong(wrong):
    parameters, optimizer = _stepped_adam()
    optimizer.state[parameters["weight"]]["exp_avg"] = wrong
    with pytest.raises(AssertionError, match="exp_avg"):
        oracle.assert_state_equals("torch.optim.Adam", {}, optimizer, parameters)


def test_the_comparison_sees_a_shared_storage_that_the_rule_counts_twice():
    parameters, optimizer = _stepped_adam()
    state = optimizer.state[parameters["weight"]]
    state["exp_avg_sq"] = state["exp_avg"]
    with pytest.raises(AssertionError):
        oracle.assert_state_equals("torch.optim.Adam", {}, optimizer, parameters)


def _import(class_path: str) -> type:
    module, _, name = class_path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _constructor(rule: OptimizerRule) -> type:
    try:
        return _import(rule.class_path)
    except ImportError:
        pytest.skip(f"{rule.package} is not installed")


@pytest.mark.parametrize("class_path", sorted(path for path in rules() if "." in path))
def test_the_arguments_of_a_rule_are_those_of_the_real_constructor(class_path):
    rule = rules()[class_path]
    real = list(inspect.signature(_constructor(rule)).parameters.values())[1:]
    keywords = [p for p in real if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    assert set(rule.arguments) == {p.name for p in keywords}
    for p in keywords:
        declared = rule.arguments[p.name]
        if isinstance(declared, Opaque):
            assert p.default is not p.empty, p.name
        elif isinstance(declared, Required):
            assert p.default is p.empty or p.default == declared.refused, p.name
        elif isinstance(p.default, type):
            assert _import(declared) is p.default, p.name
        else:
            default = None if isinstance(declared, Optional) else declared
            assert p.default == default, p.name
