"""`verify`: real steps of a model that is known by name, held against what was predicted of them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from memsim.comparing import Measurement, compare_run
from memsim.comparison import DEFAULT_TOLERANCE, Comparison
from memsim.config import TrainingConfig
from memsim.cuda_context import cuda_context
from memsim.errors import MemsimError, MissingPackageError, UnknownNameError, UsageError, shown
from memsim.estimator import chosen_source, model_spec, resolved, training_config
from memsim.gpus import all_gpus
from memsim.ledger import Phase
from memsim.model import ModelSpec
from memsim.optimizers import assign_in_loop, resolve_optimizer
from memsim.prediction import Prediction, prediction_of_trace, static_prediction
from memsim.programs import Progress, StepFinder, StepSource
from memsim.record.job import RecordJob
from memsim.record.recorder import Recorded, Recorder
from memsim.results import Unmodeled
from memsim.simulation import compose
from memsim.snapshot_file import read_snapshot, trace_of_snapshot
from memsim.step import AllocatorSettings, TraceDevice
from memsim.whole_step import chosen_gpu, simulate_where_it_fits, unmodelled_steps

VerifyDevice = Literal["cuda", "imaginary", "cpu"]
"""A real GPU, PyTorch's CUDA build on an imaginary one, or the CPU, on which the step is really computed."""

_GPU_FILES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")
"""What NVIDIA's driver puts there on Linux, and Windows' in WSL."""

_NOT_IN_THE_LOG = TraceDevice(
    name="the GPU of the log", total_bytes=0, compute_capability="", torch_version="not in the log"
)
_ONLY_PEAKS = "A log does not say what a block was for: only the peaks are compared."


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


def verify_snapshot(
    model: object,
    config: TrainingConfig,
    options: VerifyOptions,
    path: str,
    *,
    source: StepSource = "auto",
    progress: Progress | None = None,
) -> Comparison:
    """Compare a log of the user's own GPU with what is predicted of a step: its peaks, whatever ran before it.

    Args:
        model: what was trained; see `verify_by_name`.
        config: how it was trained.
        options: how close; nothing runs here.
        path: a file of `torch.cuda.memory._dump_snapshot`.
        source: where forward and backward come from.
        progress: is told what begins.

    Raises:
        SnapshotFileError: the file is no snapshot, is damaged, or asks for code to run.
        MemsimError: it holds no history, or no whole step can be predicted.
    """
    found = trace_of_snapshot(read_snapshot(path), gpu=_NOT_IN_THE_LOG)
    spec, config = _resolved(model, config, progress)
    prediction = predicted(spec, config, options, "cuda", source=source, progress=progress)
    if prediction.peak_allocated_bytes is None:
        raise MemsimError(f"a log is compared with whole steps. {prediction.notes[-1]}")
    measured = Measurement(
        trace=found.trace,
        device="cuda",
        loop=prediction.config.loop,
        num_steps=max((span.step for span in found.trace.spans if span.phase is Phase.OPTIMIZER_STEP), default=0),
        versions={"torch": _NOT_IN_THE_LOG.torch_version},
        notes=(*found.notes, _ONLY_PEAKS),
    )
    compared = compare_run(prediction, measured, tolerance=options.tolerance)
    # Which tensor a block held is not in such a file, so that categories are not compared.
    return replace(compared, rows=(), optimizer_state=(), modules=())


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


def verify(model: Any, optimizer: Any = None, batch: Any = None, **options: Any) -> Comparison:
    """Run real training steps, measure them, and compare them with what was predicted before.

    >>> memsim.verify("gpt2", "adafactor", batch_size=4, seq_len=512, device="imaginary").verdict
    >>> memsim.verify(my_module, my_optimizer, my_batch, loss_fn=my_loss, restore=True).worst

    Args:
        model: a name, folder or `transformers.PretrainedConfig`; or any `torch.nn.Module`, whose own steps are run.
        optimizer: its name or an `OptimizerConfig`; with a module, an optimizer over its parameters.
        batch: with a module, what it is called with.
        options: `device`, `steps` and `tolerance`; with a module also `loss_fn` and `restore` (see `ModuleRun`); else
            the options of `memsim.estimate`, `step` for where the prediction comes from, and `progress`.

    Raises:
        UsageError: an option that cannot be.
        MissingPackageError: there is no torch, no transformers, or no CUDA build of torch.
        ModelError: the model cannot be resolved or built, or fails with such a batch.
    """
    if hasattr(model, "named_parameters"):
        if batch is None or isinstance(optimizer, str) or optimizer is None:
            raise UsageError("with a module, give an optimizer over its parameters and a batch that it is called with.")
        from memsim.integrations.module import ModuleRun, verify_module

        return verify_module(model, optimizer, batch, ModuleRun(**_known(options, ModuleRun)))
    if batch is not None:
        raise UsageError("a batch is for a module; a model by name gets one of batch_size and seq_len.")
    how = VerifyOptions(
        device=options.pop("device", None),
        num_steps=options.pop("steps", 2),
        tolerance=options.pop("tolerance", DEFAULT_TOLERANCE),
    )
    step, progress = options.pop("step", None), options.pop("progress", None)
    given = {**options, **({"optimizer": optimizer} if optimizer is not None else {})}
    return verify_by_name(model, training_config(**given), how, source=chosen_source(step), progress=progress)


