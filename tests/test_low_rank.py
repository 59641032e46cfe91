"""GaLore, APOLLO and Fira against their rules, every entry of every real state, storages behind views included."""

from __future__ import annotations

import optimizer_oracle as oracle
import pytest
import torch

from memsim.errors import UnknownNameError, UsageError
from memsim.model import ParameterSpec
from memsim.optimizers import derive_state, resolve_optimizer
from memsim.tensors import TensorSpec

SHAPES = {name: oracle.SHAPES[name] for name in oracle.SHAPES if name not in {"embedding", "one_by_one"}}
GALORE_GROUP = {"rank": 16, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
APOLLO_GROUP = GALORE_GROUP | {"scale": 1.0, "proj": "random", "scale_type": "channel"}
WIDE = {"wide", "odd"}
"""Shapes with fewer rows than the ranks asked for here."""


def _groups(parameters, group):
    """Return the parameter groups of GaLore's README: the 2-D weights with a rank, the rest without."""
    projected = [p for p in parameters.values() if p.ndim == 2]
    return [{"params": [p for p in parameters.values() if p.ndim != 2]}, {"params": projected, **group}]


def _without(names):
    return {name: shape for name, shape in SHAPES.items() if name not in names}


def _galore(monkeypatch, name):
    galore_torch = pytest.importorskip("galore_torch", reason="galore-torch is not installed")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)  # called without asking whether there is a GPU
    return getattr(galore_torch, name)


GALORE = {
    "GaLoreAdamW": {},
    "GaLoreAdamW8bit": {},
    "GaLoreAdafactor": {"scale_parameter": False, "relative_step": False, "lr": 1e-3},
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [4, 16, 128])
@pytest.mark.parametrize("name", GALORE)
def test_galore_is_the_real_state(name, rank, dtype, monkeypatch):
    cls, group = _galore(monkeypatch, name), GALORE_GROUP | {"rank": rank}
    parameters = oracle.make_parameters(SHAPES, dtype)
    optimizer = cls(_groups(parameters, group), **GALORE[name])
    oracle.step_twice(optimizer, parameters)
    oracle.assert_state_equals(f"galore_torch.{name}", GALORE[name] | group, optimizer, parameters)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("proj_type", ["left", "right", "full", "reverse_std"])
@pytest.mark.parametrize("name", GALORE)
def test_galore_projects_from_the_side_that_proj_type_names(name, proj_type, dtype, monkeypatch):
    cls, group = _galore(monkeypatch, name), GALORE_GROUP | {"proj_type": proj_type}
    parameters = oracle.make_parameters(_without(WIDE) if proj_type == "reverse_std" else SHAPES, dtype)
    optimizer = cls(_groups(parameters, group), **GALORE[name])
    oracle.step_twice(optimizer, parameters)
    oracle.assert_state_equals(f"galore_torch.{name}", GALORE[name] | group, optimizer, parameters)


def test_galore_fails_where_the_rule_refuses(monkeypatch):
    cls, group = _galore(monkeypatch, "GaLoreAdamW"), GALORE_GROUP | {"proj_type": "reverse_std"}
    parameters = oracle.make_parameters({"odd": (3, 5)})
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        oracle.step_twice(cls(_groups(parameters, group)), parameters)
    with pytest.raises(UsageError, match="reverse_std"):
        oracle.predicted_state("galore_torch.GaLoreAdamW", group, parameters)


def test_galore_adafactor_with_beta1_keeps_a_low_rank_moment(monkeypatch):
    cls, args = _galore(monkeypatch, "GaLoreAdafactor"), GALORE["GaLoreAdafactor"] | {"beta1": 0.9}
    parameters = oracle.make_parameters(SHAPES)
    optimizer = cls(_groups(parameters, GALORE_GROUP), **args)
    oracle.step_twice(optimizer, parameters)
    oracle.assert_state_equals("galore_torch.GaLoreAdafactor", args | GALORE_GROUP, optimizer, parameters)


@pytest.mark.parametrize("name", ["GaLoreAdamW", "GaLoreAdamW8bit"])
def test_layerwise_galore_is_one_optimizer_a_parameter(name, monkeypatch):
    cls = _galore(monkeypatch, name)
    parameters = oracle.make_parameters(SHAPES, "bfloat16")
    oracle.fill_gradients(parameters.values())
    state = {}
    for p in parameters.values():
        optimizer = cls([{"params": [p], **(GALORE_GROUP if p.ndim == 2 else {})}])
        optimizer.step()
        state |= optimizer.state
    args = GALORE_GROUP | {"layerwise": True}
    oracle.assert_state_equals(f"galore_torch.{name}", args, state, parameters)
    assert resolve_optimizer(f"galore_torch.{name}", args).gradients_live_one_at_a_time
    assert not resolve_optimizer(f"galore_torch.{name}").gradients_live_one_at_a_time


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "group",
    [{}, {"rank": 1, "scale_type": "tensor"}, {"rank": 1024}, {"proj": "svd"}],
    ids=["rank 16", "apollo-mini", "rank above the weight's", "svd"],
)
def test_apollo_is_the_real_state(group, dtype):
    apollo_torch = pytest.importorskip("apollo_torch", reason="apollo-torch is not installed")
    parameters = oracle.make_parameters(SHAPES, dtype)
    optimizer = apollo_torch.APOLLOAdamW(_groups(parameters, APOLLO_GROUP | group))
    oracle.step_twice(optimizer, parameters)
    oracle.assert_state_equals("apollo_torch.APOLLOAdamW", APOLLO_GROUP | group, optimizer, parameters)


