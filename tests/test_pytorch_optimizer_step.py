"""Each allocation and free of the real `step()` of `pytorch_optimizer`'s plainest classes, as memsim writes it."""

from __future__ import annotations

from functools import partial

import optimizer_oracle as oracle
import pytest
from storage_tracker import StorageTracker
from test_third_party_step import DTYPES, SHAPES, assert_same, check, choices

from memsim.optimizers import group_step_events, resolve_optimizer, rules, step_source

pytorch_optimizer = pytest.importorskip("pytorch_optimizer", reason="pytorch-optimizer is not installed")

GROUPED = ("AdaGO", "AdaMuon", "Muon", "MuonClip", "NorMuon")
"""They need to be told which parameters are hidden matrices."""

NAMES = sorted(
    {
        path.removeprefix("pytorch_optimizer.")
        for path in rules()
        if path.startswith("pytorch_optimizer.") and step_source(resolve_optimizer(path)).rule
    }
    - {*GROUPED}
)

RECTIFIED = {"RAdam", "ScheduleFreeRAdam"}
"""Their variance is rectified from the sixth step on, which is the later step of the rule."""


def test_at_least_forty_classes_are_compared():
    assert len(NAMES) >= 40


@DTYPES
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_each_allocation_and_free_is_the_real_one(name, dtype):
    arguments = rules()[f"pytorch_optimizer.{name}"].arguments
    options = {}
    if "foreach" in arguments:
        options["foreach"] = (False, True) if arguments["foreach"] is False else (False, True, None)
    if "weight_decay" in arguments:
        options["weight_decay"] = (0.0, 0.1)
    for args in choices(**options):
        parameters = oracle.make_parameters(SHAPES, dtype)
        num_steps = 6 if name in RECTIFIED else 2
        check(f"pytorch_optimizer.{name}", getattr(pytorch_optimizer, name), parameters, args, num_steps=num_steps)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_two_groups_of_two_dtypes_are_gone_through_in_the_real_order(name):
    class_path = f"pytorch_optimizer.{name}"
    forms = (False, True) if "foreach" in rules()[class_path].arguments else (None,)
    for foreach in forms:
        args = {} if foreach is None else {"foreach": foreach}
        first = oracle.make_parameters({"a": (5, 4), "b": (6, 3)}) | oracle.make_parameters({"c": (7, 2)}, "bfloat16")
        groups = [first, oracle.make_parameters({"d": (3, 2), "e": (2, 2)})]
        optimizer = getattr(pytorch_optimizer, name)([{"params": list(group.values())} for group in groups], **args)
        if hasattr(optimizer, "train"):
            optimizer.train()
        parameters = [p for group in groups for p in group.values()]
        numbers = (1, 6) if name in RECTIFIED else (1, 2)
        for number in range(1, numbers[-1] + 1):
            oracle.fill_gradients(parameters)
            tracker = StorageTracker([*parameters, *(p.grad for p in parameters)], oracle.state_tensors(optimizer))
            with tracker:
                optimizer.step()
            if number not in numbers:
                continue
            parts = [(resolve_optimizer(class_path, args), oracle.specs(group)) for group in groups]
            assert_same(f"{name} {args}", tracker, group_step_events(parts, first_step=number == 1, on_cpu=True))


def test_another_form_than_the_one_that_was_read_is_refused():
    for name, key in (("AdaBelief", "rectify"), ("AdaPNM", "ams_bound"), ("DiffGrad", "rectify")):
        default = rules()[f"pytorch_optimizer.{name}"].arguments[key]
        known = step_source(resolve_optimizer(f"pytorch_optimizer.{name}", {key: not default}))
        assert known.rule is None
        assert key in known.reason


CONVOLUTIONS = {**SHAPES, "conv": (4, 3, 5, 2), "pointwise": (6, 5, 1, 1), "depthwise": (6, 1, 3, 3)}


@DTYPES
@pytest.mark.filterwarnings("ignore")
def test_dimensions_that_soap_and_shampoo_precondition_are_the_real_ones(dtype):
    parameters = oracle.make_parameters(CONVOLUTIONS, dtype)
    for args in choices(precondition_1d=(False, True), normalize_gradient=(False, True)):
        check("pytorch_optimizer.SOAP", pytorch_optimizer.SOAP, parameters, args)
    for max_precondition_dim in (2, 8):
        args = {"max_precondition_dim": max_precondition_dim}
        check("pytorch_optimizer.SOAP", pytorch_optimizer.SOAP, oracle.make_parameters(SHAPES, dtype), args)
    for momentum in (0.0, 0.9):
        check("pytorch_optimizer.Shampoo", pytorch_optimizer.Shampoo, parameters, {"momentum": momentum})


@DTYPES
@pytest.mark.filterwarnings("ignore")
def test_vectors_that_mars_treats_as_matrices_are_updated_like_the_real_ones(dtype):
    for args in choices(foreach=(False, True), optimize_1d=(False, True), ams_bound=(False, True)):
        check("pytorch_optimizer.MARS", pytorch_optimizer.MARS, oracle.make_parameters(SHAPES, dtype), args)


@DTYPES
@pytest.mark.filterwarnings("ignore")
def test_stable_adamw_without_kahan_sums_or_with_coupled_decay_is_the_real_one(dtype):
    for args in choices(foreach=(False, True), kahan_sum=(False, True), weight_decouple=(False, True)):
        parameters = oracle.make_parameters(SHAPES, dtype)
        check("pytorch_optimizer.StableAdamW", pytorch_optimizer.StableAdamW, parameters, args)


@DTYPES
@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.filterwarnings("ignore")
def test_muon_and_its_kin_update_hidden_matrices_and_the_rest_like_the_real_ones(name, dtype):
    class_path = f"pytorch_optimizer.{name}"
    shapes = {**CONVOLUTIONS, "second": (10, 7), "turned": (7, 10), "column": (6, 1), "embed_tokens.weight": (9, 4)}
    options = {"foreach": (False, True), "use_adjusted_lr": (False, True), "weight_decay": (0.0, 0.1)}
    options |= {key: (False, True) for key in ("nesterov",) if key in rules()[class_path].arguments}
    if name == "NorMuon":
        options["update_scale"] = ("preserve_norm", "match_rms")
    for args in choices(**options):
        parameters = oracle.make_parameters(shapes, dtype)

        check(class_path, partial(_with_two_groups, name), parameters, args)


def _with_two_groups(name, parameters, **args):
    """Return the optimizer with hidden matrices in one group, and the rest (the embedding of 9 rows) in another."""
    rest = [p for p in parameters if p.ndim < 2 or len(p) == 9]
    hidden = [p for p in parameters if all(p is not other for other in rest)]
    groups = [{"params": hidden, "use_muon": True}, {"params": rest, "use_muon": False}]
    return getattr(pytorch_optimizer, name)(groups, **args)


@DTYPES
@pytest.mark.filterwarnings("ignore")
def test_adafactor_in_each_form_is_the_real_one(dtype):
    for shapes in (SHAPES, {"matrix": (6, 4)}, {"vector": (5,)}):
        for args in choices(
            foreach=(False, True), scale_parameter=(False, True), ams_bound=(False, True), weight_decay=(0.0, 0.1)
        ):
            args["relative_step"] = args["scale_parameter"]
            parameters = oracle.make_parameters(shapes, dtype)
            check("pytorch_optimizer.AdaFactor", pytorch_optimizer.AdaFactor, parameters, args)
