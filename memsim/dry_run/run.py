"""`run`: a command on an imaginary GPU, from its start to a `DryRun`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from memsim import __version__
from memsim.dry_run.advice import advice_for
from memsim.dry_run.process import Ended, run_command
from memsim.dry_run.result import DryRun, Ending
from memsim.errors import MemsimError, UsageError
from memsim.gpus import GPU, find_gpu
from memsim.record.recording import Recording, recordings_in
from memsim.results import Unmodeled
from memsim.step import OutOfMemory, StepTrace
from memsim.step.held import Held, Peak, held
from memsim.step.peaks import Occupancy, by_category, held_at, occupancy

DEFAULT_GPU = "A100"
"""The GPU of a dry run that names none; with 80 GB."""
DEFAULT_STEPS = 3
"""First step (state is created), second, and a steady one."""

_SITE = Path(__file__).resolve().parents[1] / "record" / "watch" / "site"
_ASSUMPTIONS = (
    "The imaginary GPU computes no floating-point values: all read back are 0 (loss, gradient norm, metrics), and "
    "the program took its branches accordingly.",
    "Small tensors of integers and booleans (token ids, masks, lengths) had their true values; what depends on other "
    "data (routing of tokens to experts, masks made of activations) had the size that zeros give.",
    "The command really ran: what it wrote (checkpoints, logs, metrics) holds the zeros that it was given.",
)
_CONTEXT = Unmodeled(
    what="CUDA context",
    where="device bytes",
    reason="the driver, cuBLAS and loaded kernels take some hundred MiB of a GPU beside the allocator; how much "
    "differs by GPU and driver and is not known here",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a run ends at the latest."""

    max_steps: int = DEFAULT_STEPS
    """Optimizer steps after which the command is ended; 0: it runs to its own end."""
    timeout_seconds: float | None = None
    """Seconds after which it is ended; `None`: no limit."""

    def __post_init__(self) -> None:
        if self.max_steps < 0:
            raise UsageError(f"--steps {self.max_steps}: give a number of optimizer steps, or 0 for no limit.")
        if self.timeout_seconds is not None and not self.timeout_seconds > 0:
            raise UsageError(f"--timeout {self.timeout_seconds:g}: give seconds above 0.")


def run(
    command: Sequence[str],
    *,
    gpu: str = DEFAULT_GPU,
    limits: Limits | None = None,
    environment: Mapping[str, str] | None = None,
    prints_to_stderr: bool = False,
) -> DryRun:
    """Run a command on an imaginary GPU and return what it held there.

    Args:
        command: program and arguments, as a shell would start them; it runs in the current folder.
        gpu: name of a GPU (`"RTX 4090"`) or a memory size (`"24GiB"`).
        limits: when to end it; by default after three optimizer steps.
        environment: environment of the command, without the imaginary GPU; by default this process's own.
        prints_to_stderr: whether what the command prints on stdout goes to stderr.

    Raises:
        UsageError: no command, a GPU that is not known, or an allocator setting that cannot be watched.
        MissingPackageError: there is no CUDA build of torch.
        MemsimError: the command cannot be started, or never used the GPU.
    """
    if not command:
        raise UsageError("give a command after --, as in 'memsim dry-run -- python train.py'.")
    limits = limits or Limits()
    known_gpu = find_gpu(gpu)
    base = dict(os.environ if environment is None else environment)
    _check_allocator(base)
    if shutil.which(command[0], path=base.get("PATH")) is None:
        raise MemsimError(_why_not_started(command[0]))
    with tempfile.TemporaryDirectory(prefix="memsim-dry-run-") as name:
        folder = Path(name)
        ended = run_command(
            command,
            environment=_watched(_imaginary(known_gpu, base), folder, limits),
            folder=folder,
            timeout_seconds=limits.timeout_seconds,
            prints_to_stderr=prints_to_stderr,
        )
        recordings = list(recordings_in(folder))
        used = any(folder.glob("used-*"))
    if not recordings:
        raise MemsimError(_why_nothing(command, ended, used=used))
    return _result(command, known_gpu, ended, recordings)


def _check_allocator(base: Mapping[str, str]) -> None:
    """Refuse settings of PyTorch under which there is no caching allocator whose books could be read."""
    if base.get("PYTORCH_NO_CUDA_MEMORY_CACHING", "0") not in ("", "0"):
        raise UsageError("PYTORCH_NO_CUDA_MEMORY_CACHING turns off the allocator that is watched: unset it.")
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if "cudaMallocAsync" in base.get(name, ""):
            raise UsageError(f"{name} asks for cudaMallocAsync, which cannot be watched: leave the backend out of it.")


def _why_not_started(program: str) -> str:
    if os.path.isdir(program):
        return f"{program!r} is a folder: give the program and its arguments after --."
    if os.path.isfile(program):
        return f"{program!r} is not executable: put its program before it, as in 'memsim dry-run -- python {program}'."
    return (
        f"there is no command {program!r}: give the program and its arguments after --, "
        "as in 'memsim dry-run -- python train.py'."
    )


