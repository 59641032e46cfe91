"""The optimizers of `pytorch_optimizer` against their rules: every entry of every real state, after two real steps."""

from __future__ import annotations

import optimizer_oracle as oracle
import pytest
import torch

from memsim.errors import UsageError
from memsim.optimizers import resolve_optimizer, rules
from memsim.optimizers.arguments import Required

pytorch_optimizer = pytest.importorskip("pytorch_optimizer", reason="pytorch-optimizer is not installed")

DTYPES = ("float32", "bfloat16")
SHAPES = {name: shape for name, shape in oracle.SHAPES.items() if name not in {"scalar", "empty"}} | {
    "embedding": (99, 64),
    "tall": (900, 2),
}
SMALL = {
    "square": (24, 24),
    "matrix": (12, 40),
    "tall": (60, 5),
    "row": (1, 32),
    "column": (32, 1),
    "vector": (30,),
    "one_element": (1,),
    "batch": (4, 6, 5),
    "conv": (8, 3, 3, 3),
}
"""Preconditioners take cubic time, so these are small."""

GROUPED = {"GaLore", "Fira", "APOLLO", "Muon", "MuonClip", "DistributedMuon", "AdaGO", "AdaMuon", "NorMuon"}
SPECIAL = GROUPED | {"AdaHessian", "SophiaH", "AliG", "BSAM", "LOMO", "AdaLOMO", "Conda"}
SQUARE = {"Alice", "Kron", "Shampoo", "SOAP", "SPlus"}
PLAIN = sorted(
    name
    for name in (path.removeprefix("pytorch_optimizer.") for path in rules() if path.startswith("pytorch_optimizer."))
    if name not in SPECIAL | SQUARE
)
REQUIRED = {"lr": 1e-3, "num_iterations": 100, "num_data": 1000}


def check(name, dtype, shapes=SHAPES, step=oracle.step_twice, **args):
    """Compare the real state after two steps with the rule."""
    class_path = f"pytorch_optimizer.{name}"
    declared = rules()[class_path].arguments
    args = {key: REQUIRED[key] for key, value in declared.items() if isinstance(value, Required)} | args
    parameters = oracle.make_parameters(shapes, dtype)
    optimizer = getattr(pytorch_optimizer, name)(list(parameters.values()), **args)
    step(optimizer, parameters)
    oracle.assert_state_equals(class_path, args, _of_parameters(optimizer), parameters)


def _of_parameters(optimizer):
    """Return the state without what belongs to no parameter, and without text."""
    return {
        p: {key: value for key, value in values.items() if key != "expressions"}
        for p, values in optimizer.state.items()
        if isinstance(p, torch.nn.Parameter)
    }


def test_at_least_eighty_classes_are_compared():
    assert len(PLAIN) >= 80


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PLAIN)
def test_the_rule_is_the_real_state(name, dtype):
    check(name, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(SQUARE))
def test_a_preconditioner_is_the_real_state(name, dtype):
    check(name, dtype, SMALL)


WITH_AMS_BOUND = sorted(n for n in PLAIN if rules()[f"pytorch_optimizer.{n}"].arguments.get("ams_bound") is False)


@pytest.mark.parametrize("name", WITH_AMS_BOUND)
def test_ams_bound_adds_a_maximum(name):
    check(name, "float32", ams_bound=True)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("AdaFactor", {"betas": (None, 0.999)}),
        ("AdaFactor", {"momentum_dtype": torch.float32}),
        ("Amos", {"momentum": 0.9}),
        ("A2Grad", {"variant": "exp", "lr": 1e-3}),
        ("A2Grad", {"variant": "inc", "lr": 1e-3}),
        ("AggMo", {"betas": (0.0, 0.5)}),
        ("BCOS", {"mode": "m"}),
        ("BCOS", {"mode": "g"}),
        ("EmoFact", {"use_shadow": True}),
        ("EmoNavi", {"use_shadow": True}),
        ("FlashAdamW", {"quantize": False}),
        ("Fromage", {"p_bound": 1.0}),
        ("GrokFastAdamW", {"grokfast": False}),
        ("LARS", {"momentum": 0.0}),
        ("AdaFactor", {"foreach": False}),
        ("Lamb", {"foreach": False}),
        ("LaProp", {"centered": True}),
        ("MADGRAD", {"momentum": 0.0}),
        ("Nero", {"constraints": False}),
        ("PID", {"momentum": 0.9}),
        ("SGDSaI", {"momentum": 0.0}),
        ("SGDW", {"momentum": 0.9}),
        ("SignSGD", {"momentum": 0.0}),
        ("StableAdamW", {"kahan_sum": False}),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_argument_that_changes_the_state_is_followed(name, args, dtype):
    check(name, dtype, **args)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("SOAP", {"precondition_1d": True}),
        ("SOAP", {"precondition_1d": True, "max_precondition_dim": 10}),
        ("SOAP", {"max_precondition_dim": 10}),
        ("SPlus", {"max_dim": 20}),
        ("Alice", {"rank": 8, "leading_basis": 4}),
        ("Shampoo", {"momentum": 0.9}),
        ("Kron", {"memory_save_mode": "one_diag"}),
        ("Kron", {"memory_save_mode": "smart_one_diag"}),
        ("Kron", {"memory_save_mode": "all_diag"}),
        ("Kron", {"max_size_triangular": 30, "mu_dtype": torch.bfloat16}),
    ],
    ids=str,
)
def test_an_argument_that_changes_a_preconditioner_is_followed(name, args):
    check(name, "float32", SMALL, **args)


