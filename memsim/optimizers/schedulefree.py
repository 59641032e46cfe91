"""State of `schedulefree`: the averaged or base point beside the weights, and at most one moment.

Read at schedulefree 1.4.1: each module's `step()` (adamw_schedulefree.py:151-160 and likewise). Nothing counts steps by
parameter: `k` belongs to the group. The wrappers hold another optimizer, whose state is its own.
"""

from __future__ import annotations

from typing import Any

from memsim.optimizers.registry import register
from memsim.optimizers.rules import same_shape

_FACTS: dict[str, Any] = {"package": "schedulefree", "version": "1.4.1"}
_ADAM: dict[str, Any] = {
    "lr": 0.0025,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.0,
    "warmup_steps": 0,
    "r": 0.0,
    "weight_lr_power": 2.0,
    "foreach": True,
}
_RADAM = {key: value for key, value in _ADAM.items() if key != "warmup_steps"} | {"silent_sgd_phase": True}
_SGD = {key: value for key, value in _ADAM.items() if key not in {"betas", "eps"}} | {"lr": 1.0, "momentum": 0.9}
_REFERENCE = _ADAM | {"decay_at_z": False, "foreach": False}

_EVERY_PARAMETER = "State is made for parameters without a gradient too."
_CLASSES: tuple[tuple[str, str, dict[str, Any], tuple[str, ...], str], ...] = (
    ("AdamWScheduleFree", "adamw_schedulefree.py:151-160", _ADAM, ("z", "exp_avg_sq"), ""),
    ("AdamWScheduleFreePaper", "adamw_schedulefree_paper.py:155-164", _ADAM, ("z", "exp_avg_sq"), ""),
    ("AdamWScheduleFreeClosure", "adamw_schedulefree_closure.py:88-95", _ADAM, ("z", "exp_avg_sq"), _EVERY_PARAMETER),
    (
        "AdamWScheduleFreeReference",
        "adamw_schedulefree_reference.py:166-174",
        _REFERENCE,
        ("z", "exp_avg_sq", "x", "y"),
        "",
    ),
    ("RAdamScheduleFree", "radam_schedulefree.py:166-174", _RADAM, ("z", "exp_avg_sq"), ""),
    ("RAdamScheduleFreeClosure", "radam_schedulefree_closure.py:91-98", _RADAM, ("z", "exp_avg_sq"), _EVERY_PARAMETER),
    ("SGDScheduleFree", "sgd_schedulefree.py:151-157", _SGD, ("z",), ""),
    ("SGDScheduleFreeClosure", "sgd_schedulefree_closure.py:89-92", _SGD, ("z",), _EVERY_PARAMETER),
    ("SGDScheduleFreeReference", "sgd_schedulefree_reference.py:151-158", _SGD, ("z", "x", "y"), ""),
)

for _name, _lines, _arguments, _entries, _ignored in _CLASSES:
    register(
        f"schedulefree.{_name}", arguments=_arguments, source=f"schedulefree/{_lines}", ignores=_ignored, **_FACTS
    )(same_shape(*_entries))
