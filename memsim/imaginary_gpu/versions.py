"""The versions that the stand-ins report, from what PyTorch's wheel was built and published with."""

from __future__ import annotations

import re

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
