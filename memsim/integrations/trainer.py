"""`MemsimCallback`: predicts before the first step of a Hugging Face Trainer, measures the first two, logs both.

>>> from memsim.integrations.trainer import MemsimCallback
>>> trainer = Trainer(..., callbacks=[MemsimCallback(stop_if_over=True)])

The class is made when it is first asked for, so that importing this module imports no transformers.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from typing import Any

from memsim.comparison import DEFAULT_TOLERANCE, Comparison
from memsim.config import AutocastDtype, TrainingConfig
from memsim.errors import MemsimError, UsageError, shown
from memsim.integrations.module import tensors_in
from memsim.integrations.own import MeasuredSteps, device_of
from memsim.prediction import Prediction
from memsim.record.cpu import physical_bytes
from memsim.units import format_bytes

logger = logging.getLogger("memsim")

NUM_STEPS = 2
"""Steps that are measured: the first creates the optimizer's state, the second is a steady one."""


class DoesNotFitError(MemsimError):
    """A run that was ended before its first step, because the prediction does not fit the device."""


class TrainerWatch:
    """What the callback does, event by event.

    Args:
        stop_if_over: whether a run whose prediction does not fit the device is ended before its first step.
        num_steps: optimizer steps that are measured; afterwards every hook is gone.
        tolerance: the largest difference that passes, as a fraction.

    Raises:
        UsageError: fewer than one step.
    """

    def __init__(
        self, *, stop_if_over: bool = False, num_steps: int = NUM_STEPS, tolerance: float = DEFAULT_TOLERANCE
    ) -> None:
        if not isinstance(num_steps, int) or num_steps < 1:
            raise UsageError(f"num_steps must be at least 1, not {shown(num_steps)}.")
        self._stop_if_over, self._num_steps, self._tolerance = stop_if_over, num_steps, tolerance
        self._steps: MeasuredSteps | None = None
        self.prediction: Prediction | None = None
        """What was predicted before the first step; `None` before, and where memsim has no rule for the optimizer."""
        self.comparison: Comparison | None = None
        """Prediction and measurement, without its events; `None` until the measured steps have ended."""

    def begin(self, args: Any, state: Any, model: Any, optimizer: Any) -> None:
        """Predict, log it, and begin to measure; what cannot be predicted or measured is a warning.

        Raises:
            DoesNotFitError: the prediction does not fit and that is to end the run. `control.should_training_stop` is
                looked at only after a step (transformers/trainer.py:1971 @5.24), so an error is what prevents the
                first one.
        """
        self.close()
        self.prediction = self.comparison = None
        try:
            steps = MeasuredSteps(model, optimizer, training=config_of_arguments(args), loop="trainer")
            steps.__enter__()
            self._steps = steps
            self.prediction = steps.prediction
        except MemsimError as error:
            logger.warning("memsim: %s", error)
        if self.prediction is not None:
            self._check(state, self.prediction, available_bytes(model, optimizer))

    def step_ended(self, state: Any) -> None:
        """End the measurement after the asked steps, and log it; later calls return at once."""
        if self._steps is not None and self._steps.num_steps >= self._num_steps:
            self.end(state)

    def end(self, state: Any) -> None:
        """Log what was measured so far, if it was not yet."""
        steps = self._steps
        if steps is None:
            return
        self.close()
        try:
            # Thousands of events would stay alive through the training, and every garbage collection walk them.
            self.comparison = comparison = replace(steps.compare(tolerance=self._tolerance), trace=None)
        except MemsimError as error:
            logger.warning("memsim: %s", error)
            return
        logger.info("memsim: %s", comparison.verdict)
        worst = comparison.worst
        state.log_history.append(
            {
                "step": state.global_step,
                "memsim_measured_peak_bytes": comparison.peak.measured_bytes,
                "memsim_measured_reserved_bytes": comparison.peak.measured_reserved_bytes,
                "memsim_worst_difference_bytes": worst.difference_bytes if worst is not None else None,
                "memsim_passed": comparison.passed,
            }
        )

    def close(self) -> None:
        """Take every hook away; nothing is measured any more."""
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.__exit__(None, None, None)

    def _check(self, state: Any, prediction: Prediction, there: int | None) -> None:
        needed = prediction.least_bytes
        over = there is not None and needed > there
        bound = "" if prediction.peak_allocated_bytes is not None else "at least "
        told = f"a step needs {bound}{format_bytes(needed)}"
        if there is not None:
            told += f"; the device has {format_bytes(there)} for it"
        logger.log(logging.WARNING if over else logging.INFO, "memsim: %s.", told)
        state.log_history.append(
            {
                "step": state.global_step,
                "memsim_predicted_bytes": needed,
                "memsim_available_bytes": there,
                "memsim_fits": not over,
            }
        )
        if over and self._stop_if_over:
            self.close()
            raise DoesNotFitError(
                f"the run was ended before its first step: {told}.\n"
                "Use an optimizer with less state, LoRA, quantised or frozen weights, or a larger GPU; "
                "without stop_if_over the run begins all the same."
            )


