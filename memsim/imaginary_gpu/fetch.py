"""Fetches PyTorch's CUDA build into memsim's cache: the torch wheel alone, without NVIDIA's packages."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memsim.errors import MemsimError, UsageError
from memsim.imaginary_gpu.installation import (
    Installation,
    checked,
    environment_torch_version,
    fetched_folder,
    read_installation,
)

DEFAULT_TORCH = "2.13.0"
"""Fetched when the environment has no torch to go by: the version that memsim's tests run."""
_REQUIRED = {
    "filelock": "filelock",
    "typing_extensions": "typing-extensions",
    "sympy": "sympy",
    "networkx": "networkx",
    "jinja2": "jinja2",
    "fsspec": "fsspec",
    "setuptools": "setuptools",
    "numpy": "numpy",
}
"""What torch imports, by module; only what the environment lacks is fetched."""


def fetch(version: str | None = None) -> Installation:
    """Return the CUDA build of torch `version`, fetched with pip when it is not in the cache.

    Args:
        version: such as `"2.13.0"`; `None` is the environment's own version, else `DEFAULT_TORCH`.

    Raises:
        UsageError: `version` is no version number.
        MemsimError: pip could not fetch it, or what it fetched has no CUDA.
    """
    version = version or (environment_torch_version() or DEFAULT_TORCH).split("+", maxsplit=1)[0]
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise UsageError(f"--torch {version!r} is not a version: give one such as {DEFAULT_TORCH}.")
    target = fetched_folder() / version
    with _one_at_a_time(target):
        found = read_installation(target, "cache")
        if found is None:
            work = Path(tempfile.mkdtemp(prefix=".fetching-", dir=target.parent))
            try:
                _fetch_into(work, version)
                (work / "site").rename(target)
            finally:
                shutil.rmtree(work, ignore_errors=True)
            found = read_installation(target, "cache")
    if found is None:
        shutil.rmtree(target, ignore_errors=True)
        raise MemsimError(
            f"pip's torch {version} has no CUDA: its index serves a CPU build under this name.\n"
            "Point pip at PyPI or at https://download.pytorch.org/whl/cu130 (PIP_INDEX_URL), and run it again."
        )
    return checked(found)


@contextmanager
def _one_at_a_time(target: Path) -> Iterator[None]:
    """Let one process fetch a version; the others wait and find it there."""
    import fcntl

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with (target.parent / f".{target.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise MemsimError(f"cannot write into memsim's cache {target.parent}: {error}") from error


def _fetch_into(work: Path, version: str) -> None:
    """Unpack the wheel and what it imports into `work / "site"`."""
    # '===' compares text: it does not take a CPU build such as 2.13.0+cpu for 2.13.0.
    _pip("download", "--no-deps", "--only-binary", ":all:", "-d", str(work), f"torch==={version}")
    wheel = next(work.glob("torch-*.whl"), None)
    if wheel is None:
        raise MemsimError(f"pip fetched no wheel of torch {version}.")
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(work / "site")
    except (zipfile.BadZipFile, OSError) as error:
        raise MemsimError(f"cannot unpack {wheel.name}: {error}") from error
    wheel.unlink()
    for program in (work / "site" / "torch" / "bin").glob("*"):
        program.chmod(0o755)  # zipfile forgets it
    missing = [package for module, package in _REQUIRED.items() if importlib.util.find_spec(module) is None]
    if missing:
        _pip("install", "--target", str(work / "site"), *missing)


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if process.returncode != 0:
        lines = [line for line in process.stderr.splitlines() if line.startswith("ERROR") or "No module named" in line]
        why = "\n".join(lines[:2]) or process.stderr.strip()[-300:]
        raise MemsimError(f"pip could not fetch {arguments[-1]}:\n{why}")
