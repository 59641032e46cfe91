"""`Recorder`: recordings made one after the other by a child process on an imaginary GPU.

>>> with Recorder(find_gpu("A100")) as recorder:
...     recorded = recorder.record(RecordJob(config={"model_type": "llama"}, training=TrainingConfig(seq_len=512)))
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from memsim import errors
from memsim.errors import MemsimError
from memsim.gpus import GPU
from memsim.record.depth import MIN_PERIODS, ReducedDepth, reduced_depth_of
from memsim.record.job import JobKind, RecordJob
from memsim.record.recording import read_recording
from memsim.step import OutOfMemory, StepTrace
from memsim.units import KIB

__all__ = ["UNLIMITED_BYTES", "JobKind", "RecordJob", "Recorded", "Recorder"]

UNLIMITED_BYTES = 2**40
"""All that an imaginary GPU has addresses for (`WINDOW` of csrc/ranges.h); what kernels do never depends on it."""
TIMEOUT_SECONDS = 600.0
"""Time for one recording, and for the imports before the first."""
_ENDING_SECONDS = 5.0
_TAIL_CHARACTERS = 2000
_PACKAGE_PARENT = Path(__file__).resolve().parents[2]
_UNSET = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Settings that would change the recorded allocator, or leave nothing to record."""
_SET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"}

Progress = Callable[[str], None]
"""Is told what begins, in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a job left behind."""

    job: RecordJob
    """The job."""
    trace: StepTrace
    """Its events, up to the end or to where memory ran out."""
    oom: OutOfMemory | None
    """The allocation that failed; `None` where the run came to its end."""
    num_steps: int
    """Optimizer steps that were completed."""
    model_class: str
    """Class of the model."""
    transformers_version: str
    """Version of the transformers that built it; that of torch is in `trace.device`."""
    assumptions: tuple[str, ...]
    """What was assumed about batch and model, in sentences."""
    notes: tuple[str, ...]
    """What was special about this run, in sentences."""
    seconds: float
    """Time that it took."""
    used_bytes: int | None
    """What the whole device held at the end, as the driver counts; `None` on an imaginary GPU."""


def recorded_of(job: RecordJob, path: Path, answer: Mapping[str, Any], transformers_version: str) -> Recorded:
    """Return what `Session.record` wrote to `path` and answered.

    Raises:
        MemsimError: the file is not whole.
    """
    recording = read_recording(path)
    return Recorded(
        job=job,
        trace=recording.trace,
        oom=recording.ooms[-1] if recording.ended_by_oom and recording.ooms else None,
        num_steps=recording.num_steps,
        model_class=answer["model_class"],
        transformers_version=transformers_version,
        assumptions=tuple(answer["assumptions"]),
        notes=recording.notes,
        seconds=answer["seconds"],
        used_bytes=answer["used_bytes"],
    )


