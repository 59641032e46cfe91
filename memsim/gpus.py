"""GPUs that memsim knows: how much memory the driver reports, and what PyTorch's choice of kernels depends on."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from memsim.errors import UnknownNameError, UsageError
from memsim.units import GIB, MIB, format_bytes, parse_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GPU:
    """A GPU model, as PyTorch sees it."""

    name: str
    """The name that the driver reports: `NVIDIA GeForce RTX 4090`."""
    aliases: tuple[str, ...]
    """Other names, compared without case, spaces and hyphens."""
    memory_bytes: int
    """What the driver reports as total memory; some hundred MiB below the number on the box."""
    compute_capability: tuple[int, int]
    """Major and minor: `(8, 9)`."""
    num_multiprocessors: int
    l2_bytes: int
    """Level-2 cache."""
    memory_source: str
    """Where `memory_bytes` was read; drivers differ by up to about 1 %."""
    assumptions: tuple[str, ...] = ()
    """What was taken for granted because the name did not say it."""

    @property
    def capability_text(self) -> str:
        """Return the compute capability as NVIDIA writes it: `"8.9"`."""
        return "{}.{}".format(*self.compute_capability)


def find_gpu(name: str) -> GPU:
    """Return the GPU that `name` means: a name or alias (`"RTX 4090"`, `"h100"`) or a memory size (`"24GiB"`).

    A size alone stands for a GPU of that memory which chooses its kernels as an A100 does; its `assumptions` say so.

    Raises:
        UnknownNameError: no such GPU; the message names the nearest.
        UsageError: a size that no GPU has (0 B, or more than 1 TiB).
    """
    known = _by_key().get(_key(name))
    if known is not None:
        return known
    if re.fullmatch(r"[\d.]+\s*[kmgt]i?b", name.strip().lower()):
        return _of_size(parse_bytes(name), name)
    names = [spelled for gpu in _GPUS for spelled in (gpu.name, *gpu.aliases)]
    raise UnknownNameError("GPU", name, names, "`memsim gpus` lists all; a size such as 24GiB works too.")


def all_gpus() -> tuple[GPU, ...]:
    """Return every GPU that memsim knows, oldest architecture first."""
    return _GPUS


def _of_size(num_bytes: int, given: str) -> GPU:
    if not GIB // 4 <= num_bytes <= 1024 * GIB:
        raise UsageError(f"--gpu {given!r} is {format_bytes(num_bytes)}: give a size from 256MiB to 1TiB, or a name.")
    return replace(
        find_gpu("A100"),
        name=f"GPU with {format_bytes(num_bytes)}",
        aliases=(),
        memory_bytes=num_bytes,
        memory_source="as given",
        assumptions=(f"only a size was given ({given}): kernels are chosen as on an A100 (compute capability 8.0)",),
    )


def _key(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name.lower()).removeprefix("nvidia").removeprefix("geforce").removeprefix("tesla")


def _by_key() -> dict[str, GPU]:
    table: dict[str, GPU] = {}
    for gpu in _GPUS:
        for spelled in (gpu.name, *gpu.aliases):
            table.setdefault(_key(spelled), gpu)
    return table


def _gpu(name: str, aliases: str, memory: tuple[int, str], capability: tuple[int, int], sms: int, l2_mib: float) -> GPU:
    return GPU(
        name=name,
        aliases=tuple(alias.strip() for alias in aliases.split(",")),
        memory_bytes=memory[0],
        compute_capability=capability,
        num_multiprocessors=sms,
        l2_bytes=int(l2_mib * MIB),
        memory_source=memory[1],
    )


def _printed(gib: float, where: str) -> tuple[int, str]:
    """Return a size that PyTorch's out-of-memory error printed to 0.01 GiB, in whole MiB (6 MiB off at most)."""
    return round(gib * GIB / MIB) * MIB, f"PyTorch's out-of-memory error, total capacity {gib:.2f} GiB: {where}"


