"""Building the stand-in libraries: what is read, what is compiled, and what is said when it cannot be done."""

import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import run_memsim
from gpu_fixture import installation  # noqa: F401

from memsim import imaginary_gpu
from memsim.errors import MemsimError, MissingPackageError, UsageError
from memsim.gpus import find_gpu
from memsim.imaginary_gpu.build import CORE
from memsim.imaginary_gpu.compiler import Compiler, check_layouts, compile_library, find_compiler
from memsim.imaginary_gpu.elf import needed_sonames, read_needs
from memsim.imaginary_gpu.fetch import fetch
from memsim.imaginary_gpu.installation import Installation, checked
from memsim.imaginary_gpu.libraries import library_of, stand_ins
from memsim.imaginary_gpu.versions import check_kernels, version_macros

needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="no cc on this machine")
linux = pytest.mark.skipif(sys.platform != "linux", reason="the imaginary GPU is for Linux")


def an_installation(**changes) -> Installation:
    given = {"torch_path": Path("/nowhere"), "torch_version": "2.13.0+cu130", "cuda_version": "13.0", "source": "cache"}
    return Installation(**{**given, **changes})


@needs_compiler
@linux
def test_a_library_says_what_it_needs_by_name_and_version(tmp_path):
    (tmp_path / "maker.c").write_text("int cudaOne(void) { return 1; }\nint cudaTwo(void) { return 2; }\n")
    (tmp_path / "maker.map").write_text("libmaker.so.7 { global: *; };\n")
    (tmp_path / "user.c").write_text(
        "int cudaOne(void), cudaTwo(void), elsewhere(void);\n"
        "int mine(void) { return cudaOne() + cudaTwo() + elsewhere(); }\n"
    )
    maker, user = tmp_path / "libmaker.so.7", tmp_path / "libuser.so"
    compiler = Compiler(command=("cc",))
    script = tmp_path / "maker.map"
    compile_library(compiler, [tmp_path / "maker.c"], maker, macros={}, version_script=script)
    compile_library(compiler, [tmp_path / "user.c"], user, macros={}, links=[maker])
    needs = read_needs(user)
    assert needs.soname == "libuser.so"
    assert "libmaker.so.7" in needs.needed
    mine = {entry for entry in needs.versioned if entry[0] == "libmaker.so.7"}
    assert mine == {("libmaker.so.7", "libmaker.so.7", "cudaOne"), ("libmaker.so.7", "libmaker.so.7", "cudaTwo")}
    assert "elsewhere" in needs.unversioned
    assert "mine" in needs.defined
    assert needed_sonames(user) == needs.needed


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(100), b"not a library" * 10])
def test_a_file_that_is_no_library_needs_nothing(tmp_path, content):
    path = tmp_path / "file.so"
    path.write_bytes(content)
    assert needed_sonames(path) == ()


def test_the_name_of_a_library_is_without_its_number():
    assert library_of("libcudart.so.13") == "cudart"
    assert library_of("libcudart.so.11.0") == "cudart"


def test_every_function_that_torch_needs_is_there(installation, tmp_path):  # noqa: F811
    script = "import torch; print(torch.cuda.device_count())"
    environment = imaginary_gpu.child_environment(find_gpu("A100"), installation=installation)
    process = subprocess.run(
        [sys.executable, "-c", script],
        env={**environment, "LD_BIND_NOW": "1"},  # the loader looks every function up and fails if one is missing
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (process.returncode, process.stdout.strip()) == (0, "1"), process.stderr[-1000:]


def test_two_builds_at_once_end_in_one_complete_folder(installation, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("MEMSIM_CACHE", str(tmp_path))
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(imaginary_gpu.build, [installation, installation])
    assert one == two
    sonames = {library.soname for library in stand_ins(installation)}
    assert sonames | {CORE} <= {path.name for path in one.iterdir()}
    assert [path.name for path in one.parent.iterdir() if path.name.startswith(".building")] == []
    before = one.stat().st_mtime_ns
    assert imaginary_gpu.build(installation) == one
    assert one.stat().st_mtime_ns == before


def test_the_versions_are_those_that_the_wheel_was_published_with(tmp_path):
    folder = tmp_path / "torch-2.13.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Requires-Dist: nvidia-cudnn-cu13==9.20.0.48; platform_system == 'Linux'\n"
        "Requires-Dist: nvidia-nccl-cu13==2.29.7; platform_system == 'Linux'\n"
        "Requires-Dist: nvidia-cublas-cu12==12.6.4.1; platform_system == 'Linux'\n"
    )
    macros = version_macros(an_installation(torch_path=tmp_path))
    assert macros["CUDNN_VERSION"] == 92000  # cudnn_version.h: major * 10000 + minor * 100 + patch
    assert macros["NCCL_VERSION"] == 22907  # nccl.h: the same
    assert macros["CUBLAS_VERSION"] == 120604  # cublas_api.h: the same
    assert (macros["CUDA_MAJOR"], macros["CUDA_VERSION"]) == (13, 13000)  # cuda.h: major * 1000 + minor * 10


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"torch_version": "2.4.1+cu121", "cuda_version": "12.1"}, "too old"),
        ({"cuda_version": "11.8"}, "knows CUDA 12 and 13"),
        ({"cuda_version": "14.0"}, "knows CUDA 12 and 13"),
    ],
)
def test_a_torch_that_the_stand_ins_do_not_know_is_refused(changes, text):
    with pytest.raises(MemsimError, match=text):
        checked(an_installation(**changes))


