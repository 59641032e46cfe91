"""What every `torch.optim` class allocates and frees in `step()`, and in which order, equals the real step's.

On the CPU the real arithmetic runs. On the meta device nothing is computed, but PyTorch takes the branches of an
accelerator (`step` on another device than the parameters, or `capturable` on theirs): both are compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import optimizer_oracle as oracle
import pytest
import step_oracle
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_tracker import StorageTracker

from memsim.errors import MemsimError
from memsim.model import ParameterSpec
from memsim.optimizers import (
    UnmodelledStepError,
    derive_state,
    group_step_events,
    peak_bytes,
    resolve_optimizer,
    rules,
    step_events,
    step_peak_bytes,
    step_source,
)
from memsim.tensors import TensorSpec

NO = (False,)
BOTH = (False, True)
LOOPS: tuple[dict[str, bool], ...] = ({"foreach": True}, {"foreach": False})
DECAY = {"weight_decay": (0.0, 0.1), "maximize": BOTH}
MOMENTUM = (0.0, 0.9)

OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "Adam": {**DECAY, "capturable": BOTH, "amsgrad": BOTH, "decoupled_weight_decay": BOTH},
    "AdamW": {**DECAY, "capturable": BOTH, "amsgrad": BOTH},
    "Adamax": {**DECAY, "capturable": BOTH},
    "NAdam": {**DECAY, "capturable": BOTH, "decoupled_weight_decay": BOTH},
    "RAdam": {**DECAY, "capturable": BOTH, "decoupled_weight_decay": BOTH},
    "Adadelta": {**DECAY, "capturable": BOTH},
    "Adagrad": DECAY,
    "RMSprop": {**DECAY, "capturable": BOTH, "momentum": MOMENTUM, "centered": BOTH},
    "Rprop": {"maximize": BOTH, "capturable": BOTH},
    "ASGD": {**DECAY, "capturable": BOTH},
    "SGD": {**DECAY, "momentum": MOMENTUM},
    "Adafactor": DECAY,
}
NUM_STEPS = {"RAdam": 6}
"""Steps after which a step is a later one: RAdam rectifies from its sixth step on."""

SHAPES: dict[str, tuple[int, ...]] = {
    "small": (10,),
    "matrix": (7, 9),
    "tiny": (3,),
    "scalar": (),
    "conv": (4, 3, 5, 2),
    "empty": (0,),
    "column": (2, 3, 1),
}


def _shapes(name: str) -> dict[str, tuple[int, ...]]:
    without = {"Adafactor": ("empty",), "Rprop": ("scalar",)}.get(name, ())
    return {key: shape for key, shape in SHAPES.items() if key not in without}


def _options(name: str, device: str) -> dict[str, tuple[Any, ...]]:
    """Return the options to try; where CUDA makes a number a tensor on the host, the meta device does otherwise."""
    return {**OPTIONS[name], "capturable": (True,)} if device == "meta" and name in ("Rprop", "ASGD") else OPTIONS[name]


def _choices(options: dict[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*options.values()):
        yield dict(zip(options, values, strict=True))


def _check(
    name: str, args: dict[str, Any], parameters: dict[str, torch.nn.Parameter], num_steps: int | None = None
) -> None:
    optimizer = getattr(torch.optim, name)(parameters.values(), **args)
    try:
        step_oracle.assert_step_equals(
            f"torch.optim.{name}", args, optimizer, parameters, num_steps=num_steps or NUM_STEPS.get(name, 2)
        )
    except AssertionError as error:
        raise AssertionError(f"{name} {args}: {error}") from error


@pytest.fixture
def capturable_everywhere(monkeypatch):
    step_oracle.allow_capturable_everywhere(monkeypatch)


@pytest.fixture
def numbers_from_meta(monkeypatch):
    """`.item()` of a meta tensor is 1.0, as if the device had computed something harmless."""
    item = torch.Tensor.item
    monkeypatch.setattr(torch.Tensor, "item", lambda self: 1.0 if self.is_meta else item(self))


@pytest.mark.parametrize(("device", "dtype"), [("cpu", "float32"), ("cpu", "bfloat16"), ("meta", "bfloat16")])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.usefixtures("capturable_everywhere", "numbers_from_meta")
def test_each_allocation_and_free_is_the_real_one(name, device, dtype):
    for args, form in itertools.product(_choices(_options(name, device)), LOOPS):
        _check(name, {**args, **form}, oracle.make_parameters(_shapes(name), dtype, device))


@pytest.mark.parametrize("name", OPTIONS)
def test_the_form_that_is_left_open_is_the_real_one_on_the_cpu(name):
    for dtype in ("float16", "float32"):
        _check(name, {}, oracle.make_parameters(_shapes(name), dtype))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.usefixtures("capturable_everywhere", "numbers_from_meta")
def test_two_dtypes_are_updated_in_the_real_order(name, device):
    wide = oracle.make_parameters({"a": (5, 4), "b": (3,), "c": (30,)}, "float32", device)
    narrow = oracle.make_parameters({"d": (9, 2), "e": (11,)}, "bfloat16", device)
    for first, second in ((wide, narrow), (narrow, wide)):
        for args, form in itertools.product(_choices({**_options(name, device), "maximize": NO}), LOOPS):
            if not args.get("decoupled_weight_decay"):
                _check(name, {**args, **form}, {**first, **second})


@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_each_allocation_and_free_of_muon_is_the_real_one(device, dtype):
    shapes = {"tall": (10, 7), "wide": (3, 9), "square": (5, 5), "row": (1, 4)}
    for args in _choices({"nesterov": BOTH, "ns_steps": (1, 5)}):
        _check("Muon", args, oracle.make_parameters(shapes, dtype, device))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adagrad", "SGD"])
def test_the_fused_form_makes_nothing_but_its_state(name, dtype):
    options = {"weight_decay": (0.0, 0.1), **({"momentum": MOMENTUM} if name == "SGD" else {})}
    for args in _choices(options):
        _check(name, {**args, "fused": True}, oracle.make_parameters(_shapes(name), dtype))
        resolved = resolve_optimizer(f"torch.optim.{name}", {**args, "fused": True})
        parameters = oracle.specs(oracle.make_parameters(_shapes(name), dtype))
        assert step_events(resolved, parameters, first_step=False) == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "args",
    [
        {"max_iter": 1},
        {"max_iter": 2},
        {"max_iter": 5},
        {"max_iter": 5, "history_size": 3},
        {"max_iter": 5, "max_eval": 3},
        {"max_iter": 4, "max_eval": 1},
    ],
    ids=str,
)
def test_each_allocation_and_free_of_lbfgs_is_the_real_one(args, dtype):
    parameters = oracle.make_parameters({"w": (8, 5), "b": (7,)}, dtype)
    oracle.fill_gradients(parameters.values())
    slopes = {name: (torch.arange(p.numel()).view(p.shape) / 7 + 1).to(p.dtype) for name, p in parameters.items()}
    optimizer = torch.optim.LBFGS(parameters.values(), lr=0.01, tolerance_change=0.0, tolerance_grad=0.0, **args)
    losses = iter(range(1000, 0, -1))

    def closure() -> float:
        """The gradient of a parabola, written where the gradient is: nothing is allocated."""
        with torch.no_grad():
            for name, p in parameters.items():
                torch.mul(p, slopes[name], out=p.grad)
        return float(next(losses))

    iterations = 0
    for _ in range(3):
        fixed = [*slopes.values(), *(t for p in parameters.values() for t in (p, p.grad))]
        tracker = StorageTracker(fixed, mortal=oracle.state_tensors(optimizer))
        with tracker:
            optimizer.step(closure)
        resolved = resolve_optimizer("torch.optim.LBFGS", {**args, "lr": 0.01, "num_iterations": iterations or None})
        events = step_events(resolved, oracle.specs(parameters), first_step=not iterations, on_cpu=True)
        step_oracle.assert_same_events(tracker, events)
        iterations = optimizer.state[parameters["w"]]["n_iter"]
        if iterations > 1:
            done = {**args, "lr": 0.01, "num_iterations": iterations}
            oracle.assert_state_equals("torch.optim.LBFGS", done, optimizer, parameters)


@pytest.mark.usefixtures("capturable_everywhere")
def test_asgd_averages_in_place_of_copying_once_t0_is_passed():
    for args, form in itertools.product(_choices({**OPTIONS["ASGD"], "t0": (0.0,)}), LOOPS):
        _check("ASGD", {**args, **form}, oracle.make_parameters(_shapes("ASGD")), num_steps=4)


@pytest.mark.parametrize("form", LOOPS, ids=str)
def test_rprop_of_a_scalar_whose_gradient_keeps_its_sign_is_the_real_one(form, monkeypatch):
    def ones(parameters):
        for p in parameters:
            p.grad = torch.ones_like(p)

    monkeypatch.setattr(oracle, "fill_gradients", ones)
    for args in _choices({"maximize": BOTH, "capturable": NO}):
        _check("Rprop", {**args, **form}, oracle.make_parameters({"scalar": (), "vector": (5,)}))


@settings(max_examples=15, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(1, 9), max_size=4).map(tuple), min_size=1, max_size=5),
    dtypes=st.lists(st.sampled_from(["float32", "bfloat16"]), min_size=5, max_size=5),
    data=st.data(),
)
def test_each_allocation_and_free_is_the_real_one_for_any_shapes_and_options(shapes, dtypes, data):
    for name, options in OPTIONS.items():
        chosen = {
            key: data.draw(st.sampled_from(values), label=f"{name} {key}")
            for key, values in options.items()
            if key != "capturable"
        }
        form = data.draw(st.sampled_from(LOOPS), label=f"{name} form")
        parameters = {}
        for index, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=False)):
            if shape or name != "Rprop":
                parameters |= oracle.make_parameters({f"p{index}": shape}, dtype)
        if parameters:
            _check(name, {**chosen, **form}, parameters)


def test_several_groups_are_updated_one_after_the_other():
    decayed = oracle.make_parameters({"a": (5, 4), "b": (6, 3)})
    plain = oracle.make_parameters({"c": (7,), "d": (2,)})
    for args in LOOPS:
        groups = [
            {"params": list(decayed.values()), "weight_decay": 0.1},
            {"params": list(plain.values()), "weight_decay": 0.0},
        ]
        optimizer = torch.optim.Adam(groups, **args)
        for first in (True, False):
            oracle.fill_gradients([*decayed.values(), *plain.values()])
            tracker = step_oracle.track_step(optimizer, {**decayed, **plain})
            events = group_step_events(
                [
                    (resolve_optimizer("torch.optim.Adam", {**args, "weight_decay": 0.1}), oracle.specs(decayed)),
                    (resolve_optimizer("torch.optim.Adam", args), oracle.specs(plain)),
                ],
                first_step=first,
                on_cpu=True,
            )
            step_oracle.assert_same_events(tracker, events)
            keys = [event.key for event in events if event.action == "alloc"]
            assert len(set(keys)) == len(keys)


def _specs(*numels: int, dtype: str = "bfloat16") -> list[ParameterSpec]:
    return [ParameterSpec(name=f"p{i}", tensor=TensorSpec((n,), dtype)) for i, n in enumerate(numels)]


def test_foreach_adamw_holds_one_copy_of_all_parameters_and_the_for_loop_three_tensors():
    parameters = _specs(1000, 3000, 2000)
    foreach, loop, fused = (
        step_peak_bytes(resolve_optimizer("torch.optim.AdamW", impl=impl), parameters, first_step=False)
        for impl in ("foreach", "for-loop", "fused")
    )
    # bfloat16: 2 bytes an element.
    assert foreach == (1000 + 3000 + 2000) * 2
    # exp_avg_sq.sqrt() and its quotient, while the previous parameter's denominator is still bound: the second
    # parameter after the first takes 2 * 3000 + 1000, the third after the second 2 * 2000 + 3000.
    assert loop == max(2 * 3000 + 1000, 2 * 2000 + 3000) * 2
    assert fused == 0


def test_on_an_accelerator_the_form_that_is_left_open_is_foreach():
    parameters = _specs(1000, 3000)
    open_, foreach = (
        step_events(resolve_optimizer("torch.optim.AdamW", args), parameters, first_step=False)
        for args in ({}, {"foreach": True})
    )
    assert open_ == foreach
    # Adafactor alone prefers the for-loop everywhere (its documentation says so).
    left_open, loop = (
        step_events(resolve_optimizer("torch.optim.Adafactor", args), parameters, first_step=False)
        for args in ({}, {"foreach": False})
    )
    assert left_open == loop


@pytest.mark.parametrize("name", [*OPTIONS, "Muon"])
def test_the_first_step_creates_the_state_and_frees_all_else(name):
    shape = (6, 4) if name in ("Muon", "Adafactor") else (24,)
    parameters = [ParameterSpec(name="w", tensor=TensorSpec(shape, "float32"))]
    resolved = resolve_optimizer(f"torch.optim.{name}", {"momentum": 0.9} if name == "SGD" else {})
    events = step_events(resolved, parameters, first_step=True)
    alive = {event.key: event for event in events if event.action == "alloc"}
    for event in events:
        if event.action == "free":
            assert alive.pop(event.key).tensor == event.tensor
    made_by_step = rules()[f"torch.optim.{name}"].created == "first step"
    state = derive_state(resolved, parameters).rows if made_by_step else []
    assert [(e.parameter, e.name, e.tensor.shape, e.tensor.device) for e in alive.values()] == [
        (row.parameter, row.name, row.shape, row.device) for row in state
    ]
    assert {event.category for event in alive.values()} <= {"optimizer_state"}


def test_the_peak_can_be_asked_for_by_device_and_category():
    events = step_events(resolve_optimizer("torch.optim.AdamW"), _specs(10), first_step=True)
    # exp_avg and exp_avg_sq, 20 bytes each, live on the device with a temporary of 20; step and the 1.0 that is added
    # to it are float32 scalars on the host.
    assert peak_bytes(events) == 60
    assert peak_bytes(events, category="optimizer_state") == 40
    assert peak_bytes(events, category="temporary") == 20
    assert peak_bytes(events, device="host") == 8


def test_what_is_not_modelled_says_so_and_is_never_zero():
    differentiable = resolve_optimizer("torch.optim.AdamW", {"differentiable": True})
    sparse = resolve_optimizer("torch.optim.SparseAdam")
    lbfgs = resolve_optimizer("torch.optim.LBFGS", {"line_search_fn": "strong_wolfe"})
    for optimizer, reason in ((differentiable, "autograd"), (sparse, "rows"), (lbfgs, "line search")):
        assert step_source(optimizer).rule is None
        assert reason in step_source(optimizer).reason
        with pytest.raises(UnmodelledStepError, match=reason):
            step_events(optimizer, _specs(10), first_step=True)
    assert issubclass(UnmodelledStepError, MemsimError)


def test_every_class_of_torch_optim_but_sparse_adam_has_a_step():
    for path in rules():
        if path.startswith("torch.optim."):
            known = step_source(resolve_optimizer(path))
            assert known.source if known.rule else path == "torch.optim.SparseAdam", path


def test_a_step_of_no_optimizer_allocates_nothing():
    assert step_events(resolve_optimizer("none"), _specs(10), first_step=True) == []
