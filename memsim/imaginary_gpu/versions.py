"""The versions that the stand-ins report, from what PyTorch's wheel was built and published with."""

from __future__ import annotations

import mmap
import re
from functools import cache
from pathlib import Path

from memsim.errors import MemsimError
from memsim.gpus import GPU
from memsim.imaginary_gpu.installation import Installation


def version_macros(installation: Installation) -> dict[str, int]:
    """Return the numbers by C macro: those of the packages that torch's METADATA pins, else of the CUDA release.

    PyTorch compares some with what it was compiled for (cuDNN must not be older), or switches features by them
    (cuBLASLt, NCCL), so they must be the real ones.
    """
    major, minor = (int(part) for part in installation.cuda_version.split(".")[:2])
    pins = _pins(installation)
    cuda = major * 1000 + minor * 10
    cublas = pins.get("cublas", (major, minor, 0))
    return {
        "CUDA_MAJOR": major,
        "CUDA_VERSION": cuda,
        "CUBLAS_VERSION": cublas[0] * 10000 + cublas[1] * 100 + cublas[2],
        "CUDNN_VERSION": _packed(pins.get("cudnn", (9, 30, 0)), 10000),
        "NCCL_VERSION": _packed(pins.get("nccl", (2, 30, 0)), 10000),
    }


def check_kernels(installation: Installation, gpu: GPU) -> None:
    """Check that this PyTorch has kernels for `gpu`: code of the same major number, not newer than the GPU.

    Raises:
        MemsimError: it has none; on a real GPU of that kind the first kernel fails.
    """
    major, minor = gpu.compute_capability
    known = binary_capabilities(installation)
    if not any(number // 10 == major and number % 10 <= minor for number in known):
        listed = ", ".join(f"{number // 10}.{number % 10}" for number in known)
        raise MemsimError(
            f"torch {installation.torch_version} has no kernels for {gpu.name} "
            f"(compute capability {gpu.capability_text}): it was built for {listed}.\n"
            "Use a torch that has them: `memsim imaginary-gpu install --torch VERSION`."
        )


def binary_capabilities(installation: Installation) -> tuple[int, ...]:
    """Return the compute capabilities that this PyTorch has kernels for, as numbers: 8.6 is 86.

    Read from the text that `torch.cuda.get_arch_list()` returns; it is compiled into libtorch_python.so.

    Raises:
        MemsimError: the text is not there.
    """
    return _capabilities_in(installation.libraries / "libtorch_python.so")


@cache
def _capabilities_in(library: Path) -> tuple[int, ...]:
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = re.search(rb"sm_\d+a?(?: (?:sm|compute)_\d+a?)*\0", data)
            names = found[0] if found else b""
    except (OSError, ValueError) as error:
        raise MemsimError(f"cannot read {library}: {error}") from error
    numbers = {int(number) for number in re.findall(rb"sm_(\d+)", names)}
    if not numbers:
        raise MemsimError(f"{library} does not say for which GPUs it was built: memsim does not know this PyTorch.")
    return tuple(sorted(numbers))


def _packed(version: tuple[int, ...], unit: int) -> int:
    return version[0] * unit + version[1] * 100 + version[2]


def _pins(installation: Installation) -> dict[str, tuple[int, ...]]:
    """Return the pinned versions by library: of `nvidia-cudnn-cu13==9.20.0.48` the entry `cudnn: (9, 20, 0)`."""
    pins = {}
    for metadata in installation.torch_path.glob("torch-*.dist-info/METADATA"):
        text = metadata.read_text(encoding="utf-8")
        for name, version in re.findall(r"^Requires-Dist: nvidia-(\w+?)(?:-cu\d+)?==([\d.]+)", text, re.MULTILINE):
            pins[name] = tuple(int(part) for part in [*version.split("."), "0", "0"][:3])
    return pins
