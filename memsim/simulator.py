"""`simulate`: from a model and a training configuration to every event of the allocator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memsim.config import TrainingConfig
from memsim.errors import MemsimError
from memsim.estimator import check_choices, chosen_config, chosen_source, estimate_spec, model_spec
from memsim.optimizers import assign_in_loop
from memsim.programs import StepFinder, StepSource
from memsim.results import Unmodeled
from memsim.simulated_run import SimulatedRun, simulated_run
from memsim.simulation import compose


def simulate(
    model: object,
    config: TrainingConfig | None = None,
    *,
    step: StepSource | None = None,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> SimulatedRun:
    """Return the loading of a model and two training steps, alloc by alloc, through PyTorch's caching allocator.

    Args:
        model: as for `memsim.estimate`.
        config: every choice at once; or give them as `options`.
        step: where forward and backward come from, as for `memsim.estimate`.
        progress: is called with a sentence before each wait, for the network or a recording.
        options: as for `memsim.estimate`.

    Raises:
        ModelError: the model cannot be resolved.
        UsageError: an option that cannot be.
        MemsimError: forward and backward, or the optimizer's step, are not known.
    """
    config = chosen_config(model, config, options)
    check_choices(config)
    spec = model_spec(model, config, progress)
    with StepFinder(chosen_source(step), progress) as finder:
        estimate = estimate_spec(spec, config, finder)
        if estimate.whole_step is None:
            reason = next(iter(estimate.unmodeled)).reason
            raise MemsimError(
                f"the step of {spec.name} cannot be simulated: {reason}\n"
                "memsim estimate tells what can be told without it."
            )
        found = finder.find(spec, estimate.config)  # at hand since the estimate
    assert not isinstance(found, Unmodeled), "the estimate has it"
    parts = assign_in_loop(config.optimizer, spec.table, in_trainer=config.loop == "trainer")
    return simulated_run(estimate, compose(found.sections, parts, estimate.config))
