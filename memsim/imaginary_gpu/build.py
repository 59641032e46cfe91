"""Builds the stand-in libraries for one PyTorch, once: the result is cached by its contents."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from memsim.errors import MemsimError
from memsim.imaginary_gpu.compiler import CSRC, Compiler, check_layouts, compile_library, find_compiler
from memsim.imaginary_gpu.installation import Installation, cache_folder
from memsim.imaginary_gpu.libraries import StandIn, extension_stamp, stand_ins
from memsim.imaginary_gpu.versions import version_macros

CORE = "libmemsim_device.so"
_CORE_SOURCES = (
    "settings.c",
    "ranges.c",
    "device_memory.c",
    "virtual_memory.c",
    "contents.c",
    "host_memory.c",
    "streams.c",
)
_SOURCES: dict[str, tuple[str, ...]] = {
    "cuda": ("attributes.c", "driver.c", "driver_memory.c"),
    "cudart": (
        "attributes.c",
        "runtime_device.c",
        "runtime_memory.c",
        "runtime_streams.c",
        "runtime_launch.c",
        "architectures.c",
    ),
    "nvidia-ml": ("attributes.c", "nvml.c"),
    "cublas": ("math_libraries.c",),
    "cublasLt": ("math_libraries.c",),
    "cusparse": ("math_libraries.c",),
    "cusparseLt": ("math_libraries.c",),
    "cusolver": ("math_libraries.c",),
    "cufft": ("math_libraries.c",),
    "curand": ("math_libraries.c",),
    "cudnn": ("cudnn_legacy.c", "cudnn_backend.c"),
    "nvrtc": ("nvrtc.c",),
    "nccl": ("nccl.c",),
}
_LISTED = {"cuda": "driver_functions.txt", "nvidia-ml": "nvml_functions.txt"}
"""Libraries that are opened by name: every function of theirs must be there."""
_NVML_NOT_SUPPORTED = 3
_FOLDER = Path(__file__).parent


def build(installation: Installation) -> Path:
    """Return the folder of stand-in libraries for `installation`, built when it is not in the cache.

    Two builds at once do not disturb each other: each works in a folder of its own and renames it.

    Raises:
        MissingPackageError: there is no C compiler.
        MemsimError: the compiler failed, the cache cannot be written, or NVIDIA's headers are installed and differ from
            what memsim knows.
    """
    root = cache_folder() / "imaginary_gpu"
    stamp = root / f"stamp-{_hash([extension_stamp(installation), _own_sources()])}"
    known = stamp.read_text(encoding="utf-8") if stamp.exists() else ""
    if known and (root / known / CORE).exists():
        return root / known
    libraries = stand_ins(installation)
    macros = version_macros(installation)
    try:
        root.mkdir(parents=True, exist_ok=True)
        folder = _built(root, installation, libraries, macros)
        _write_atomically(stamp, folder.name)
    except OSError as error:
        raise MemsimError(
            f"cannot write the imaginary GPU into {root}: {error}.\nMEMSIM_CACHE=FOLDER names another place."
        ) from error
    return folder


def _built(root: Path, installation: Installation, libraries: tuple[StandIn, ...], macros: dict[str, int]) -> Path:
    folder = root / f"{installation.torch_version}-{_hash([_own_sources(), _described(libraries), macros])}"
    if not (folder / CORE).exists():
        _build_into(folder, libraries, macros, _include_folders(installation))
    return folder


def _build_into(folder: Path, libraries: tuple[StandIn, ...], macros: dict[str, int], includes: list[Path]) -> None:
    compiler = find_compiler()
    if includes:
        check_layouts(compiler, includes, macros)
    work = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        compile_library(compiler, [CSRC / name for name in _CORE_SOURCES], work / CORE, macros=macros)
        first = ("cuda", "cudart")  # the others are linked with them
        for library in sorted(libraries, key=lambda item: first.index(item.library) if item.library in first else 2):
            _build_stand_in(compiler, library, work, macros)
        (work / "libraries.json").write_text(json.dumps([library.soname for library in libraries]), encoding="utf-8")
        try:
            work.rename(folder)
        except OSError:
            if not (folder / CORE).exists():  # nobody else built the same meanwhile
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _build_stand_in(compiler: Compiler, library: StandIn, work: Path, macros: dict[str, int]) -> None:
    name = library.library
    generated = work / f"{library.soname}.c"
    generated.write_text(_plain_functions(library), encoding="utf-8")
    script = work / f"{library.soname}.map"
    versions = _version_script(library)
    if versions:
        script.write_text(versions, encoding="utf-8")
    links = [work / CORE, *work.glob("libcuda.so.*"), *work.glob("libcudart.so.*")]
    compile_library(
        compiler,
        [*(CSRC / source for source in _SOURCES.get(name, ())), generated],
        work / library.soname,
        macros={**macros, f"LIBRARY_{name.replace('-', '_')}": 1},
        links=[link for link in links if link.name != library.soname and link.suffix not in {".c", ".map"}],
        version_script=script if versions else None,
    )
    generated.unlink()
    script.unlink(missing_ok=True)


def _plain_functions(library: StandIn) -> str:
    """Return C for every function without a meaning of its own: weak, so that those with one win."""
    symbols = set(library.symbols)
    if library.library in _LISTED:
        symbols |= set((_FOLDER / _LISTED[library.library]).read_text(encoding="utf-8").split())
    status = _NVML_NOT_SUPPORTED if library.library == "nvidia-ml" else 0
    answers = _answers()
    lines = ["void igpu_unmodeled(const char *function);", "static char nothing[64];"]
    for symbol in sorted(symbols):
        arguments, stores = answers.get(symbol, ("void", ""))
        body = f'igpu_unmodeled("{symbol}"); {stores}return {status};'
        lines.append(f"__attribute__((weak)) long {symbol}({arguments}) {{ {body} }}")
    return "\n".join(lines) + "\n"


def _answers() -> dict[str, tuple[str, str]]:
    """Return, for functions that write a handle or a size, their C arguments and what they store: a handle, or 0.

    `answers.txt` holds a function a line: its number of arguments (all integers or pointers, so their types do not
    matter to the caller), and which of them point at an int (`5i`), a size_t (`5z`) or a handle (`0h`). Source: the
    public headers in the pip packages nvidia-cublas, nvidia-cusolver and nvidia-cusparse for CUDA 13.
    """
    stored = {"i": "*(int *)a{} = 0; ", "z": "*(unsigned long *)a{} = 0; ", "h": "*(void **)a{} = nothing; "}
    found = {}
    for line in (_FOLDER / "answers.txt").read_text(encoding="utf-8").splitlines():
        name, count, *outputs = line.split()
        arguments = ", ".join(f"long a{index}" for index in range(int(count)))
        found[name] = (arguments, "".join(stored[output[-1]].format(output[:-1]) for output in outputs))
    return found


def _version_script(library: StandIn) -> str:
    """Return the linker's version script; the version with most symbols also takes the functions nobody asked for."""
    versions = {version: symbols for version, symbols in library.versions.items() if version}
    if not versions:
        return ""
    main = max(versions, key=lambda version: len(versions[version]))
    nodes = [
        f"{version} {{ global: {''.join(f'{symbol}; ' for symbol in sorted(symbols))}}};"
        for version, symbols in sorted(versions.items())
        if version != main
    ]
    return "\n".join([f"{main} {{ global: *; }};", *nodes]) + "\n"


def _include_folders(installation: Installation) -> list[Path]:
    """Return the folders of NVIDIA's runtime headers when all that the check needs are installed beside torch."""
    root = installation.torch_path / "nvidia"
    folders = [root / f"cu{installation.cuda_major}" / "include", root / "cuda_runtime" / "include"]
    return [folder for folder in folders if all((folder / name).exists() for name in _CHECKED_HEADERS)]


_CHECKED_HEADERS = ("cuda.h", "cuda_runtime_api.h", "crt/host_defines.h")


def _own_sources() -> str:
    files = sorted([*CSRC.iterdir(), *_FOLDER.glob("*.py"), *_FOLDER.glob("*.txt")])
    return _hash([file.read_text(encoding="utf-8") for file in files])


def _described(libraries: Iterable[StandIn]) -> list[object]:
    return [[item.soname, {version: sorted(names) for version, names in item.versions.items()}] for item in libraries]


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _write_atomically(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".stamp-", delete=False, encoding="utf-8") as file:
        file.write(text)
    os.replace(file.name, path)
