"""The life of a watched command: started in a group of its own, ended in order, and nothing of it left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from memsim.errors import MemsimError

_STDERR = 2
GRACE_SECONDS = 30.0
"""Time for the clean-up of a program that was asked to end; then it is interrupted."""
INTERRUPT_SECONDS = 10.0
"""Time after SIGINT before SIGTERM."""
TERMINATE_SECONDS = 5.0
"""Time after SIGTERM before SIGKILL."""
_POLL_SECONDS = 0.05
_LEFTOVER_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1
_SIGNALS = (
    (signal.SIGINT, INTERRUPT_SECONDS),
    (signal.SIGTERM, TERMINATE_SECONDS),
    (signal.SIGKILL, TERMINATE_SECONDS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended."""

    exit_code: int
    """Its exit code; negative: the signal that ended it."""
    timed_out: bool
    """Whether it was ended because its time was up."""
    num_left: int
    """Processes that it left running, which were ended."""


class _Terminated(BaseException):
    """memsim itself was told to end."""


def run_command(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    timeout_seconds: float | None,
    prints_to_stderr: bool = False,
) -> Ended:
    """Run a command to its end and return how it ended; its output and input are memsim's own.

    Args:
        command: program and arguments; no shell is involved.
        environment: its whole environment, in which `folder` appears: that is how its processes are found again.
        folder: where its processes leave their recordings and the note that they were asked to end.
        timeout_seconds: time after which it is ended; `None`: no limit.
        prints_to_stderr: whether what it prints on stdout goes to stderr.

    Raises:
        MemsimError: there is no such program, or it cannot be started.
        KeyboardInterrupt: Ctrl-C; every process of the command has been ended then.
    """
    try:
        process = subprocess.Popen(  # noqa: S603
            list(command),
            env=dict(environment),
            stdout=_STDERR if prints_to_stderr else None,
            start_new_session=True,
            preexec_fn=_end_with_memsim(),  # noqa: PLW1509 - one system call, nothing that takes a lock
        )
    except FileNotFoundError:
        raise MemsimError(
            f"there is no command {command[0]!r}: give the program and its arguments after --, "
            "as in 'memsim dry-run -- python train.py'."
        ) from None
    except OSError as error:
        raise MemsimError(f"cannot start {command[0]!r}: {error.strerror or error}.") from error
    with _termination_raises():
        try:
            timed_out = _wait(process, folder, timeout_seconds)
        except BaseException as error:
            end_processes(folder)
            process.wait()
            if isinstance(error, _Terminated):
                raise SystemExit(128 + signal.SIGTERM) from None
            raise
        return Ended(exit_code=process.wait(), timed_out=timed_out, num_left=_end_leftovers(folder))


def processes_of(folder: Path) -> Iterator[int]:
    """Yield the ids of the running processes whose environment names `folder`, this one left out."""
    wanted = os.fsencode(str(folder))
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:  # ended meanwhile, or another user's
            continue
        if wanted in environment:
            yield int(entry.name)


def end_processes(folder: Path) -> None:
    """End every process of a run: SIGINT first, so that it can clean up, then SIGTERM, then SIGKILL."""
    for number, seconds in _SIGNALS:
        for pid in processes_of(folder):
            _send(pid, number)
        if _gone(lambda: not any(processes_of(folder)), seconds):
            return


def _wait(process: subprocess.Popen[bytes], folder: Path, timeout_seconds: float | None) -> bool:
    """Wait for the command; return whether its time ran out."""
    deadline = time.monotonic() + timeout_seconds if timeout_seconds is not None else None
    asked: float | None = None
    while True:
        try:
            process.wait(timeout=_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        else:
            return False
        now = time.monotonic()
        if asked is None and any(folder.glob("stopping-*")):
            asked = now
        if asked is not None and now - asked > GRACE_SECONDS:
            end_processes(folder)
            return False
        if deadline is not None and asked is None and now > deadline:
            end_processes(folder)
            return True


def _end_leftovers(folder: Path) -> int:
    """End what a finished command left in the background; return how many processes that were."""
    if _gone(lambda: not any(processes_of(folder)), _LEFTOVER_SECONDS):
        return 0
    number = sum(1 for _ in processes_of(folder))
    end_processes(folder)
    return number


def _gone(test: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not test():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _end_with_memsim() -> Callable[[], None]:
    """Return what makes the kernel end the command if memsim is killed (prctl PR_SET_PDEATHSIG, linux/prctl.h)."""
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def _termination_raises() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception meanwhile, so that a killed memsim still cleans up."""

    def raise_it(_number: int, _frame: FrameType | None) -> None:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, raise_it) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
