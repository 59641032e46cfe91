"""The C compiler that builds the stand-ins: the system's, or the one inside the `ziglang` package."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from memsim.errors import MemsimError, MissingPackageError

CSRC = Path(__file__).parent / "csrc"
_FLAGS = ("-std=gnu11", "-O1", "-fPIC", "-shared", "-pthread", "-w")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """A command that compiles C."""

    command: tuple[str, ...]
    """The command and the options it always needs."""


def find_compiler() -> Compiler:
    """Return the compiler to use: `CC`, then cc, gcc, clang, then the `ziglang` package.

    Raises:
        MissingPackageError: there is none.
    """
    given = os.environ.get("CC")
    names = [given] if given else []
    for name in (*names, "cc", "gcc", "clang"):
        words = shlex.split(name)
        if words and shutil.which(words[0]):
            return Compiler(command=tuple(words))
    if importlib.util.find_spec("ziglang") is not None:
        return Compiler(command=(sys.executable, "-m", "ziglang", "cc", "-fno-sanitize=all"))
    raise MissingPackageError(
        "the imaginary GPU needs a C compiler once, and there is no cc, gcc or clang.\n"
        "Install gcc, or `pip install 'memsim[imaginary-gpu]'`, which brings one (ziglang)."
    )


def compile_library(
    compiler: Compiler,
    sources: Sequence[Path],
    output: Path,
    *,
    macros: Mapping[str, object],
    links: Sequence[Path] = (),
    version_script: Path | None = None,
) -> None:
    """Compile `sources` into the shared library `output`, whose soname is its file name.

    Raises:
        MemsimError: the compiler failed; the message holds its first lines.
    """
    command = [*compiler.command, *_FLAGS, *(f"-D{name}={value}" for name, value in macros.items()), f"-I{CSRC}"]
    command += ["-o", str(output), *map(str, sources), *map(str, links), "-ldl"]
    command += [f"-Wl,-soname,{output.name}", "-Wl,-rpath,$ORIGIN", "-Wl,-Bsymbolic"]
    if version_script is not None:
        command.append(f"-Wl,--version-script={version_script}")
    run_compiler(command, f"building {output.name}")


def check_layouts(compiler: Compiler, include_folders: Sequence[Path], macros: Mapping[str, object]) -> None:
    """Compare `cuda_abi.h` with NVIDIA's own headers.

    Raises:
        MemsimError: a structure of this CUDA release differs from what the stand-ins know.
    """
    command = [*compiler.command, "-std=gnu11", "-w", f"-I{CSRC}", *(f"-I{folder}" for folder in include_folders)]
    command += [f"-D{name}={value}" for name, value in macros.items()]
    with tempfile.TemporaryDirectory() as work:
        command += ["-c", "-o", str(Path(work) / "layout_check.o"), str(CSRC / "layout_check.c")]
        run_compiler(command, "comparing the structures with NVIDIA's headers")


def run_compiler(command: Sequence[str], doing: str) -> None:
    """Run a compiler command.

    Raises:
        MemsimError: it failed.
    """
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MemsimError(f"{doing}: {command[0]} did not run: {error}") from error
    if process.returncode != 0:
        lines = "\n".join(line for line in process.stderr.splitlines() if "error" in line.lower())[:600]
        raise MemsimError(f"{doing}: {command[0]} failed.\n{lines or process.stderr[:600]}")
