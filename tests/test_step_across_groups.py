"""A `step()` that loops over its parameter groups keeps its variables from one group to the next."""

from __future__ import annotations

import optimizer_oracle as oracle
import pytest
import step_oracle
import torch

from memsim.model import ParameterSpec
from memsim.optimizers import group_step_events, resolve_optimizer, step_events
from memsim.tensors import TensorSpec

FIRST = {"a": (5, 4), "b": (6, 3)}
SECOND = {"c": (7,), "d": (2,)}


def _check_groups(class_path, make, args, num_steps=2, dtype="float32"):
    first, second = oracle.make_parameters(FIRST, dtype), oracle.make_parameters(SECOND, dtype)
    optimizer = make([{"params": list(first.values())}, {"params": list(second.values())}], **args)
    if hasattr(optimizer, "train"):
        optimizer.train()
    resolved = resolve_optimizer(class_path, args)
    for number in range(1, num_steps + 1):
        oracle.fill_gradients([*first.values(), *second.values()])
        tracker = step_oracle.track_step(optimizer, {**first, **second})
        if number in (1, num_steps):
            groups = [(resolved, oracle.specs(first)), (resolved, oracle.specs(second))]
            events = group_step_events(groups, first_step=number == 1, on_cpu=True)
            step_oracle.assert_same_events(tracker, events)


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(
    ("name", "num_steps"), [("AdamWScheduleFree", 2), ("RAdamScheduleFree", 5), ("SGDScheduleFree", 2)]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_step_of_schedulefree_is_the_real_one(name, num_steps, foreach, weight_decay, dtype):
    schedulefree = pytest.importorskip("schedulefree", reason="the oracle is the real package")
    args = {"foreach": foreach, "weight_decay": weight_decay}
    _check_groups(f"schedulefree.{name}", getattr(schedulefree, name), args, num_steps, dtype)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("module", ["lion_pytorch", "lion_pytorch.foreach"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_step_of_lion_is_the_real_one(module, weight_decay, dtype):
    lion = pytest.importorskip(module, reason="the oracle is the real package")
    _check_groups(f"{module}.Lion", lion.Lion, {"weight_decay": weight_decay}, dtype=dtype)


@pytest.mark.parametrize("foreach", [True, False])
def test_the_variables_of_torch_optim_die_with_each_group(foreach):
    _check_groups("torch.optim.AdamW", torch.optim.AdamW, {"foreach": foreach})


@pytest.mark.parametrize("beta1", [None, 0.9])
def test_the_variables_of_transformers_adafactor_live_into_the_next_group(beta1):
    optimization = pytest.importorskip("transformers.optimization", reason="the oracle is the real class")
    args = {"scale_parameter": False, "relative_step": False, "beta1": beta1, "lr": 5e-5}
    first, second = oracle.make_parameters(FIRST), oracle.make_parameters(SECOND)
    groups = [{"params": list(first.values())}, {"params": list(second.values())}]
    optimizer = optimization.Adafactor(groups, **args)
    resolved = resolve_optimizer("transformers.optimization.Adafactor", args)
    oracle.fill_gradients([*first.values(), *second.values()])
    tracker = step_oracle.track_step(optimizer, {**first, **second})
    parts = [(resolved, oracle.specs(first)), (resolved, oracle.specs(second))]
    step_oracle.assert_same_events(tracker, group_step_events(parts, first_step=True, on_cpu=True))


def test_another_class_is_another_step_whose_variables_are_its_own():
    weight = [ParameterSpec(name="w", tensor=TensorSpec((6, 4), "float32"))]
    bias = [ParameterSpec(name="b", tensor=TensorSpec((6,), "float32"))]
    averaged = resolve_optimizer("schedulefree.AdamWScheduleFree")
    plain = resolve_optimizer("torch.optim.AdamW")
    together = group_step_events([(averaged, weight), (plain, bias)], first_step=False)
    apart = [*step_events(averaged, weight, first_step=False), *step_events(plain, bias, first_step=False)]
    assert [event[0:1] + event[2:] for event in together] == [event[0:1] + event[2:] for event in apart]


def test_the_tables_of_bitsandbytes_are_made_once_for_all_groups():
    optim = pytest.importorskip("bitsandbytes.optim", reason="the oracle is the real class")
    first = oracle.make_parameters({"a": (64, 64), "b": (4096,)})
    second = oracle.make_parameters({"c": (8192,)})
    optimizer = optim.AdamW8bit([{"params": list(first.values())}, {"params": list(second.values())}])
    oracle.step_twice(optimizer, {**first, **second})
    real = {e.storage for e in oracle.real_state(optimizer, {**first, **second}) if e.name == "qmap1"}
    resolved = resolve_optimizer("bitsandbytes.optim.AdamW8bit")
    parts = [(resolved, oracle.specs(first)), (resolved, oracle.specs(second))]
    made = [e for e in group_step_events(parts, first_step=True) if e.name == "qmap1"]
    assert len(made) == len(real) == 1
