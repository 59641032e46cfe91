"""The environment variables with which any child process sees an imaginary GPU, and no other."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from memsim.errors import UsageError
from memsim.gpus import GPU
from memsim.imaginary_gpu.build import CORE, build
from memsim.imaginary_gpu.installation import Installation, find
from memsim.imaginary_gpu.versions import check_kernels

MAX_DEVICES = 16
"""IGPU_MAX_DEVICES of csrc/device.h."""
_DROPPED = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""They choose among real GPUs."""

_DATA_CHECKS_OFF = {"TRANSFORMERS_DISABLE_TORCH_CHECK": "1"}
"""Values on the GPU are zero, so transformers would count no image placeholders in a text and refuse the images: its
own switch turns such checks off (torch_compilable_check, utils/import_utils.py:1983 @transformers 5.24)."""


def child_environment(
    gpu: GPU,
    *,
    installation: Installation | None = None,
    base: Mapping[str, str] | None = None,
    num_devices: int = 1,
) -> dict[str, str]:
    """Return `base` (this process's environment) changed so that a child sees `num_devices` GPUs like `gpu`.

    The stand-ins are preloaded, so the real driver is never opened: a real GPU in the machine is neither used nor seen.
    `PYTHONPATH` changes only when the environment's own torch has no CUDA and a fetched one takes its place.

    Raises:
        MissingPackageError: there is no CUDA build of torch, or no C compiler.
        MemsimError: this torch has no kernels for `gpu`.
        UsageError: not 1 to 16 devices.
    """
    if not 1 <= num_devices <= MAX_DEVICES:
        raise UsageError(f"{num_devices} devices: give 1 to {MAX_DEVICES}.")
    installation = installation or find()
    check_kernels(installation, gpu)
    folder = build(installation)
    environment = dict(os.environ if base is None else base)
    for name in _DROPPED:
        environment.pop(name, None)
    environment["MEMSIM_GPU"] = gpu_description(gpu, num_devices)
    environment["LD_PRELOAD"] = _joined(_preload(folder), environment.get("LD_PRELOAD"))
    environment["LD_LIBRARY_PATH"] = _joined([str(folder)], environment.get("LD_LIBRARY_PATH"))
    environment["TRITON_LIBCUDA_PATH"] = str(folder)
    for name, value in _DATA_CHECKS_OFF.items():
        environment.setdefault(name, value)
    if installation.source == "cache":
        environment["PYTHONPATH"] = _joined([str(installation.torch_path)], environment.get("PYTHONPATH"))
    return environment


def gpu_description(gpu: GPU, num_devices: int) -> str:
    """Return what csrc/settings.c reads: `name=...;memory=...;cc=...;sms=...;l2=...;devices=...`."""
    fields = {
        "name": gpu.name,
        "memory": gpu.memory_bytes,
        "cc": gpu.capability_text,
        "sms": gpu.num_multiprocessors,
        "l2": gpu.l2_bytes,
        "devices": num_devices,
    }
    return ";".join(f"{key}={value}" for key, value in fields.items())


def _preload(folder: Path) -> list[str]:
    names = [CORE, *json.loads((folder / "libraries.json").read_text(encoding="utf-8"))]
    # The loader splits LD_PRELOAD at spaces and colons; names alone are found through LD_LIBRARY_PATH.
    separable = any(character in str(folder) for character in " :")
    return names if separable else [str(folder / name) for name in names]


def _joined(first: list[str], rest: str | None) -> str:
    return ":".join([*first, *([rest] if rest else [])])