def test_apollo_without_the_limiter_keeps_no_norm():
    apollo_torch = pytest.importorskip("apollo_torch", reason="apollo-torch is not installed")
    parameters = oracle.make_parameters(SHAPES)
    optimizer = apollo_torch.APOLLOAdamW(_groups(parameters, APOLLO_GROUP), disable_nl=True)
    oracle.step_twice(optimizer, parameters)
    args = APOLLO_GROUP | {"disable_nl": True}
    oracle.assert_state_equals("apollo_torch.APOLLOAdamW", args, optimizer, parameters)


@pytest.mark.parametrize(("proj_type", "shape"), [("left", (9, 5)), ("right", (5, 9)), ("reverse_std", (9, 5))])
def test_apollo_fails_where_the_rule_refuses(proj_type, shape):
    apollo_torch = pytest.importorskip("apollo_torch", reason="apollo-torch is not installed")
    group = APOLLO_GROUP | {"proj_type": proj_type}
    parameters = oracle.make_parameters({"w": shape})
    with pytest.raises(RuntimeError, match="must match"):
        oracle.step_twice(apollo_torch.APOLLOAdamW(_groups(parameters, group)), parameters)
    with pytest.raises(UsageError, match="proj_type='std'"):
        oracle.predicted_state("apollo_torch.APOLLOAdamW", group, parameters)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [8, 128])
def test_fira_is_the_real_state(rank, dtype):
    fira = pytest.importorskip("fira", reason="fira is not installed")
    group = {"rank": rank, "update_proj_gap": 200, "alpha": 1.0, "proj_type": "std"}
    parameters = oracle.make_parameters(SHAPES, dtype)
    optimizer = fira.FiraAdamW(_groups(parameters, group))
    oracle.step_twice(optimizer, parameters)
    oracle.assert_state_equals("fira.FiraAdamW", group, optimizer, parameters)


MODULES = {
    "model.embed_tokens.weight": "Embedding",
    "model.layers.0.self_attn.q_proj.weight": "Linear",
    "model.layers.0.self_attn.q_proj.bias": "Linear",
    "model.layers.0.mlp.up_proj.weight": "Linear",
    "model.norm.weight": "LlamaRMSNorm",
}


@pytest.mark.parametrize(
    ("target_modules", "projected"),
    [
        ("all-linear", {"self_attn.q_proj", "mlp.up_proj"}),
        ("all_linear", {"self_attn.q_proj", "mlp.up_proj"}),
        (["attn"], {"self_attn.q_proj"}),
        (["embed", "mlp"], {"mlp.up_proj"}),
        ([r".*\.up_\w+"], {"mlp.up_proj"}),
        (r"model\.layers\.\d+\.mlp\..*", {"mlp.up_proj"}),
        ("mlp", set()),
    ],
)
def test_target_modules_mean_what_the_trainer_takes_them_for(target_modules, projected):
    """The expected side is transformers' own matching (`check_target_module_exists`) and its Linear-only filter."""
    from transformers.trainer_utils import check_target_module_exists

    all_linear = isinstance(target_modules, str) and target_modules.replace("_", "-") == "all-linear"
    parameters = [
        ParameterSpec(
            name=name, tensor=TensorSpec((64, 32) if name.endswith("weight") else (64,), "float32"), module_class=kind
        )
        for name, kind in MODULES.items()
    ]
    optimizer = resolve_optimizer("galore_torch.GaLoreAdamW", {"rank": 4, "target_modules": target_modules})
    state = derive_state(optimizer, parameters)
    actual = {row.parameter for row in state if row.name == "projector.ortho_matrix"}
    expected = {
        name
        for name, kind in MODULES.items()
        if kind == "Linear"
        and name.endswith(".weight")
        and (all_linear or check_target_module_exists(target_modules, name.removesuffix(".weight")))
    }
    assert actual == expected == {f"model.layers.0.{module}.weight" for module in projected}


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ({"rank": 0}, UsageError, "rank=0"),
        ({"proj_type": "reversed_std"}, UnknownNameError, "Did you mean"),
        ({"proj": "svds"}, UnknownNameError, "random, svd"),
    ],
)
def test_a_wrong_group_argument_is_an_error(args, error, message):
    parameters = oracle.specs(oracle.make_parameters({"w": (64, 64)}))
    with pytest.raises(error, match=message):
        derive_state(resolve_optimizer("apollo_torch.APOLLOAdamW", args), parameters)