class Recorder:
    """A worker process on an imaginary GPU; it starts with the first job, and is replaced when it is no longer clean.

    Args:
        gpu: which; its memory is `UNLIMITED_BYTES` unless `limited`.
        limited: whether memory can run out as on the real one.
        alloc_conf: settings of PyTorch's allocator, in the syntax of `PYTORCH_ALLOC_CONF`.
        timeout_seconds: time for one recording, and for the imports before the first.
        progress: is told what begins.
    """

    def __init__(
        self,
        gpu: GPU,
        *,
        limited: bool = False,
        alloc_conf: str = "",
        timeout_seconds: float = TIMEOUT_SECONDS,
        progress: Progress | None = None,
    ) -> None:
        self.gpu = gpu if limited else replace(gpu, memory_bytes=UNLIMITED_BYTES)
        self._alloc_conf = alloc_conf
        self._timeout = timeout_seconds
        self.progress: Progress = progress or _say_nothing
        self._folder = tempfile.TemporaryDirectory(prefix="memsim-record-")
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._transformers = ""
        self._is_clean = True
        self._num_recordings = 0

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker and remove its files."""
        self._end()
        self._folder.cleanup()

    @property
    def process_id(self) -> int | None:
        """Process id of the worker; `None` while none runs."""
        return None if self._process is None else self._process.pid

    def record(self, job: RecordJob) -> Recorded:
        """Return what a job left behind.

        Raises:
            MissingPackageError: there is no CUDA build of torch, no transformers, or no C compiler.
            ModelError: the model cannot be built, cannot take such a batch, or fails.
            MemsimError: the worker ended, or took too long.
        """
        for result in self.record_all([job]):
            if isinstance(result, MemsimError):
                raise result
            return result
        raise AssertionError("a job has one result")

    def record_all(self, jobs: Iterable[RecordJob]) -> Iterator[Recorded | MemsimError]:
        """Yield what each job left behind or why it failed, in order; the worker records on while a result is used.

        Raises:
            MemsimError: the worker cannot be started, ended, or took too long.
        """
        waiting: tuple[RecordJob, Path] | None = None
        for job in jobs:
            answer = self._received() if waiting else {}
            self._be_ready()
            self._num_recordings += 1
            path = Path(self._folder.name) / f"recording-{self._num_recordings}.json"
            self.progress(f"recording batch {job.training.batch_size} x {job.training.seq_len or '-'}")
            self._send({"job": job.to_dict(), "path": str(path)})
            if waiting:
                yield self._result(*waiting, answer)
            waiting = job, path
        if waiting:
            yield self._result(*waiting, self._received())

    def _result(self, job: RecordJob, path: Path, answer: Mapping[str, Any]) -> Recorded | MemsimError:
        if "error" in answer:
            return _error_of(answer)
        recorded = recorded_of(job, path, answer, self._transformers)
        path.unlink()
        return recorded

    def reduced_depth(self, job: RecordJob, *, num_periods: int = MIN_PERIODS) -> ReducedDepth | None:
        """Return the job's model with fewer layers; see `memsim.record.depth.reduced_depth`. Needs no torch here.

        Raises:
            MemsimError: as `record`.
        """
        self._be_ready()
        self.progress("looking for layers that are alike")
        self._send({"job": job.to_dict(), "num_periods": num_periods})
        answer = self._received()
        if "error" in answer:
            raise _error_of(answer)
        return None if answer["reduced"] is None else reduced_depth_of(answer["reduced"])

    def _be_ready(self) -> None:
        if not self._is_clean:
            self._end()
        if self._process is None:
            self._start()

    def _start(self) -> None:
        from memsim.imaginary_gpu import child_environment

        self.progress("starting PyTorch on an imaginary GPU")
        base = {name: value for name, value in os.environ.items() if name not in _UNSET}
        if self._alloc_conf:
            base.update(dict.fromkeys(_UNSET[1:], self._alloc_conf))
        environment = child_environment(self.gpu, base={**_SET, **base})
        path = [str(_PACKAGE_PARENT), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(path)
        with open(Path(self._folder.name) / "stderr", "wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "memsim.record.training.worker"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=self._folder.name,
                start_new_session=True,  # Ctrl-C in the terminal is for memsim, which ends the worker
            )
        self._buffer, self._is_clean = b"", True
        answer = self._received()
        if "error" in answer:
            self._end()
            raise _error_of(answer)
        self._transformers = answer["transformers"]

    def _send(self, request: Mapping[str, Any]) -> None:
        """Send a request; its answer must be received before the next one is sent."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        self._is_clean = False  # until the answer says so
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self._gone() from None

    def _received(self) -> dict[str, Any]:
        """Return the next answer; whatever comes between ends the worker."""
        try:
            answer: dict[str, Any] = json.loads(self._line())
        except BaseException:
            self._end()
            raise
        self._is_clean = not answer.get("left_bytes", 0)
        return answer

    def _line(self) -> bytes:
        """Return the next line that the worker writes."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        deadline = time.monotonic() + self._timeout
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    raise MemsimError(
                        f"recording took longer than {self._timeout:g} seconds and was ended; "
                        "give it more time, or a smaller model."
                    )
                read = os.read(process.stdout.fileno(), 64 * KIB)
                if not read:
                    raise self._gone()
                self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _gone(self) -> MemsimError:
        """Return the error for a worker that ended by itself."""
        process = self._process
        assert process is not None
        self._process = None
        _close_pipes(process)
        code = process.wait()
        said = (Path(self._folder.name) / "stderr").read_text(encoding="utf-8", errors="replace").strip()
        last = said[-_TAIL_CHARACTERS:].splitlines()[-1:]
        if code == -signal.SIGKILL:
            return MemsimError(
                "the recording process was killed, most likely because this machine ran out of memory.\n"
                "Close other programs, or record a model with fewer or smaller layers."
            )
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return MemsimError(
            f"the recording process ended ({how}) before its answer: {' '.join(last)[:300] or 'no message'}"
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        _close_pipes(process)
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_ENDING_SECONDS)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()


def _say_nothing(_text: str) -> None:
    pass


def _error_of(answer: Mapping[str, Any]) -> MemsimError:
    """Return the exception that a worker's error was."""
    kind = getattr(errors, answer["kind"], MemsimError)
    plain: Sequence[type[MemsimError]] = (errors.ModelError, errors.MissingPackageError, errors.UsageError)
    # Those that build their own message from other arguments become their parents.
    for known in plain:
        if issubclass(kind, known):
            return known(answer["error"])
    return MemsimError(answer["error"])
