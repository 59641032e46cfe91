"""Each allocation and free of the real `step()` of optimizers outside torch, as memsim writes it.

The expected side is the package's own class, run on the CPU; a package that is not installed is skipped.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import optimizer_oracle as oracle
import pytest
import step_oracle
import torch
from storage_tracker import StorageTracker

from memsim.optimizers import names, resolve_optimizer, step_source
from memsim.optimizers.step import group_step_events, step_events

SHAPES = {"tall": (10, 7), "vector": (12,), "wide": (3, 9), "square": (5, 5), "bias": (4,)}
WITH_CONV = {**SHAPES, "conv": (4, 3, 5, 2), "scalar": ()}
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])

Parameters = Mapping[str, torch.nn.Parameter]


def check(
    class_path: str,
    cls: Callable[..., Any],
    parameters: Parameters,
    args: Mapping[str, Any] | None = None,
    *,
    group: Mapping[str, Any] | None = None,
    own: Mapping[str, Any] | None = None,
    num_steps: int = 2,
    state: Callable[[Any], Any] = oracle.state_tensors,
    between: Callable[[Any], None] = lambda _: None,
) -> None:
    """Compare the first step and the last of `num_steps`; of what `state` returns, every death is seen.

    `group` is what 2-D parameters have besides, `own` are memsim's own switches. `between` changes values in the
    optimizer after each step, where they choose a branch.
    """
    args = args or {}
    optimizer = cls(_groups(parameters, group) if group else list(parameters.values()), **args)
    if hasattr(optimizer, "train"):
        optimizer.train()
    resolved = resolve_optimizer(class_path, {**args, **(group or {}), **(own or {})})
    assert step_source(resolved).rule is not None, step_source(resolved).reason
    for number in range(1, num_steps + 1):
        oracle.fill_gradients(parameters.values())
        tracker = StorageTracker([*parameters.values(), *(p.grad for p in parameters.values())], state(optimizer))
        with tracker:
            optimizer.step()
        if number in (1, num_steps):
            events = step_events(resolved, oracle.specs(parameters), first_step=number == 1, on_cpu=True)
            assert_same(f"{class_path} {args} {group or ''}, step {number}", tracker, events)
        between(optimizer)


def assert_same(what: str, tracker: StorageTracker, events: list[Any]) -> None:
    """Assert equal events, and say of which optimizer they are."""
    try:
        step_oracle.assert_same_events(tracker, events)
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error


def _groups(parameters: Parameters, group: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one group a parameter, in order: the 2-D ones with a rank."""
    return [{"params": [p], **(group if p.ndim == 2 else {})} for p in parameters.values()]


