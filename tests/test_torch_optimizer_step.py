"""Each allocation and free of the real `step()` of `torch_optimizer`'s classes, as memsim writes it."""

from __future__ import annotations

import optimizer_oracle as oracle
import pytest
from test_third_party_step import DTYPES, SHAPES, check, choices

from memsim.optimizers import resolve_optimizer, rules, step_source

torch_optimizer = pytest.importorskip("torch_optimizer", reason="torch-optimizer is not installed")

DECAY = (0.0, 0.1)
OPTIONS = {
    "AdaBelief": {"amsgrad": (False, True), "weight_decay": DECAY},
    "AdaBound": {"amsbound": (False, True), "weight_decay": DECAY},
    "AdaMod": {"weight_decay": DECAY},
    "Adafactor": {"beta1": (None, 0.9), "weight_decay": DECAY},
    "AggMo": {"weight_decay": DECAY},
    "Apollo": {"weight_decay": (0.0,)},
    "DiffGrad": {"weight_decay": DECAY},
    "LARS": {"momentum": (0.0, 0.9), "nesterov": (False,), "weight_decay": DECAY},
    "Lamb": {"adam": (False, True), "weight_decay": DECAY},
    "MADGRAD": {"momentum": (0.0, 0.9)},
    "NovoGrad": {"amsgrad": (False, True), "weight_decay": DECAY},
    "PID": {"momentum": (0.0, 0.9), "weight_decay": DECAY},
    "QHAdam": {"nus": ((1.0, 1.0), (0.7, 0.9)), "weight_decay": DECAY},
    "QHM": {"weight_decay": DECAY},
    "RAdam": {"weight_decay": DECAY},
    "Ranger": {"weight_decay": DECAY},
    "RangerQH": {"weight_decay": DECAY},
    "RangerVA": {"amsgrad": (False, True), "transformer": ("softplus", "")},
    "SGDW": {"momentum": (0.0, 0.9), "weight_decay": DECAY},
    "Yogi": {"weight_decay": DECAY},
}
NUM_STEPS = {"RAdam": 8, "Ranger": 8, "RangerQH": 2}


@DTYPES
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.filterwarnings("ignore")
def test_each_allocation_and_free_is_the_real_one(name, dtype):
    for args in choices(**OPTIONS[name]):
        parameters = oracle.make_parameters(SHAPES, dtype)
        cls = getattr(torch_optimizer, name)
        check(f"torch_optimizer.{name}", cls, parameters, args, num_steps=NUM_STEPS.get(name, 2))


def test_every_class_is_compared_or_says_why_it_has_no_step():
    for path in rules():
        if path.startswith("torch_optimizer."):
            known = step_source(resolve_optimizer(path))
            name = path.removeprefix("torch_optimizer.")
            assert (name in OPTIONS) == (known.rule is not None), path
            assert known.rule or "have not been read yet" not in known.reason, path
    assert "autograd" in step_source(resolve_optimizer("torch_optimizer.Apollo", {"weight_decay": 0.1})).reason
