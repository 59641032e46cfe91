"""Small optimizer packages against their rules: every entry of every real state, after two real steps on the CPU."""

from __future__ import annotations

import importlib
import warnings

import optimizer_oracle as oracle
import pytest
import torch

from memsim.errors import UsageError
from memsim.optimizers import resolve_optimizer

DTYPES = ("float32", "bfloat16")
NOT_EMPTY = {name: shape for name, shape in oracle.SHAPES.items() if name != "empty"}


def real_class(class_path):
    """Return the class, or skip the test by the name of its package."""
    module, _, name = class_path.rpartition(".")
    pytest.importorskip(module.partition(".")[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(importlib.import_module(module), name)


def check(class_path, dtype, shapes=oracle.SHAPES, **args):
    """Compare two real steps with the rule."""
    parameters = oracle.make_parameters(shapes, dtype)
    optimizer = real_class(class_path)(parameters.values(), **args)
    if hasattr(optimizer, "train"):
        optimizer.train()
    oracle.step_twice(optimizer, parameters)
    oracle.assert_state_equals(class_path, args, optimizer, parameters)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name",
    [
        "AdamWScheduleFree",
        "AdamWScheduleFreePaper",
        "AdamWScheduleFreeReference",
        "RAdamScheduleFree",
        "SGDScheduleFree",
        "SGDScheduleFreeReference",
    ],
)
def test_schedulefree_is_the_real_state(name, dtype):
    check(f"schedulefree.{name}", dtype, weight_decay=0.1)


@pytest.mark.parametrize("name", ["AdamWScheduleFreeClosure", "RAdamScheduleFreeClosure", "SGDScheduleFreeClosure"])
def test_schedulefree_with_a_closure_is_the_real_state(name):
    class_path = f"schedulefree.{name}"
    parameters = oracle.make_parameters()
    optimizer = real_class(class_path)(parameters.values())
    for _ in range(2):
        optimizer.step(lambda: oracle.fill_gradients(parameters.values()))
    oracle.assert_state_equals(class_path, {}, optimizer, parameters)


OPTIMI = ("Adam", "AdamW", "Adan", "Lion", "RAdam", "Ranger", "SGD", "StableAdamW")


@pytest.mark.parametrize("kahan_sum", [None, True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIMI)
def test_optimi_is_the_real_state(name, dtype, kahan_sum):
    if name == "Adan" and kahan_sum is None:
        pytest.skip("Adan's kahan_sum is False unless it is True")
    check(f"optimi.{name}", dtype, lr=1e-3, kahan_sum=kahan_sum)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "args", [{"momentum": 0.9}, {"dampening": True, "torch_init": True}], ids=["momentum", "torch_init"]
)
def test_optimi_sgd_keeps_a_momentum_when_asked(args, dtype):
    check("optimi.SGD", dtype, lr=1e-3, **args)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIMI)
def test_optimi_with_triton_keeps_stand_ins(name, dtype):
    """Only the creation of the state runs: the kernels need a GPU."""
    class_path, args = f"optimi.{name}", {"lr": 1e-3, "triton": True}
    parameters = oracle.make_parameters(dtype=dtype)
    optimizer = real_class(class_path)(parameters.values(), lr=1e-3)
    oracle.fill_gradients(parameters.values())
    for group in optimizer.param_groups:
        group["triton"] = True
        for p in group["params"]:
            optimizer._init_state(group, optimizer.state[p], p)
    oracle.assert_state_equals(class_path, args, optimizer, parameters)


@pytest.mark.parametrize("name", OPTIMI)
def test_optimi_releases_gradients_one_at_a_time_when_asked(name):
    # Adan cannot release without compensation: it takes the length of a parameter (adan.py:312).
    class_path, args = f"optimi.{name}", {"lr": 1e-3, "gradient_release": True, "kahan_sum": True}
    real = real_class(class_path)
    parameters = oracle.make_parameters(dtype="bfloat16")
    optimizer = real(parameters.values(), **args)
    oracle.fill_gradients(parameters.values())
    for p in parameters.values():
        optimizer.step(param=p)
    state = {p: {k: v for k, v in values.items() if k != "group"} for p, values in optimizer.state.items()}
    oracle.assert_state_equals(class_path, args, state, parameters)
    assert resolve_optimizer(class_path, args).gradients_live_one_at_a_time
    assert not resolve_optimizer(class_path).gradients_live_one_at_a_time