def choices(**options: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Return every combination of arguments."""
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())]


def _let_gradients_grow(optimizer):
    """Make the last norm small, so that the norm-growth limiter limits."""
    for state in optimizer.state.values():
        for name in {"scaled_grad", "scaling_grad"} & state.keys():
            state[name].mul_(1e-6)


GALORE_GROUP = {"rank": 4, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}


@DTYPES
@pytest.mark.parametrize("proj_type", ["std", "reverse_std", "left", "right", "full"])
@pytest.mark.parametrize("update_proj_gap", [1, 200])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_step_of_galore_adamw_is_the_real_one(proj_type, update_proj_gap, dtype):
    cls = pytest.importorskip("galore_torch", reason="galore-torch is not installed").GaLoreAdamW
    shapes = SHAPES if proj_type != "reverse_std" else {**SHAPES, "wide": (6, 9)}
    group = {**GALORE_GROUP, "proj_type": proj_type, "update_proj_gap": update_proj_gap}
    for args in choices(weight_decay=(0.0, 0.1)):
        check("galore_torch.GaLoreAdamW", cls, oracle.make_parameters(shapes, dtype), args, group=group)


@DTYPES
@pytest.mark.parametrize("proj_type", ["std", "full"])
def test_the_step_of_galore_adafactor_is_the_real_one(proj_type, dtype):
    cls = pytest.importorskip("galore_torch", reason="galore-torch is not installed").GaLoreAdafactor
    group = {**GALORE_GROUP, "proj_type": proj_type}
    manual = {"scale_parameter": False, "relative_step": False, "lr": 1e-3}
    for common, more in itertools.product(({}, manual), choices(beta1=(None, 0.9), weight_decay=(0.0, 0.1))):
        args = {**common, **more}
        check("galore_torch.GaLoreAdafactor", cls, oracle.make_parameters(SHAPES, dtype), args, group=group)


@DTYPES
@pytest.mark.parametrize("proj", ["random", "svd"])
@pytest.mark.parametrize("scale_type", ["channel", "tensor"])
def test_the_step_of_apollo_is_the_real_one(proj, scale_type, dtype):
    cls = pytest.importorskip("apollo_torch", reason="apollo-torch is not installed").APOLLOAdamW
    group = {**GALORE_GROUP, "proj": proj, "scale_type": scale_type}
    for args in ({}, {"disable_nl": True}, {"scale_front": True, "weight_decay": 0.1}):
        parameters = oracle.make_parameters(SHAPES, dtype)
        check("apollo_torch.APOLLOAdamW", cls, parameters, args, group=group, between=_let_gradients_grow)


@DTYPES
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_step_of_fira_is_the_real_one(dtype):
    cls = pytest.importorskip("fira", reason="fira is not installed").FiraAdamW
    group = {"rank": 4, "update_proj_gap": 200, "alpha": 1.0, "proj_type": "std"}
    parameters = oracle.make_parameters(SHAPES, dtype)
    check("fira.FiraAdamW", cls, parameters, group=group, between=_let_gradients_grow)


OPTIMI_STEPS = {"RAdam": 8, "Ranger": 8}
"""From here on a step is a later one: the variance is rectified."""


@DTYPES
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adan", "RAdam", "Ranger", "Lion", "SGD", "StableAdamW"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_step_of_optimi_is_the_real_one(name, foreach, dtype):
    cls = getattr(pytest.importorskip("optimi", reason="torch-optimi is not installed"), name)
    common = {"lr": 1e-3, "foreach": foreach, "triton": False}
    options = choices(weight_decay=(0.0, 0.1), kahan_sum=(None, False))
    more = choices(momentum=(0.0, 0.9)) if name == "SGD" else [{}]
    for option, extra in itertools.product(options, more):
        parameters = oracle.make_parameters(WITH_CONV, dtype)
        args = {**common, **option, **extra}
        args["kahan_sum"] = False if name == "Adan" and args["kahan_sum"] is None else args["kahan_sum"]
        check(f"optimi.{name}", cls, parameters, args, num_steps=OPTIMI_STEPS.get(name, 2), state=_and_step_counters)


def _and_step_counters(optimizer):
    counters = (group.get("step") for group in optimizer.param_groups)
    return [*oracle.state_tensors(optimizer), *(c for c in counters if isinstance(c, torch.Tensor))]


@pytest.mark.parametrize("name", ["AdamW", "Lion", "StableAdamW"])
def test_optimi_updates_two_dtypes_in_the_real_order(name):
    cls = getattr(pytest.importorskip("optimi", reason="torch-optimi is not installed"), name)
    for foreach in (False, True):
        parameters = {**oracle.make_parameters({"a": (5, 4), "b": (3,)}, "bfloat16")}
        parameters |= oracle.make_parameters({"c": (6, 3), "d": (2,)}, "float32")
        with pytest.warns(DeprecationWarning, match="foreach") if foreach else contextlib.nullcontext():
            args = {"lr": 1e-3, "foreach": foreach, "triton": False}
            check(f"optimi.{name}", cls, parameters, args, state=_and_step_counters)


class _Model(torch.nn.Module):
    """A module that holds the given parameters."""

    def __init__(self, parameters):
        super().__init__()
        for name, p in parameters.items():
            self.register_parameter(name, p)


@DTYPES
@pytest.mark.parametrize("name", ["Lomo", "AdaLomo"])
def test_the_update_of_lomo_inside_backward_is_the_real_one(name, dtype, monkeypatch):
    cls = getattr(pytest.importorskip("lomo_optim", reason="lomo-optim is not installed"), name)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)  # the constructor asks for a GPU
    for args in choices(weight_decay=(0.0, 0.1), clip_grad_value=(None, 1.0)):
        parameters = oracle.make_parameters(SHAPES, dtype)
        optimizer = cls(_Model(parameters), **args)
        means = [t for kind in ("", "_row", "_col") for t in getattr(optimizer, f"exp_avg_sq{kind}", {}).values()]
        trackers = []
        for p in parameters.values():
            oracle.fill_gradients([p])
            gradient = p.grad  # kept, so that no other storage takes its address
            with StorageTracker([p, gradient, *means]) as tracker:
                optimizer.grad_func(0)
            trackers += tracker.events
            assert p.grad is None
        resolved = resolve_optimizer(f"lomo_optim.{name}", args)
        events = step_events(resolved, oracle.specs(parameters), first_step=True, on_cpu=True)
        assert step_oracle.visible(events, "cpu") == trackers


@DTYPES
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_step_of_grokadamw_is_the_real_one(device, dtype, monkeypatch):
    cls = pytest.importorskip("grokadamw", reason="grokadamw is not installed").GrokAdamW
    to = torch.Tensor.to
    if device == "meta":
        monkeypatch.setattr(  # a meta tensor has no values to bring to the host
            torch.Tensor,
            "to",
            lambda t, to_what: torch.empty_like(t, device="cpu") if to_what == "cpu" else to(t, to_what),
        )
    for clipping in (0.0, 1.0) if device == "cpu" else (0.0,):
        parameters = oracle.make_parameters(WITH_CONV, dtype, device)
        optimizer = cls(list(parameters.values()), gradient_clipping=clipping)
        resolved = resolve_optimizer("grokadamw.GrokAdamW", {"gradient_clipping": clipping})
        for first in (True, False):
            oracle.fill_gradients(parameters.values())
            known = [*parameters.values(), *(p.grad for p in parameters.values())]
            tracker = StorageTracker(known, oracle.tensors_in(optimizer.param_groups[0].get("state", {})))
            with tracker:
                optimizer.step()
            events = step_events(resolved, oracle.specs(parameters), first_step=first, on_cpu=device == "cpu")
            step_oracle.assert_same_events(tracker, events, device)


@DTYPES
def test_the_step_of_adabelief_is_the_real_one(dtype):
    cls = pytest.importorskip("adabelief_pytorch", reason="adabelief-pytorch is not installed").AdaBelief
    for option in choices(amsgrad=(False, True), rectify=(False, True), weight_decouple=(False, True)):
        args = {**option, "weight_decay": 0.1, "print_change_log": False}
        check("adabelief_pytorch.AdaBelief", cls, oracle.make_parameters(WITH_CONV, dtype), args, num_steps=8)


@DTYPES
@pytest.mark.parametrize("name", ["AdamAtan2", "AdoptAtan2"])
def test_the_step_of_adam_atan2_is_the_real_one(name, dtype):
    cls = getattr(pytest.importorskip("adam_atan2_pytorch", reason="adam-atan2-pytorch is not installed"), name)
    options = {"cautious_factor": (0.0, 1.0), "weight_decay": (0.0, 0.1), "regen_reg_rate": (0.0, 0.1)}
    if name == "AdamAtan2":
        options["cautious_wd"] = (False, True)
    for args in choices(**options):
        if args["weight_decay"] and args["regen_reg_rate"]:
            continue  # refused by the class
        check(f"adam_atan2_pytorch.{name}", cls, oracle.make_parameters(WITH_CONV, dtype), args)


@DTYPES
def test_the_step_of_cautious_lion_is_the_real_one(dtype):
    module = pytest.importorskip("lion_pytorch.cautious_lion", reason="lion-pytorch is not installed")
    for args in choices(cautious_factor=(0.0, 1.0), weight_decay=(0.0, 0.1), cautious_wd=(False, True)):
        check("lion_pytorch.cautious_lion.Lion", module.Lion, oracle.make_parameters(WITH_CONV, dtype), args)


@DTYPES
def test_the_step_of_came_is_the_real_one(dtype):
    cls = pytest.importorskip("came_pytorch", reason="came-pytorch is not installed").CAME
    for args in choices(lr=(1e-3,), weight_decay=(0.0, 0.1)):
        check("came_pytorch.CAME", cls, oracle.make_parameters(WITH_CONV, dtype), args)


ADAM_MINI_SHAPES = {
    "embed_tokens.weight": (50, 32),
    "layers.0.q_proj.weight": (32, 32),
    "layers.0.q_proj.bias": (32,),
    "layers.0.k_proj.weight": (16, 32),
    "layers.0.v_proj.weight": (16, 32),
    "layers.0.norm.weight": (32,),
    "layers.0.mlp.up.weight": (64, 32),
    "other.weight": (5, 7),
}


@DTYPES
def test_the_step_of_adam_mini_is_the_real_one(dtype):
    cls = pytest.importorskip("adam_mini", reason="adam-mini is not installed").Adam_mini
    args = {"dim": 32, "n_heads": 4, "n_kv_heads": 2, "verbose": False}
    parameters = oracle.make_parameters(ADAM_MINI_SHAPES, dtype)
    check("adam_mini.Adam_mini", lambda _, **kw: cls(parameters.items(), **kw), parameters, args)


@DTYPES
def test_the_step_of_muon_is_the_real_one(dtype):
    muon = pytest.importorskip("muon", reason="muon-optimizer is not installed")
    shapes = {"tall": (10, 7), "wide": (3, 9), "square": (5, 5), "batch": (2, 6, 4)}
    check("muon.SingleDeviceMuon", muon.SingleDeviceMuon, oracle.make_parameters(shapes, dtype))


@DTYPES
def test_the_step_of_muon_with_its_own_adam_is_the_real_one(dtype):
    muon = pytest.importorskip("muon", reason="muon-optimizer is not installed")
    parameters = oracle.make_parameters({**SHAPES, "embed.weight": (20, 4)}, dtype)

    def make(_):
        return muon.SingleDeviceMuonWithAuxAdam(
            [{"params": [p], "use_muon": p.ndim == 2 and "embed" not in name} for name, p in parameters.items()]
        )

    check("muon.SingleDeviceMuonWithAuxAdam", make, parameters)


@DTYPES
def test_the_step_of_muon_and_adamw_is_that_of_the_two(dtype):
    parameters = oracle.make_parameters({**SHAPES, "embed.weight": (20, 4)}, dtype)
    by_muon = {name: p for name, p in parameters.items() if p.ndim == 2 and "embed" not in name}
    optimizers = (
        torch.optim.Muon(by_muon.values()),
        torch.optim.AdamW([p for name, p in parameters.items() if name not in by_muon]),
    )
    resolved = resolve_optimizer("Muon+AdamW")
    for first in (True, False):
        oracle.fill_gradients(parameters.values())
        state = [t for optimizer in optimizers for t in oracle.state_tensors(optimizer)]
        with StorageTracker([*parameters.values(), *(p.grad for p in parameters.values()), *state]) as tracker:
            for optimizer in optimizers:
                optimizer.step()
        events = step_events(resolved, oracle.specs(parameters), first_step=first, on_cpu=True)
        step_oracle.assert_same_events(tracker, events)


@DTYPES
def test_the_step_of_prodigy_is_the_real_one(dtype):
    cls = pytest.importorskip("prodigyopt", reason="prodigyopt is not installed").Prodigy
    options = {
        "slice_p": (1, 3),
        "weight_decay": (0.0, 0.1),
        "decouple": (False, True),
        "betas": ((0.9, 0.99), (0.0, 0.99)),
    }
    for args in choices(**options):
        check("prodigyopt.Prodigy", cls, oracle.make_parameters(WITH_CONV, dtype), args)


@DTYPES
@pytest.mark.parametrize("name", ["DAdaptAdam", "DAdaptSGD", "DAdaptAdan", "DAdaptLion", "DAdaptAdaGrad"])
def test_the_step_of_dadaptation_is_the_real_one(name, dtype):
    cls = getattr(pytest.importorskip("dadaptation", reason="dadaptation is not installed"), name)
    for args in choices(weight_decay=(0.0, 0.1)):
        check(f"dadaptation.{name}", cls, oracle.make_parameters(WITH_CONV, dtype), args)


GROUP_LOOPS = {
    "came_pytorch.CAME": {"lr": 1e-3},
    "prodigyopt.Prodigy": {},
    "dadaptation.DAdaptAdam": {},
    "dadaptation.DAdaptSGD": {},
    "dadaptation.DAdaptAdan": {},
    "dadaptation.DAdaptAdaGrad": {},
    "muon.SingleDeviceMuon": {},
    "optimi.StableAdamW": {"lr": 1e-3, "triton": False, "foreach": False},
}


@pytest.mark.parametrize("class_path", GROUP_LOOPS)
def test_two_groups_are_gone_through_in_the_real_order(class_path):
    module, _, name = class_path.rpartition(".")
    cls, args = getattr(pytest.importorskip(module), name), GROUP_LOOPS[class_path]
    groups = [oracle.make_parameters({"a": (5, 4), "b": (6, 3)}), oracle.make_parameters({"c": (7, 2), "d": (3, 2)})]
    optimizer = cls([{"params": list(group.values())} for group in groups], **args)
    parameters = [p for group in groups for p in group.values()]
    for first in (True, False):
        oracle.fill_gradients(parameters)
        tracker = StorageTracker([*parameters, *(p.grad for p in parameters)], _and_step_counters(optimizer))
        with tracker:
            optimizer.step()
        resolved = resolve_optimizer(class_path, args)
        specs = [(resolved, oracle.specs(group)) for group in groups]
        assert_same(class_path, tracker, group_step_events(specs, first_step=first, on_cpu=True))


@DTYPES
@pytest.mark.parametrize("name", ["AdamWScheduleFreePaper", "AdamWScheduleFreeReference", "SGDScheduleFreeReference"])
def test_the_step_of_schedulefree_as_published_is_the_real_one(name, dtype):
    cls = getattr(pytest.importorskip("schedulefree", reason="schedulefree is not installed"), name)
    for args in choices(weight_decay=(0.0, 0.1), **({"foreach": (False, True)} if name.endswith("Paper") else {})):
        check(f"schedulefree.{name}", cls, oracle.make_parameters(WITH_CONV, dtype), args)


def test_every_name_of_the_trainer_has_a_step_or_an_exact_reason_why_not():
    without = set()
    for name in (n for n in names().values() if n.framework == "transformers" and not n.unbuildable):
        known = step_source(resolve_optimizer(name.name))
        assert known.source if known.rule else "have not been read yet" not in known.reason, name.name
        without |= set() if known.rule else {name.name}
    eight_bit = {"galore_adamw_8bit", "galore_adamw_8bit_layerwise"}
    assert without == {"adamw_torch_xla", "adamw_torch_npu_fused", "adamw_torch_4bit", "adamw_torch_8bit"} | eight_bit
