"""What is there of the imaginary GPU, and what is missing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from memsim.errors import MemsimError
from memsim.gpus import find_gpu
from memsim.imaginary_gpu.build import build
from memsim.imaginary_gpu.compiler import find_compiler
from memsim.imaginary_gpu.environment import child_environment
from memsim.imaginary_gpu.installation import Installation, cache_folder, environment_torch_version, find

_PROBE = """
import torch
block = torch.empty(2**30, dtype=torch.uint8, device="cuda")
print(torch.cuda.memory_allocated())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of the imaginary GPU on this machine."""

    works: bool
    """Whether PyTorch allocated 1 GiB on it just now."""
    problem: str | None
    """What is wrong and what to do, or `None`."""
    python: str
    environment_torch: str | None
    """The version of the environment's own torch."""
    installation: Installation | None
    compiler: str | None
    """The command that compiles the stand-ins."""
    stand_ins: Path | None
    cache: Path

    def facts(self) -> dict[str, str | bool | None]:
        """Return the fields as text by name."""
        found = self.installation
        return {
            "works": self.works,
            "problem": self.problem,
            "python": self.python,
            "environment_torch": self.environment_torch,
            "torch": found.torch_version if found else None,
            "cuda": found.cuda_version if found else None,
            "torch_from": f"{found.source}: {found.torch_path}" if found else None,
            "compiler": self.compiler,
            "stand_ins": str(self.stand_ins) if self.stand_ins else None,
            "cache": str(self.cache),
        }


def status() -> Status:
    """Return what is there, having started PyTorch on the imaginary GPU once (2 to 4 s)."""
    installation, compiler, folder, problem = None, None, None, None
    try:
        installation = find()
        compiler = " ".join(find_compiler().command)
        folder = build(installation)
        _probe(installation)
    except MemsimError as error:
        problem = str(error)
    return Status(
        works=problem is None,
        problem=problem,
        python=sys.version.split()[0],
        environment_torch=environment_torch_version(),
        installation=installation,
        compiler=compiler,
        stand_ins=folder,
        cache=cache_folder(),
    )


def _probe(installation: Installation) -> None:
    environment = child_environment(find_gpu("A100"), installation=installation)
    process = subprocess.run(  # noqa: S603
        [sys.executable, "-c", _PROBE], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    if process.returncode != 0 or process.stdout.split()[-1:] != [str(2**30)]:
        last = (process.stderr.strip() or process.stdout.strip() or f"exit code {process.returncode}").splitlines()[-1]
        raise MemsimError(f"torch {installation.torch_version} does not start on the imaginary GPU: {last}")