class _Model(torch.nn.Module):
    def __init__(self, parameters):
        super().__init__()
        for name, p in parameters.items():
            self.register_parameter(name, p)


def test_lomo_keeps_nothing():
    class_path = "lomo_optim.Lomo"
    parameters = oracle.make_parameters(dtype="float32")
    optimizer = real_class(class_path)(_Model(parameters), lr=1e-3)
    sum((p**2).sum() for p in parameters.values()).backward()
    optimizer.grad_func(0)
    assert all(p.grad is None for p in parameters.values()), "gradients are dropped inside backward"
    oracle.assert_state_equals(class_path, {}, optimizer, parameters)
    assert resolve_optimizer(class_path).gradients_live_one_at_a_time


@pytest.mark.parametrize("dtype", DTYPES)
def test_adalomo_keeps_means_of_rows_and_columns_in_dictionaries_of_its_own(dtype, monkeypatch):
    real = real_class("lomo_optim.AdaLomo")
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)  # the constructor asks for a GPU
    shapes = {name: shape for name, shape in oracle.SHAPES.items() if len(shape) in {1, 2}}
    parameters = oracle.make_parameters(shapes, dtype)
    optimizer = real(_Model(parameters), lr=1e-3)
    kept = ("exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col")
    state = {
        p: {f"opt.{key}": getattr(optimizer, key)[name] for key in kept if name in getattr(optimizer, key)}
        for name, p in parameters.items()
    }
    oracle.assert_state_equals("lomo_optim.AdaLomo", {}, state, parameters)


def test_adalomo_refuses_what_the_class_cannot_update():
    with pytest.raises(UsageError, match=r"conv .*AdaLomo updates vectors and matrices only"):
        oracle.predicted_state("lomo_optim.AdaLomo", {}, oracle.make_parameters({"conv": (8, 3, 3, 3)}))


@pytest.mark.parametrize("dtype", DTYPES)
def test_grokadamw_keeps_its_state_on_the_host_in_the_group(dtype):
    real = real_class("grokadamw.GrokAdamW")
    parameters = oracle.make_parameters(dtype=dtype)
    optimizer = real(parameters.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        oracle.step_twice(optimizer, parameters)
    group_state = optimizer.param_groups[0]["state"]
    state = {p: {f"group.state.{k}": v for k, v in values.items()} for p, values in group_state.items()}
    oracle.assert_state_equals("grokadamw.GrokAdamW", {}, state, parameters)
    predicted = oracle.predicted_state("grokadamw.GrokAdamW", {}, parameters)
    assert predicted.device_bytes == 0
    assert predicted.host_bytes == 3 * sum(p.nbytes for p in parameters.values())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "class_path", ["lion_pytorch.Lion", "lion_pytorch.foreach.Lion", "lion_pytorch.cautious_lion.Lion"]
)
def test_lion_pytorch_is_the_real_state(class_path, dtype):
    check(class_path, dtype, weight_decay=0.1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("amsgrad", [False, True])
def test_adabelief_is_the_real_state(amsgrad, dtype):
    check("adabelief_pytorch.AdaBelief", dtype, amsgrad=amsgrad, print_change_log=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("regen_reg_rate", [0.0, 0.1])
@pytest.mark.parametrize("name", ["AdamAtan2", "AdoptAtan2"])
def test_adam_atan2_is_the_real_state(name, regen_reg_rate, dtype):
    check(f"adam_atan2_pytorch.{name}", dtype, regen_reg_rate=regen_reg_rate)