def config_of_arguments(args: Any) -> TrainingConfig:
    """Return the part of a `transformers.TrainingArguments` that decides memory, but for model and optimizer."""
    autocast: AutocastDtype = "bfloat16" if args.bf16 else "float16" if args.fp16 else "none"
    # The old name is a deprecated alias from transformers 5.24 on (training_args.py:313), `None` where it is not given.
    checkpointing = getattr(args, "activation_checkpointing", None) or getattr(args, "gradient_checkpointing", False)
    return TrainingConfig(
        loop="trainer",
        autocast=autocast,
        batch_size=args.per_device_train_batch_size,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        activation_checkpointing=bool(checkpointing),
        max_grad_norm=float(args.max_grad_norm or 0.0),
        empty_cache_steps=getattr(args, "torch_empty_cache_steps", None),
    )


def available_bytes(model: Any, optimizer: Any) -> int | None:
    """Return the memory that a model's training can have on its device; `None` where the system does not say.

    On a CUDA device that is what is free or cached, and what model and optimizer hold already: other programs and other
    tensors of this one have the rest. On the CPU it is the machine's memory.
    """
    if device_of(model) == "cpu":
        return physical_bytes() or None
    import torch

    free, _ = torch.cuda.mem_get_info(0)
    cached = torch.cuda.memory_reserved(0) - torch.cuda.memory_allocated(0)
    return int(free + cached + _held_bytes(model, optimizer))


def _held_bytes(model: Any, optimizer: Any) -> int:
    """Return the bytes of weights, buffers, gradients and state on the device, every storage once."""
    gradients = (parameter.grad for parameter in model.parameters() if parameter.grad is not None)
    held = [*model.parameters(), *model.buffers(), *gradients, *tensors_in(list(optimizer.state.values()))]
    storages = (tensor.untyped_storage() for tensor in held if tensor.is_cuda)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@functools.cache
def _callback_class() -> type:
    from transformers import TrainerCallback

    class MemsimCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
        """Predicts before the first step, measures the first two, logs both to `memsim` and `state.log_history`.

        Afterwards every hook is gone. An error that ends the training in those steps leaves the measuring on:
        `close()` ends it.

        Args:
            stop_if_over: whether a run whose prediction does not fit the device is ended before its first step.
            num_steps: optimizer steps that are measured.
            tolerance: the largest difference that passes, as a fraction.

        Raises:
            UsageError: fewer than one step.
        """

        def __init__(
            self, *, stop_if_over: bool = False, num_steps: int = NUM_STEPS, tolerance: float = DEFAULT_TOLERANCE
        ) -> None:
            self.watch = TrainerWatch(stop_if_over=stop_if_over, num_steps=num_steps, tolerance=tolerance)

        @property
        def prediction(self) -> Prediction | None:
            """What was predicted before the first step."""
            return self.watch.prediction

        @property
        def comparison(self) -> Comparison | None:
            """Prediction and measurement, once the measured steps have ended."""
            return self.watch.comparison

        def close(self) -> None:
            """End the measurement now."""
            self.watch.close()

        def on_train_begin(self, args: Any, state: Any, _control: Any, **objects: Any) -> None:
            """Predict, and begin to measure."""
            self.watch.begin(args, state, objects["model"], objects["optimizer"])

        def on_step_end(self, _args: Any, state: Any, _control: Any, **_objects: Any) -> None:
            """End the measurement after the asked steps."""
            self.watch.step_ended(state)

        def on_train_end(self, _args: Any, state: Any, _control: Any, **_objects: Any) -> None:
            """End the measurement of a run of fewer steps."""
            self.watch.end(state)

    return MemsimCallback


def __getattr__(name: str) -> Any:
    """Make the callback's class where it is first used."""
    if name == "MemsimCallback":
        return _callback_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
