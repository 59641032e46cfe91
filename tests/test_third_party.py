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


@pytest.mark.parametrize("dtype", [*DTYPES, "float16"])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_adabelief_is_the_real_state(amsgrad, dtype):
    check("adabelief_pytorch.AdaBelief", dtype, amsgrad=amsgrad, print_change_log=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("regen_reg_rate", [0.0, 0.1])
@pytest.mark.parametrize("name", ["AdamAtan2", "AdoptAtan2"])
def test_adam_atan2_is_the_real_state(name, regen_reg_rate, dtype):
    check(f"adam_atan2_pytorch.{name}", dtype, regen_reg_rate=regen_reg_rate)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "args", [{}, {"slice_p": 11}, {"betas": (0.0, 0.99)}], ids=["default", "sliced", "no momentum"]
)
def test_prodigy_is_the_real_state(args, dtype):
    check("prodigyopt.Prodigy", dtype, **args)


def test_prodigy_keeps_one_number_of_a_parameter_that_starts_at_zero():
    parameters = oracle.make_parameters({"weight": (64, 32), "layer.lora_B.weight": (32, 8)})
    parameters["layer.lora_B.weight"].data.zero_()
    optimizer = real_class("prodigyopt.Prodigy")(parameters.values())
    oracle.step_twice(optimizer, parameters)
    oracle.assert_state_equals("prodigyopt.Prodigy", {"all_zero": "*lora_B*"}, optimizer, parameters)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "args",
    [
        {},
        {"use_schedulefree": False},
        {"factored": False},
        {"factored_fp32": False},
        {"use_focus": True},
        {"use_speed": True},
    ],
    ids=str,
)
def test_prodigy_plus_is_the_real_state(args, dtype):
    check("prodigyplus.ProdigyPlusScheduleFree", dtype, NOT_EMPTY, **args)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["DAdaptAdam", "DAdaptSGD", "DAdaptAdan", "DAdaptLion", "DAdaptAdaGrad"])