# Multiprocessors, L2 cache and compute capability: NVIDIA's architecture whitepapers (Volta, Turing, Ampere, Ada,
# Hopper, Blackwell), the products' data sheets, and developer.nvidia.com/cuda-gpus.
_GPUS = (
    _gpu("Tesla V100-SXM2-16GB", "V100, V100-16GB", _printed(15.78, "the usual value in public logs"), (7, 0), 80, 6),
    _gpu("Tesla V100-SXM2-32GB", "V100-32GB", _printed(31.74, "liucongg/ChatGLM-Finetuning issue 73"), (7, 0), 80, 6),
    _gpu(
        "Tesla T4", "T4", (15843721216, "deviceQuery, 15843721216 bytes: chiemon.github.io/2024/12/25"), (7, 5), 40, 4
    ),
    _gpu(
        "NVIDIA GeForce RTX 2080 Ti",
        "RTX 2080 Ti, 2080 Ti",
        (11019 * MIB, "torch.cuda.get_device_properties, total_memory=11019MB"),
        (7, 5),
        68,
        5.5,
    ),
    _gpu(
        "NVIDIA A100-SXM4-40GB",
        "A100-40GB, A100 40GB",
        (42298834944, "deviceQuery, 42298834944 bytes: bottlerocket-os/bottlerocket pull request 3873"),
        (8, 0),
        108,
        40,
    ),
    _gpu(
        "NVIDIA A100-SXM4-80GB",
        "A100, A100-80GB, A100 80GB, A100-SXM",
        _printed(79.25, "levihsu/OOTDiffusion issue 235"),
        (8, 0),
        108,
        40,
    ),
    _gpu(
        "NVIDIA A100 80GB PCIe",
        "A100-PCIE-80GB, A100 PCIe",
        (81049 * MIB, "total global memory 81049 MB: ekondis/mixbench issue 47"),
        (8, 0),
        108,
        40,
    ),
    _gpu("NVIDIA A30", "A30", _printed(23.53, "google/RB-Modulation issue 5"), (8, 0), 56, 24),
    _gpu("NVIDIA A10", "A10", _printed(21.99, "zai-org/CogVLM issue 236"), (8, 6), 72, 6),
    _gpu("NVIDIA A10G", "A10G", _printed(22.06, "the usual value in public logs"), (8, 6), 80, 6),
    _gpu("NVIDIA RTX A4000", "RTX A4000, A4000", _printed(15.61, "DengKaiCQ/VGGT-Long issue 6"), (8, 6), 48, 4),
    _gpu("NVIDIA RTX A6000", "RTX A6000, A6000", _printed(47.54, "the usual value in public logs"), (8, 6), 84, 6),
    _gpu("NVIDIA GeForce RTX 3080", "RTX 3080, 3080", _printed(9.78, "zai-org/CogVideo issue 34"), (8, 6), 68, 5),
    _gpu("NVIDIA GeForce RTX 3090", "RTX 3090, 3090", _printed(23.68, "vllm-project/vllm issue 16343"), (8, 6), 82, 6),
    _gpu("NVIDIA GeForce RTX 4090", "RTX 4090, 4090", _printed(23.64, "TMElyralab/MuseTalk issue 76"), (8, 9), 128, 72),
    _gpu("NVIDIA L4", "L4", _printed(22.03, "the usual value in public logs"), (8, 9), 58, 48),
    _gpu("NVIDIA L40", "L40", _printed(44.40, "QwenLM/Qwen3-VL issue 2097"), (8, 9), 142, 96),
    _gpu("NVIDIA L40S", "L40S", _printed(44.53, "Wan-Video/Wan2.1 issue 205"), (8, 9), 142, 96),
    _gpu(
        "NVIDIA RTX 6000 Ada Generation",
        "RTX 6000 Ada, 6000 Ada",
        _printed(44.43, "DINGYANB/MTVCrafter issue 21, with ECC"),
        (8, 9),
        142,
        96,
    ),
    _gpu(
        "NVIDIA H100 80GB HBM3",
        "H100, H100-80GB, H100 SXM",
        _printed(79.11, "vllm-project/vllm issue 27508"),
        (9, 0),
        132,
        50,
    ),
    _gpu("NVIDIA H20", "H20", _printed(95.08, "sgl-project/sglang issue 10736"), (9, 0), 78, 60),
    _gpu("NVIDIA H200", "H200, H200 SXM", _printed(139.80, "the usual value in public logs"), (9, 0), 132, 50),
    _gpu(
        "NVIDIA B200",
        "B200",
        _printed(178.35, "training logs; the same in a device query: pytorch/ao pull request 4002"),
        (10, 0),
        148,
        126.5,
    ),
    _gpu(
        "NVIDIA GeForce RTX 5090",
        "RTX 5090, 5090",
        _printed(31.36, "TrajectoryCrafter/TrajectoryCrafter issue 20"),
        (12, 0),
        170,
        96,
    ),
    _gpu(
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "RTX PRO 6000, RTX PRO 6000 Blackwell",
        _printed(94.97, "the usual value in public logs"),
        (12, 0),
        188,
        128,
    ),
)