def _known(options: dict[str, Any], kind: type) -> dict[str, Any]:
    known = [field.name for field in fields(kind)]
    for name in options:
        if name not in known:
            raise UnknownNameError("option", name, known, f"Options with a module: {', '.join(known)}.")
    return options


def verify_by_name(
    model: object,
    config: TrainingConfig,
    options: VerifyOptions,
    *,
    source: StepSource = "auto",
    progress: Progress | None = None,
) -> Comparison:
    """Run real steps of a model and compare them with what was predicted before.

    Args:
        model: a catalog name, a hub id, a folder, or a `transformers.PretrainedConfig`.
        config: the training.
        options: where, how many steps, how close.
        source: where the prediction's forward and backward come from; without them the static part is predicted.
        progress: is told what begins.

    Raises:
        MissingPackageError: there is no torch, no transformers, or no CUDA build of torch.
        ModelError: the model cannot be resolved or built, or fails with such a batch.
    """
    device = options.device or first_device()
    spec, config = _resolved(model, config, progress)
    if device == "cuda" and config.gpu is None:
        config = replace(config, gpu=_name_of_this_gpu())
    prediction = predicted(spec, config, options, device, source=source, progress=progress)
    job = RecordJob(config=dict(spec.config), training=config, kind="run", num_steps=options.num_steps)
    measured = _measure(device, job, progress or (lambda _text: None))
    return compare_run(prediction, measured, tolerance=options.tolerance)


def predicted(
    spec: ModelSpec,
    config: TrainingConfig,
    options: VerifyOptions,
    device: VerifyDevice,
    *,
    source: StepSource = "auto",
    progress: Progress | None = None,
) -> Prediction:
    """Return what is expected of the steps: all of it where a step program tells, else what follows from shapes.

    The CPU has no caching allocator and other kernels than a GPU, so that there only the static part is predicted.
    """
    if device == "cpu":
        return static_prediction(spec, config, num_steps=options.num_steps, settings=None)
    with StepFinder(source, progress) as finder:
        found = finder.find(spec, config)
    parts = assign_in_loop(config.optimizer, spec.table, in_trainer=config.loop == "trainer")
    reason = found.reason if isinstance(found, Unmodeled) else next(unmodelled_steps(parts), "")
    if isinstance(found, Unmodeled) or reason:
        static = static_prediction(spec, config, num_steps=options.num_steps, settings=AllocatorSettings())
        return replace(static, notes=(*static.notes, f"Whole steps are not predicted: {reason}"))
    script = compose(found.sections, parts, config, num_steps=options.num_steps)
    context_bytes = cuda_context(chosen_gpu(config).name).nbytes if device == "cuda" else 0
    run, _ = simulate_where_it_fits(script, config, found.recorded, context_bytes=context_bytes, keep_events=True)
    assert run.trace is not None, "its events were kept"
    notes = (*spec.assumptions, *found.assumptions)
    return prediction_of_trace(run.trace, model=spec.name, config=config, notes=notes)


def _name_of_this_gpu() -> str | None:
    """Return the first GPU of this machine as the driver names it; `None` where memsim does not know it."""
    import torch

    if not torch.cuda.is_available():
        return None  # the run will say so
    name = str(torch.cuda.get_device_name(0))
    return name if any(gpu.name == name for gpu in all_gpus()) else None


def _resolved(model: object, config: TrainingConfig, progress: Progress | None) -> tuple[ModelSpec, TrainingConfig]:
    optimizer = resolve_optimizer(config.optimizer.name, config.optimizer.args, config.optimizer.impl)
    spec = model_spec(model, config, progress)
    return spec, resolved(config, spec, optimizer.args)


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
