"""A user's own steps, measured where they run, and held against what was predicted of them."""

from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import replace
from typing import Any, Literal, Protocol

from memsim.built_optimizer import config_of_built
from memsim.comparing import Measurement, compare_run
from memsim.comparison import DEFAULT_TOLERANCE, Comparison, MeasuredLoop
from memsim.config import TrainingConfig
from memsim.errors import MemsimError, UsageError, shown
from memsim.prediction import Prediction, static_prediction
from memsim.record.recording import Recording
from memsim.resolve import resolve
from memsim.step import AllocatorSettings

MAX_STEPS = 100
"""Steps of which something is predicted; all after the first are the same."""
_PACKAGES = ("torch", "transformers", "accelerate", "peft", "bitsandbytes")


class StepRecording(Protocol):
    """What records on one kind of device."""

    @property
    def watch(self) -> Any:
        """The watch over the loop."""

    @property
    def is_imaginary(self) -> bool:
        """Whether the device is an imaginary GPU."""

    def __enter__(self) -> Any:
        """Begin."""

    def __exit__(self, *error: object) -> None:
        """Take every hook away again."""

    def find(self, module: Any, optimizer: Any = None) -> None:
        """See what a module and its optimizer hold already."""

    def recording(self) -> Recording:
        """Return what was recorded so far."""

    def used_bytes(self) -> int | None:
        """Return what the whole device holds, as its driver says; `None` where no driver says it."""


class MeasuredSteps:
    """A user's own training steps: enter it around them, and read `measurement` or `compare()` afterwards.

    Only what the steps themselves do is measured; step 1 is the first one inside. Leaving it takes every hook away.

    Args:
        model: the `torch.nn.Module`, on the CPU or on the first CUDA device.
        optimizer: its optimizer, before or after its first step.
        training: what else decides the prediction (clipping, who runs the loop).
        loop: who runs the steps, for the result.

    Raises:
        UsageError: the model has no parameter, or is on a device that cannot be watched.
    """

    def __init__(
        self, model: Any, optimizer: Any, *, training: TrainingConfig | None = None, loop: MeasuredLoop = "own"
    ) -> None:
        self._model, self._optimizer, self._loop = model, optimizer, loop
        self._training = training or TrainingConfig()
        self._device = device_of(model)
        self._prediction: Prediction | MemsimError | None = None
        self._recording: StepRecording | None = None
        self._measurement: Measurement | None = None

    def __enter__(self) -> MeasuredSteps:
        """Predict, then begin to measure.

        Raises:
            MemsimError: the program records PyTorch's memory history itself.
        """
        self._prediction = self._predicted()
        recording = _recording_on(self._device)
        recording.__enter__()
        self._recording = recording
        recording.find(self._model, self._optimizer)
        return self

    def __exit__(self, *error: object) -> None:
        recording, self._recording = self._recording, None
        if recording is None:
            return
        try:
            self._measurement = self._measured(recording)
        finally:
            recording.__exit__(None, None, None)

    @property
    def num_steps(self) -> int:
        """Optimizer steps that were completed so far."""
        return self._recording.watch.num_steps if self._recording is not None else self.measurement.num_steps

    @property
    def measurement(self) -> Measurement:
        """Every event of the steps, and whose memory it was.

        Raises:
            MemsimError: they have not ended.
        """
        if self._measurement is None:
            raise MemsimError("nothing has been measured yet: read the result after the 'with' block has ended.")
        return self._measurement

    @property
    def prediction(self) -> Prediction:
        """What was predicted before the first step.

        Raises:
            MemsimError: memsim has no rule for this optimizer, or no steps were begun.
        """
        if isinstance(self._prediction, MemsimError):
            raise self._prediction
        if self._prediction is None:
            raise MemsimError("nothing has been predicted yet: enter the 'with' block first.")
        return self._prediction

    def compare(self, *, tolerance: float = DEFAULT_TOLERANCE) -> Comparison:
        """Return the measured steps beside what was predicted before them.

        Args:
            tolerance: the largest difference that passes, as a fraction.

        Raises:
            MemsimError: the steps have not ended, or memsim has no rule for the optimizer.
        """
        return compare_run(self.prediction, self.measurement, tolerance=tolerance)

    def _predicted(self) -> Prediction | MemsimError:
        try:
            config = replace(self._training, optimizer=config_of_built(self._optimizer, self._model))
            return static_prediction(
                resolve(self._model),
                config,
                num_steps=MAX_STEPS,
                settings=None if self._device == "cpu" else AllocatorSettings(),
                has_state=bool(self._optimizer.state),
            )
        except MemsimError as error:
            return error

    def _measured(self, recording: StepRecording) -> Measurement:
        recorded = recording.recording()
        return Measurement(
            trace=recorded.trace,
            device="imaginary" if recording.is_imaginary else self._device,
            loop=self._loop,
            num_steps=recorded.num_steps,
            versions=versions(),
            notes=recorded.notes,
            oom=recorded.ooms[-1] if recorded.oom_is_last else None,
            device_bytes=recording.used_bytes(),
        )


def measure_steps(model: Any, optimizer: Any) -> MeasuredSteps:
    """Return a context manager that measures a user's own training steps.

    >>> with memsim.measure_steps(model, optimizer) as run:
    ...     for batch in first_two_batches:
    ...         model(**batch).loss.backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    >>> run.compare().verdict

    Args:
        model: the `torch.nn.Module`, on the CPU or on the first CUDA device.
        optimizer: its optimizer, before or after its first step.

    Raises:
        UsageError: the model has no parameter, or is on a device that cannot be watched.
    """
    return MeasuredSteps(model, optimizer)


def device_of(model: Any) -> Literal["cpu", "cuda"]:
    """Return the kind of device that a module's parameters are on.

    Raises:
        UsageError: it has none, or they are elsewhere than on the CPU or the first CUDA device, or on both.
    """
    if not hasattr(model, "parameters"):
        raise UsageError(f"model must be a torch.nn.Module, not {shown(model)}.")
    found = sorted({str(parameter.device) for parameter in model.parameters()})
    if found == ["cpu"]:
        return "cpu"
    if found == ["cuda:0"]:
        return "cuda"
    raise UsageError(
        f"steps are measured on the CPU or on cuda:0; this model's parameters are on {', '.join(found) or 'no device'}."
    )


def versions() -> dict[str, str]:
    """Return the versions of the packages of training that this process has imported."""
    return {name: importlib.metadata.version(name) for name in _PACKAGES if name in sys.modules}


def _recording_on(device: Literal["cpu", "cuda"]) -> StepRecording:
    if device == "cpu":
        from memsim.record.cpu import CpuRecording

        return CpuRecording()
    from memsim.record.cuda import CudaRecording

    return CudaRecording()