def _imaginary(gpu: GPU, base: Mapping[str, str]) -> dict[str, str]:
    from memsim.imaginary_gpu import child_environment

    return child_environment(gpu, base=base)


def _watched(environment: Mapping[str, str], folder: Path, limits: Limits) -> dict[str, str]:
    """Return the environment with the watch in it: one folder more on PYTHONPATH, one variable."""
    path = [str(_SITE), *filter(None, [environment.get("PYTHONPATH")])]
    settings = json.dumps({"folder": str(folder), "steps": limits.max_steps})
    return {**environment, "PYTHONPATH": os.pathsep.join(path), "MEMSIM_WATCH": settings}


def exit_text(exit_code: int) -> str:
    """Return how a command ended, in words: `exit code 1`, `signal SIGSEGV`."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"signal {-exit_code}"


def _why_nothing(command: Sequence[str], ended: Ended, *, used: bool) -> str:
    if used:
        how = "was killed when its time was up" if ended.timed_out else f"ended ({exit_text(ended.exit_code)})"
        return (
            f"{command[0]!r} used the GPU, but {how} without running Python's own end (os._exit, a crash), so that its "
            "figures are lost. Let it end by itself, or give --steps a smaller number."
        )
    if ended.timed_out:
        return f"{command[0]!r} did not use the GPU within its time, and was ended: give it more with --timeout."
    if ended.exit_code:
        return (
            f"{command[0]!r} failed ({exit_text(ended.exit_code)}) and left no recording of a GPU; "
            "its own messages are above."
        )
    return (
        f"{command[0]!r} ended without using the GPU. Does it train on 'cuda', in a Python that honours PYTHONPATH "
        "(not python -E, -I or -S)?"
    )


def _result(command: Sequence[str], gpu: GPU, ended: Ended, recordings: Sequence[Recording]) -> DryRun:
    recording = recordings[0]
    found = occupancy(recording.trace)
    ending = _ending(recording, ended)
    oom = recording.ooms[-1] if recording.ooms else None
    stats = recording.trace.stats
    return DryRun(
        memsim_version=__version__,
        command=tuple(command),
        device=recording.trace.device,
        ending=ending,
        exit_code=ended.exit_code,
        num_steps=recording.num_steps,
        peak=Peak(
            step=found.step,
            phase=found.phase,
            requested_bytes=found.peak_requested_bytes,
            allocated_bytes=found.peak_allocated_bytes,
            reserved_bytes=found.peak_reserved_bytes,
            device_bytes=found.peak_reserved_bytes,
            by_category=by_category(found.held),
        ),
        held=_held(recording.trace, found, ran_out=ending == "out_of_memory"),
        phases=found.phases,
        oom=oom,
        num_ooms=max(len(recording.ooms), stats.num_ooms),
        advice=_advice(oom, recording.trace),
        assumptions=tuple(_assumptions(gpu, ended, recordings, found)),
        unmodeled=(_CONTEXT,),
        trace=recording.trace,
    )


def _ending(recording: Recording, ended: Ended) -> Ending:
    if ended.timed_out:
        return "timed_out"
    if recording.ended_by_oom or (recording.oom_is_last and ended.exit_code):
        return "out_of_memory"
    if recording.stopped:
        return "stopped"
    return "failed" if ended.exit_code else "finished"


def _held(trace: StepTrace, found: Occupancy, *, ran_out: bool) -> Held:
    if ran_out:
        return held(held_at(trace, _last_oom(trace)), "out_of_memory")
    return held(found.held, "peak")


def _last_oom(trace: StepTrace) -> int:
    return max(index for index, event in enumerate(trace.events) if event.action == "oom")


def _advice(oom: OutOfMemory | None, trace: StepTrace) -> tuple[str, ...]:
    return advice_for(oom, by_category(held_at(trace, _last_oom(trace)))) if oom is not None else ()


def _assumptions(gpu: GPU, ended: Ended, recordings: Sequence[Recording], replayed: Occupancy) -> list[str]:
    """Return what was assumed for every dry run, for this GPU and for what this program did."""
    found = [*_ASSUMPTIONS, *(f"{text[:1].upper()}{text[1:]}." for text in gpu.assumptions), *recordings[0].notes]
    if len(recordings) > 1:
        others = len(recordings) - 1
        found.append(
            f"{others} more process{'es' if others > 1 else ''} of the command used the GPU, with lower peaks: they "
            "are not in these figures, and add to them where they run at the same time."
        )
    if ended.num_left:
        several = ended.num_left > 1
        found.append(f"The command left {ended.num_left} process{'es' if several else ''} running, which memsim ended.")
    if replayed.peak_allocated_bytes != recordings[0].trace.stats.peak_allocated_bytes:
        found.append("The program reset PyTorch's peak statistics: its own figures are lower than these.")
    return found