def test_rectified_lamb_keeps_norms_once_its_variance_is_tractable():
    def step(optimizer, parameters):
        for _ in range(4):
            oracle.step_twice(optimizer, parameters)

    check("Lamb", "float32", SMALL, step=step, rectify=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["AdaHessian", "SophiaH"])
def test_second_order_optimizers_keep_a_hessian(name, dtype):
    def step(optimizer, parameters):
        for _ in range(2):
            optimizer.zero_grad()
            sum((p**3).sum() for p in parameters.values()).backward(create_graph=True)
            optimizer.step()
        for p in parameters.values():
            p.grad = None  # the graph of a gradient leads back to its parameter

    check(name, dtype, step=step)


@pytest.mark.parametrize(
    ("name", "args"), [("AliG", {"max_lr": 0.1, "momentum": 0.9}), ("AliG", {"max_lr": 0.1}), ("BSAM", {})], ids=str
)
def test_optimizers_that_need_a_closure(name, args):
    def step(optimizer, parameters):
        for _ in range(2):
            oracle.fill_gradients(parameters.values())
            optimizer.step(lambda: torch.tensor(1.0))

    check(name, "float32", step=step, **args)


class _Model(torch.nn.Module):
    def __init__(self, parameters):
        super().__init__()
        for name, p in parameters.items():
            self.register_parameter(name, p)


@pytest.mark.parametrize("name", ["LOMO", "AdaLOMO"])
def test_fused_backward_keeps_what_lomo_optim_keeps(name):
    shapes = {name: shape for name, shape in SHAPES.items() if len(shape) in {1, 2}}
    parameters = oracle.make_parameters(shapes)
    optimizer = getattr(pytorch_optimizer, name)(_Model(parameters))
    kept = [key for key in ("exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col") if hasattr(optimizer, key)]
    state = {
        p: {f"opt.{key}": getattr(optimizer, key)[n] for key in kept if n in getattr(optimizer, key)}
        for n, p in parameters.items()
    }
    oracle.assert_state_equals(f"pytorch_optimizer.{name}", {}, state, parameters)
    assert resolve_optimizer(f"pytorch_optimizer.{name}").gradients_live_one_at_a_time


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [4, 16])
@pytest.mark.parametrize("name", ["GaLore", "Fira", "APOLLO"])
def test_a_low_rank_optimizer_is_the_real_state(name, rank, dtype):
    group = {"rank": rank, "update_proj_gap": 50, "scale": 1.0, "projection_type": "std"}
    parameters = oracle.make_parameters(SMALL, dtype)
    groups = [
        {"params": [p for p in parameters.values() if p.ndim != 2]},
        {"params": [p for p in parameters.values() if p.ndim == 2], **group},
    ]
    optimizer = getattr(pytorch_optimizer, name)(groups)
    oracle.step_twice(optimizer, parameters)
    oracle.assert_state_equals(f"pytorch_optimizer.{name}", group, optimizer, parameters)


@pytest.mark.parametrize("projection_type", ["left", "right", "full"])
def test_galore_projects_from_the_side_that_it_is_told(projection_type):
    group = {"rank": 4, "update_proj_gap": 50, "scale": 1.0, "projection_type": projection_type}
    parameters = oracle.make_parameters({name: shape for name, shape in SMALL.items() if len(shape) == 2})
    optimizer = pytorch_optimizer.GaLore([{"params": list(parameters.values()), **group}])
    oracle.step_twice(optimizer, parameters)
    oracle.assert_state_equals("pytorch_optimizer.GaLore", group, optimizer, parameters)


@pytest.mark.parametrize("bits", [24, 32])
def test_flash_adamw_keeps_the_bits_that_bfloat16_weights_lack(bits):
    check("FlashAdamW", "bfloat16", master_weight_bits=bits)


@pytest.mark.parametrize("dtype", DTYPES)
def test_conda_is_the_real_state(dtype):
    check("Conda", dtype, SMALL)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["Muon", "MuonClip", "AdaGO", "AdaMuon", "NorMuon"])
def test_muon_and_its_kin_are_the_real_state_of_both_groups(name, dtype):
    check_both_groups(name, dtype)


def test_distributed_muon_on_one_process_is_the_real_state_of_both_groups():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        check_both_groups("DistributedMuon", "float32")
    finally:
        torch.distributed.destroy_process_group()


def check_both_groups(name, dtype):
    parameters = oracle.make_parameters(SMALL | {"embed_tokens.weight": (50, 8), "lm_head.weight": (50, 8)}, dtype)
    hidden = [p for n, p in parameters.items() if p.ndim >= 2 and "." not in n]
    rest = [p for n, p in parameters.items() if p.ndim < 2 or "." in n]
    groups = [{"params": hidden, "use_muon": True}, {"params": rest, "use_muon": False}]
    optimizer = getattr(pytorch_optimizer, name)(groups)
    oracle.step_twice(optimizer, parameters)
    oracle.assert_state_equals(f"pytorch_optimizer.{name}", {}, optimizer, parameters)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("SOAP", {"merge_dims": True}, "merge_dims"),
        ("APOLLO", {"projection_type": "left"}, "projection_type"),
        ("Conda", {"projection_type": "full"}, "projection_type"),
        ("SPAM", {"density": 0.5}, "random size"),
    ],
)
def test_what_is_not_modelled_is_an_error(name, args, message):
    with pytest.raises(UsageError, match=message):
        oracle.predicted_state(f"pytorch_optimizer.{name}", args, oracle.make_parameters({"w": (8, 4)}))
