"""`verify`: real steps of a model that is known by name, held against what was predicted of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from memsim.comparing import Measurement, compare_run
from memsim.comparison import DEFAULT_TOLERANCE, Comparison
from memsim.config import TrainingConfig
from memsim.errors import MissingPackageError, UsageError, shown
from memsim.estimator import model_spec, resolved
from memsim.model import ModelSpec
from memsim.optimizers import resolve_optimizer
from memsim.prediction import Prediction, static_prediction
from memsim.record.job import RecordJob
from memsim.record.recorder import Recorded, Recorder
from memsim.step import AllocatorSettings
from memsim.whole_step import chosen_gpu

VerifyDevice = Literal["cuda", "imaginary", "cpu"]
"""A real GPU, PyTorch's CUDA build on an imaginary one, or the CPU, on which the step is really computed."""

_GPU_FILES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")
"""What NVIDIA's driver puts there on Linux, and Windows' in WSL."""

Progress = Callable[[str], None]
"""Is told what begins, in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """How a verification runs."""

    device: VerifyDevice | None = None
    """Where the steps run; `None`: the first of `cuda`, `imaginary` and `cpu` that is there."""
    num_steps: int = 2
    """Optimizer steps: the first creates the state, the second is a steady one."""
    tolerance: float = DEFAULT_TOLERANCE
    """The largest difference that passes, as a fraction."""

    def __post_init__(self) -> None:
        if self.device is not None and self.device not in get_args(VerifyDevice):
            allowed = ", ".join(get_args(VerifyDevice))
            raise UsageError(f"device must be one of {allowed}, not {shown(self.device)}.")
        if not 1 <= self.num_steps <= 100:
            raise UsageError(f"steps must be 1 to 100, not {self.num_steps}.")


def first_device() -> VerifyDevice:
    """Return the first device that is there: a real GPU, an imaginary one, the CPU.

    Raises:
        MissingPackageError: torch is not installed at all.
    """
    if any(Path(file).exists() for file in _GPU_FILES):
        return "cuda"
    from memsim.imaginary_gpu import find

    try:
        find()
    except MissingPackageError:
        if importlib.util.find_spec("torch") is None:
            raise
        return "cpu"
    return "imaginary"


def verify_by_name(
    model: object, config: TrainingConfig, options: VerifyOptions, *, progress: Progress | None = None
) -> Comparison:
    """Run real steps of a model and compare them with what was predicted before.

    Args:
        model: a catalog name, a hub id, a folder, or a `transformers.PretrainedConfig`.
        config: the training.
        options: where, how many steps, how close.
        progress: is told what begins.

    Raises:
        MissingPackageError: there is no torch, no transformers, or no CUDA build of torch.
        ModelError: the model cannot be resolved or built, or fails with such a batch.
    """
    optimizer = resolve_optimizer(config.optimizer.name, config.optimizer.args, config.optimizer.impl)
    spec = model_spec(model, config, progress)
    return verify_spec(spec, resolved(config, spec, optimizer.args), options, progress=progress)


def verify_spec(
    spec: ModelSpec,
    config: TrainingConfig,
    options: VerifyOptions,
    *,
    predict: Callable[[VerifyDevice], Prediction] | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run real steps of a model and compare them with what was predicted before.

    Args:
        spec: the model; its `config` must be complete enough to build it.
        config: the training.
        options: where, how many steps, how close.
        predict: makes the prediction for a device; by default the static part alone is predicted.
        progress: is told what begins.

    Raises:
        MissingPackageError: there is no torch, no transformers, or no CUDA build of torch.
        ModelError: the model cannot be built, or fails with such a batch.
    """
    device = options.device or first_device()
    prediction = predict(device) if predict is not None else predicted_statically(spec, config, options, device)
    job = RecordJob(config=dict(spec.config), training=config, kind="run", num_steps=options.num_steps)
    measured = _measure(device, job, progress or (lambda _text: None))
    return compare_run(prediction, measured, tolerance=options.tolerance)


def predicted_statically(
    spec: ModelSpec, config: TrainingConfig, options: VerifyOptions, device: VerifyDevice
) -> Prediction:
    """Return what follows from shapes alone, in blocks of the caching allocator where the device has one."""
    settings = None if device == "cpu" else AllocatorSettings()
    return static_prediction(spec, config, num_steps=options.num_steps, settings=settings)


def _measure(device: VerifyDevice, job: RecordJob, progress: Progress) -> Measurement:
    if device == "imaginary":
        recorded = _on_imaginary_gpu(job, progress)
    else:
        progress(f"running {job.num_steps} steps")
        recorded = _in_this_process(device, job)
    return Measurement(
        trace=recorded.trace,
        device=device,
        loop=job.training.loop,
        num_steps=recorded.num_steps,
        versions={"torch": recorded.trace.device.torch_version, "transformers": recorded.transformers_version},
        notes=(*recorded.assumptions, *recorded.notes),
        oom=recorded.oom,
        device_bytes=recorded.used_bytes,
    )


def _on_imaginary_gpu(job: RecordJob, progress: Progress) -> Recorded:
    config = job.training
    limited = config.gpu is not None
    with Recorder(chosen_gpu(config), limited=limited, alloc_conf=config.alloc_conf, progress=progress) as recorder:
        return recorder.record(job)


def _in_this_process(device: VerifyDevice, job: RecordJob) -> Recorded:
    if device == "cpu":
        from memsim.record.training.on_cpu import record_on_cpu

        return record_on_cpu(job)
    from memsim.record.training.on_cuda import record_on_cuda

    return record_on_cuda(job)