def test_without_a_compiler_the_error_says_which_package_brings_one(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(MissingPackageError, match="ziglang"):
        find_compiler()


def test_the_ziglang_package_is_used_when_there_is_no_other_compiler(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())
    assert find_compiler().command[:4] == (sys.executable, "-m", "ziglang", "cc")


def test_what_a_failing_compiler_said_is_in_the_error(tmp_path):
    source = tmp_path / "broken.c"
    source.write_text("int broken( {\n")
    with pytest.raises(MemsimError, match=r"building libbroken\.so: cc failed"):
        compile_library(Compiler(command=("cc",)), [source], tmp_path / "libbroken.so", macros={})


@pytest.mark.parametrize(
    ("major", "packages"),
    [
        (12, ("nvidia-cuda-runtime-cu12==12.9.79", "nvidia-cuda-nvcc-cu12==12.9.86")),
        (13, ("nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88")),
    ],
)
def test_the_structures_are_those_of_nvidias_headers(major, packages, tmp_path):
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path), *packages]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("pip cannot fetch NVIDIA's headers")
    for wheel in tmp_path.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tmp_path, [name for name in archive.namelist() if "/include/" in name])
    folders = [path for path in (tmp_path / "nvidia").rglob("include") if path.is_dir()]
    macros = {"CUDA_MAJOR": major}
    check_layouts(find_compiler(), folders, macros)
    with pytest.raises(MemsimError):
        check_layouts(find_compiler(), folders, {"CUDA_MAJOR": 25 - major})  # the other release differs


def test_a_cache_that_cannot_be_written_is_named(installation, tmp_path, monkeypatch):  # noqa: F811
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("MEMSIM_CACHE", str(tmp_path / "file"))
    with pytest.raises(MemsimError, match="MEMSIM_CACHE=FOLDER"):
        imaginary_gpu.build(installation)


def test_with_no_cuda_build_the_error_says_what_to_run(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMSIM_CACHE", str(tmp_path))
    monkeypatch.setattr("memsim.imaginary_gpu.installation.environment_folder", lambda: None)
    with pytest.raises(MissingPackageError, match="memsim imaginary-gpu install"):
        imaginary_gpu.find()


def test_status_says_what_is_missing_and_exits_with_3(tmp_path):
    result = run_memsim("imaginary-gpu", "status", "--format", "json", env={"MEMSIM_CACHE": str(tmp_path)})
    if result.json["works"]:
        pytest.skip("the environment's own torch has CUDA")
    assert result.code == 3
    assert "memsim imaginary-gpu install" in result.json["problem"]
    assert result.json["cache"] == str(tmp_path)


@pytest.mark.parametrize("version", ["latest", "2.13", "2.13.0; rm", "../2.13.0"])
def test_a_version_that_is_none_is_refused(version, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMSIM_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match="is not a version"):
        fetch(version)


def test_a_version_that_does_not_exist_leaves_nothing_behind(tmp_path):
    result = run_memsim(
        "imaginary-gpu", "install", "--torch", "99.0.0", env={"MEMSIM_CACHE": str(tmp_path), "PIP_NO_INPUT": "1"}
    )
    assert result.code == 1
    assert "could not fetch torch===99.0.0" in result.err
    assert "Traceback" not in result.err
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"] == []


def test_the_environment_of_a_child_is_changed_only_where_it_must_be(installation):  # noqa: F811
    base = {"HOME": "/home/me", "LD_PRELOAD": "libmine.so", "PYTHONPATH": "/mine", "CUDA_VISIBLE_DEVICES": "3"}
    made = imaginary_gpu.child_environment(find_gpu("L4"), installation=installation, base=base)
    assert made["HOME"] == "/home/me"
    assert "CUDA_VISIBLE_DEVICES" not in made
    assert made["LD_PRELOAD"].split(":")[0].endswith(CORE)
    assert made["LD_PRELOAD"].endswith(":libmine.so")
    assert made["PYTHONPATH"].endswith("/mine")
    own = replace(installation, source="environment")
    assert imaginary_gpu.child_environment(find_gpu("L4"), installation=own, base=base)["PYTHONPATH"] == "/mine"
    assert base["CUDA_VISIBLE_DEVICES"] == "3"
    added = {"MEMSIM_GPU", "LD_LIBRARY_PATH", "TRITON_LIBCUDA_PATH", "TRANSFORMERS_DISABLE_TORCH_CHECK"}
    assert set(made) - set(base) == added


def test_a_cache_with_a_space_in_its_path_works(installation, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("MEMSIM_CACHE", str(tmp_path / "my cache"))
    environment = imaginary_gpu.child_environment(find_gpu("L4"), installation=installation)
    process = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.cuda.get_device_name())"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert process.stdout.strip() == "NVIDIA L4", process.stderr[-1000:]


def test_a_gpu_that_this_torch_has_no_kernels_for_is_refused(tmp_path):
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "lib" / "libtorch_python.so").write_bytes(b"text\0sm_75 sm_80 sm_90\0text")
    for name in ("V100", "RTX 5090"):
        with pytest.raises(MemsimError, match=r"no kernels for .* it was built for 7\.5, 8\.0, 9\.0"):
            check_kernels(an_installation(torch_path=tmp_path), find_gpu(name))
    check_kernels(an_installation(torch_path=tmp_path), find_gpu("L4"))  # 8.9 runs code for 8.0


@pytest.mark.parametrize("num_devices", [0, 17])
def test_the_number_of_devices_is_checked(num_devices):
    with pytest.raises(UsageError, match="1 to 16"):
        imaginary_gpu.child_environment(find_gpu("L4"), installation=an_installation(), num_devices=num_devices)


def test_the_platform_is_named_when_it_is_not_linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(MemsimError, match="needs Linux; this is darwin"):
        imaginary_gpu.find()
