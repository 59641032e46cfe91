"""Which CUDA libraries an environment asks for, and the symbols that each must have."""

from __future__ import annotations

import re
import sysconfig
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from memsim.imaginary_gpu.elf import needed_sonames, read_needs
from memsim.imaginary_gpu.installation import Installation

# The name of each library (without `lib` and `.so.N`) and how its functions begin; the longest beginning decides.
_PREFIXES = {
    "cuda": ("cu",),
    "cudart": ("cuda", "__cuda"),
    "nvidia-ml": ("nvml",),
    "cublas": ("cublas",),
    "cublasLt": ("cublasLt",),
    "cudnn": ("cudnn",),
    "cudss": ("cudss",),
    "cufft": ("cufft",),
    "cufile": ("cuFile",),
    "cupti": ("cupti",),
    "curand": ("curand",),
    "cusolver": ("cusolver",),
    "cusolverMg": ("cusolverMg",),
    "cusparse": ("cusparse",),
    "cusparseLt": ("cusparseLt",),
    "nccl": ("nccl", "pnccl"),
    "nvJitLink": ("nvJitLink",),
    "nvToolsExt": ("nvtx",),
    "nvjpeg": ("nvjpeg",),
    "nvrtc": ("nvrtc",),
    "nvshmem_host": ("nvshmem",),
}
_SONAME = re.compile(r"lib(" + "|".join(_PREFIXES) + r"|cudnn_\w+|npp\w+)\.so\.([\d.]+)")
_PROBED = ("libcuda.so.1", "libnvidia-ml.so.1")
"""Never linked, always opened by name."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """One library to write."""

    soname: str
    versions: dict[str, frozenset[str]] = field(default_factory=dict)
    """Symbols by version; the key `""` holds those without one."""

    @property
    def library(self) -> str:
        """Return the name without `lib` and `.so.N`: `cudart`."""
        return library_of(self.soname)

    @property
    def symbols(self) -> frozenset[str]:
        """Return every symbol, of all versions."""
        return frozenset().union(*self.versions.values())


def library_of(soname: str) -> str:
    """Return the name of a library without `lib` and `.so.N`."""
    return soname.split(".so", 1)[0].removeprefix("lib")


def stand_ins(installation: Installation) -> tuple[StandIn, ...]:
    """Return the libraries that torch and the environment's other CUDA extensions need, with their symbols."""
    needs = [read_needs(path) for path in cuda_extensions(installation)]
    provided = frozenset().union(*(need.defined for need in needs))
    symbols: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for soname in {soname for need in needs for soname in need.needed if _SONAME.fullmatch(soname)} | {*_PROBED}:
        symbols[soname][""] = set()
    for need in needs:
        for soname, version, symbol in need.versioned:
            if soname in symbols:
                symbols[soname][version].add(symbol)
    by_library = {library_of(soname): soname for soname in sorted(symbols)}
    for symbol in frozenset().union(*(need.unversioned for need in needs)) - provided:
        library = _library_of_symbol(symbol)
        if library in by_library:
            symbols[by_library[library]][""].add(symbol)
    return tuple(
        StandIn(soname, {version: frozenset(names) for version, names in versions.items()})
        for soname, versions in sorted(symbols.items())
    )


def extension_stamp(installation: Installation) -> list[object]:
    """Return something that changes when torch or a package of the environment changes, without opening a library."""
    stamp: list[object] = [str(installation.torch_path), installation.torch_version]
    for root in _roots(installation):
        entries = sorted(root.iterdir()) if root.is_dir() else []
        stamp += [[entry.name, entry.stat().st_mtime_ns] for entry in entries if entry.name != "__pycache__"]
    return stamp


def cuda_extensions(installation: Installation) -> list[Path]:
    """Return every shared library of torch and of the environment that needs a CUDA library of torch's CUDA release."""
    found = []
    for path in _shared_objects(installation):
        needed = needed_sonames(path)
        matches = [match for soname in needed if (match := _SONAME.fullmatch(soname))]
        runtimes = [match[2] for match in matches if match[1] == "cudart"]
        other_release = any(int(version.split(".")[0]) != installation.cuda_major for version in runtimes)
        if matches and not other_release:
            found.append(path)
    torch_python = installation.libraries / "libtorch_python.so"
    return sorted({*found, torch_python})


def _shared_objects(installation: Installation) -> Iterable[Path]:
    own_torch = installation.torch_path / "torch"
    for root in _roots(installation):
        for path in root.rglob("*.so*"):
            inside = path.relative_to(root).parts
            if inside[0] == "nvidia" or (inside[0] == "torch" and root / "torch" != own_torch):
                continue  # the real libraries are what is replaced; another torch is not used
            yield path


def _roots(installation: Installation) -> list[Path]:
    folders = {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}
    return sorted({installation.torch_path, *folders})


def _library_of_symbol(symbol: str) -> str | None:
    matching = [
        (len(start), name) for name, starts in _PREFIXES.items() for start in starts if symbol.startswith(start)
    ]
    best = max(matching, default=None)
    if best is None or (best[1] == "cuda" and not re.match(r"cu[A-Z]", symbol)):
        return None
    return best[1]