def test_dadaptation_is_the_real_state(name, dtype):
    check(f"dadaptation.{name}", dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_came_is_the_real_state(dtype):
    check("came_pytorch.CAME", dtype, lr=1e-3)


ADAM_MINI_SHAPES = {
    "model.embed_tokens.weight": (100, 32),
    "layers.0.self_attn.q_proj.weight": (32, 32),
    "layers.0.self_attn.q_proj.bias": (32,),
    "layers.0.self_attn.k_proj.weight": (16, 32),
    "layers.0.self_attn.v_proj.weight": (16, 32),
    "layers.0.self_attn.o_proj.weight": (32, 32),
    "layers.0.mlp.up_proj.weight": (64, 32),
    "layers.0.input_layernorm.weight": (32,),
    "Conv.Weight": (8, 3, 2, 2),
    "lm_head.weight": (100, 32),
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_adam_mini_is_the_real_state_of_every_kind_of_name(dtype):
    args = {"dim": 32, "n_heads": 4, "n_kv_heads": 2, "verbose": False}
    parameters = oracle.make_parameters(ADAM_MINI_SHAPES, dtype)
    optimizer = real_class("adam_mini.Adam_mini")(parameters.items(), **args)
    oracle.step_twice(optimizer, parameters)
    oracle.assert_state_equals("adam_mini.Adam_mini", args, optimizer, parameters)


@pytest.mark.parametrize(
    ("name", "shape", "error"),
    [("encoder.query.weight", (30, 7), "do not divide into heads"), ("output.LayerNorm.weight", (32,), "matrix")],
)
def test_adam_mini_refuses_what_the_package_fails_with(name, shape, error):
    args = {"dim": 32, "n_heads": 4, "verbose": False}
    parameters = oracle.make_parameters({name: shape})
    optimizer = real_class("adam_mini.Adam_mini")(parameters.items(), **args)
    with pytest.raises((RuntimeError, IndexError)):
        oracle.step_twice(optimizer, parameters)
    with pytest.raises(UsageError, match=error):
        oracle.predicted_state("adam_mini.Adam_mini", args, parameters)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ranger21_is_the_real_state(dtype, capsys):
    shapes = {name: (8, 4) if shape in {(1,), (1, 1), (), (0,)} else shape for name, shape in oracle.SHAPES.items()}
    for args in ({}, {"lookahead_active": False}):
        check("ranger21.Ranger21", dtype, shapes, lr=1e-3, num_epochs=2, num_batches_per_epoch=10, **args)
    assert "Ranger21" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "args",
    [
        {},
        {"memory_save_mode": "one_diag"},
        {"memory_save_mode": "smart_one_diag"},
        {"memory_save_mode": "all_diag"},
        {"max_size_triangular": 100},
        {"min_ndim_triangular": 3},
        {"mu_dtype": torch.bfloat16},
    ],
    ids=str,
)
def test_kron_is_the_real_state(args, dtype):
    class_path = "kron_torch.Kron"
    real = real_class(class_path)
    shapes = {"square": (48, 48), "matrix": (24, 160), "vector": (96,), "one": (1,), "tall": (160, 1)}
    shapes |= {"conv": (16, 3, 5, 5), "batch": (4, 16, 8), "conv_1x1": (8, 8, 1, 1)}
    parameters = oracle.make_parameters(shapes, dtype)
    optimizer = real(parameters.values(), **args)
    with torch.compiler.set_stance("force_eager"):
        oracle.step_twice(optimizer, parameters)
    state = {
        p: {name: _plain(value) for name, value in values.items() if name != "exprs"}
        for p, values in optimizer.state.items()
    }
    oracle.assert_state_equals(class_path, args, state, parameters)


def _plain(value):
    """Return numpy's integers as Python's."""
    return [int(v) for v in value] if isinstance(value, list) and not torch.is_tensor(value[0]) else value


MUON_SHAPES = {
    "transformer.wte.weight": (100, 32),
    "model.layers.0.q_proj.weight": (32, 32),
    "model.layers.0.q_proj.bias": (32,),
    "model.layers.0.experts": (4, 16, 8),
    "model.norm.weight": (32,),
    "scale": (),
    "lm_head.weight": (100, 32),
    "tokens.weight": (50, 32),
}
MUON_MODULES = {"tokens.weight": "Embedding"}
MUON_ADAM = {"transformer.wte.weight", "lm_head.weight", "tokens.weight"}
"""Matrices that are no hidden weights."""


def _is_hidden(name, p):
    return p.ndim >= 2 and name not in MUON_ADAM


@pytest.mark.parametrize("dtype", DTYPES)
def test_muon_with_adam_is_the_real_state_of_its_two_groups(dtype):
    class_path = "muon.SingleDeviceMuonWithAuxAdam"
    parameters = oracle.make_parameters(MUON_SHAPES, dtype)
    hidden = [p for name, p in parameters.items() if _is_hidden(name, p)]
    rest = [p for name, p in parameters.items() if not _is_hidden(name, p)]
    groups = [{"params": hidden, "use_muon": True}, {"params": rest, "use_muon": False}]
    optimizer = real_class(class_path)(groups)
    oracle.step_twice(optimizer, parameters)
    oracle.assert_state_equals(class_path, {}, optimizer, parameters, MUON_MODULES)


@pytest.mark.parametrize("dtype", DTYPES)
def test_muon_alone_keeps_one_momentum(dtype):
    check("muon.SingleDeviceMuon", dtype, {"square": (48, 48), "matrix": (24, 160), "batch": (4, 16, 8)})


def test_muon_fails_with_convolutions_and_the_rule_says_so():
    class_path = "muon.SingleDeviceMuon"
    parameters = oracle.make_parameters({"conv": (8, 3, 3, 3)})
    with pytest.raises(RuntimeError, match="must match"):
        oracle.step_twice(real_class(class_path)(parameters.values()), parameters)
    with pytest.raises(UsageError, match="4-D"):
        oracle.predicted_state(class_path, {}, parameters)


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_muon_beside_adamw_is_the_real_state_of_the_two_optimizers(dtype):
    parameters = oracle.make_parameters(MUON_SHAPES, dtype)
    takes = {name: p.ndim == 2 and name not in MUON_ADAM for name, p in parameters.items()}
    muon = torch.optim.Muon([p for name, p in parameters.items() if takes[name]])
    adamw = torch.optim.AdamW([p for name, p in parameters.items() if not takes[name]])
    for _ in range(2):
        oracle.fill_gradients(parameters.values())
        muon.step()
        adamw.step()
    state = dict(muon.state) | dict(adamw.state)
    oracle.assert_state_equals("Muon+AdamW", {}, state, parameters, MUON_MODULES)


def test_muon_leaves_to_adam_what_adam_patterns_names():
    class_path = "muon.SingleDeviceMuonWithAuxAdam"
    parameters = oracle.make_parameters(MUON_SHAPES)
    hidden = [p for name, p in parameters.items() if name.startswith("model.layers.0.q_proj") and p.ndim == 2]
    rest = [p for p in parameters.values() if p is not hidden[0]]
    groups = [{"params": hidden, "use_muon": True}, {"params": rest, "use_muon": False}]
    optimizer = real_class(class_path)(groups)
    oracle.step_twice(optimizer, parameters)
    args = {"adam_patterns": ["*wte*", "lm_head.*", "*experts*"]}
    oracle.assert_state_equals(class_path, args, optimizer, parameters, MUON_MODULES)
