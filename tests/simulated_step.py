"""A step small enough to follow by hand, for the tests of simulated runs.

w is 1024 x 1024 float32: 4 MiB. A micro-step makes a batch of 2 KiB, keeps an activation of 6 MiB for backward, which
makes w's gradient (4 MiB) and frees both. SGD without momentum adds the gradient in place and allocates nothing.
"""

from dataclasses import replace

import memsim
from memsim.config import OptimizerConfig, TrainingConfig
from memsim.estimator import training_config
from memsim.ledger import Category, Phase
from memsim.model import ModelSpec, ParameterSpec, ParameterTable
from memsim.optimizers import assign
from memsim.results import Recorded
from memsim.simulated_run import simulated_run
from memsim.simulation import compose
from memsim.step import Holder
from memsim.step.section import Section, SectionEvent
from memsim.tensors import TensorSpec
from memsim.whole_step import whole_step

KIB, MIB = 2**10, 2**20
RECORDED = Recorded(torch="2.13.0", transformers="5.24.0", compute_capability="8.0")
SGD = OptimizerConfig(name="torch.optim.SGD", args={"lr": 0.1}, impl="for-loop")


def spec(name="tiny"):
    weight = ParameterSpec(name="layer.w", tensor=TensorSpec((1024, 1024), "float32"), module_class="Linear")
    table = ParameterTable(parameters=(weight,), buffers=())
    return ModelSpec(name=name, source="module", task="", model_class="Tiny", dtype="float32", table=table)


def sections(activation_bytes=6 * MIB, module="layer"):
    load = _section("load", [_alloc(0, 4 * MIB, Phase.LOAD, Category.PARAMETER, "layer.w", "parameter:layer.w")])
    first, steady = (_micro_step(name, activation_bytes, module) for name in ("first", "steady"))
    return {"load": load, "first": first, "accumulate": replace(steady, name="accumulate"), "steady": steady}


def _micro_step(name, activation_bytes, module):
    events = [
        _alloc(0, 2 * KIB, Phase.FORWARD, Category.INPUT, "", "", shape=(2, 256), dtype="float32"),
        _alloc(1, activation_bytes, Phase.FORWARD, Category.ACTIVATION, "", "", module=module, op="MmBackward0"),
        _alloc(2, 4 * MIB, Phase.BACKWARD, Category.GRADIENT, "layer.w", "gradient:layer.w"),
        SectionEvent("free", 1, activation_bytes, Phase.BACKWARD, None, ""),
        SectionEvent("free", 0, 2 * KIB, Phase.BACKWARD, None, ""),
    ]
    return _section(name, events)


def _section(name, events):
    allocs = [event for event in events if event.action == "alloc"]
    left = {event.slot: event.key for event in allocs if event.slot}
    return Section(name=name, events=tuple(events), num_keys=len(allocs), left=left)


def _alloc(key, nbytes, phase, category, name, slot, **more):
    holder = Holder(category=category, name=name, **{"module": "layer" if name else "", **more})
    return SectionEvent("alloc", key, nbytes, phase, holder, slot)


def run(activation_bytes=6 * MIB, *, name="tiny", module="layer", **options):
    """Return the simulated run of that step under the given training options."""
    config = training_config(**{"optimizer": SGD, **options})
    assert isinstance(config, TrainingConfig)
    parts = assign(config.optimizer, spec(name).table)
    evaluated = sections(activation_bytes, module)
    step = whole_step(evaluated, parts, config, RECORDED)
    static = memsim.estimate(spec(name), config)
    estimate = replace(static, whole_step=step.whole, fit=step.fit, assumptions=step.assumptions, unmodeled=())
    return simulated_run(estimate, compose(evaluated, parts, config))
