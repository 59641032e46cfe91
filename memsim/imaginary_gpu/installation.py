"""The CUDA build of PyTorch that the imaginary GPU runs: the environment's own, or one in memsim's cache."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from memsim.errors import MemsimError, MissingPackageError

OLDEST_TORCH = (2, 6)
CUDA_MAJORS = (12, 13)
"""Those whose structures `csrc/cuda_abi.h` knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """A CUDA build of PyTorch on disk."""

    torch_path: Path
    """The folder that holds the `torch` package."""
    torch_version: str
    """With its local part: `2.13.0+cu130`."""
    cuda_version: str
    """The CUDA release it was built for: `13.0`."""
    source: Literal["environment", "cache"]
    """Whether Python finds it by itself, or memsim fetched it."""

    @property
    def cuda_major(self) -> int:
        """Return the major number of the CUDA release."""
        return int(self.cuda_version.split(".")[0])

    @property
    def libraries(self) -> Path:
        """Return the folder of torch's own shared libraries."""
        return self.torch_path / "torch" / "lib"


def cache_folder() -> Path:
    """Return where memsim keeps what it fetched and built: `MEMSIM_CACHE`, or the user's cache folder."""
    given = os.environ.get("MEMSIM_CACHE")
    if given:
        return Path(given).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("memsim"))


def fetched_folder() -> Path:
    """Return the folder of fetched PyTorch builds for this Python and machine."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}-{platform.machine()}"
    return cache_folder() / "torch" / tag


def find() -> Installation:
    """Return the CUDA build to use: the environment's, else a fetched one, of the same version if there is one.

    Raises:
        MissingPackageError: there is no CUDA build of torch.
        MemsimError: there is one that memsim does not know: not Linux, an old torch, an unknown CUDA release.
    """
    if sys.platform != "linux":
        raise MemsimError(
            f"the imaginary GPU needs Linux; this is {sys.platform}. Use WSL, a container or a Linux machine."
        )
    folder = environment_folder()
    own = read_installation(folder, "environment") if folder else None
    if own is not None:
        return checked(own)
    wanted = environment_torch_version()
    fetched = [found for found in fetched_installations() if wanted is None or _release(found) == _release_of(wanted)]
    fetched = fetched or list(fetched_installations())
    if not fetched:
        what = f"torch {wanted}, which has no CUDA" if wanted else "no torch"
        raise MissingPackageError(
            f"the imaginary GPU needs the CUDA build of PyTorch; this environment has {what}.\n"
            "Run `memsim imaginary-gpu install`: it fetches the torch wheel (0.5 to 0.9 GB) into memsim's cache."
        )
    return checked(fetched[-1])


def checked(installation: Installation) -> Installation:
    """Return `installation` if the stand-ins know its PyTorch and CUDA.

    Raises:
        MemsimError: they do not; the message says which they know.
    """
    if _release(installation)[:2] < OLDEST_TORCH:
        raise MemsimError(f"torch {installation.torch_version} is too old for the imaginary GPU: use 2.6 or newer.")
    if installation.cuda_major not in CUDA_MAJORS:
        known = " and ".join(map(str, CUDA_MAJORS))
        raise MemsimError(
            f"torch {installation.torch_version} was built for CUDA {installation.cuda_version}; "
            f"the imaginary GPU knows CUDA {known}.\n"
            "Fetch another with `memsim imaginary-gpu install --torch VERSION`, or update memsim."
        )
    return installation


def fetched_installations() -> tuple[Installation, ...]:
    """Return the fetched builds, oldest version first."""
    root = fetched_folder()
    folders = sorted(root.iterdir()) if root.is_dir() else []
    found = [installation for folder in folders if (installation := read_installation(folder, "cache"))]
    return tuple(sorted(found, key=_release))


def read_installation(folder: Path, source: Literal["environment", "cache"]) -> Installation | None:
    """Return the CUDA build of torch in `folder`, or `None` when what is there has no CUDA."""
    try:
        text = (folder / "torch" / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    version = re.search(r"__version__ = '([^']+)'", text)
    cuda = re.search(r"^cuda[^=]*= '([^']+)'", text, re.MULTILINE)
    if version is None or cuda is None or not (folder / "torch" / "lib" / "libtorch_cuda.so").exists():
        return None
    return Installation(torch_path=folder, torch_version=version[1], cuda_version=cuda[1], source=source)


def environment_folder() -> Path | None:
    """Return the folder from which Python would import torch, without importing it."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent.parent if spec is not None and spec.origin else None


def environment_torch_version() -> str | None:
    """Return the version of the environment's torch, with its local part, or `None` when there is none."""
    folder = environment_folder()
    try:
        text = (folder / "torch" / "version.py").read_text(encoding="utf-8") if folder else ""
    except OSError:
        return None
    version = re.search(r"__version__ = '([^']+)'", text)
    return version[1] if version else None


def _release(installation: Installation) -> tuple[int, ...]:
    return _release_of(installation.torch_version)


def _release_of(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+", maxsplit=1)[0]))
