"""The built wheel, not the checkout, answers on its own."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling", reason="hatchling builds the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
        timeout=300,
    )
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_catalog_and_the_typing_marker_and_no_scripts(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "memsim/models_catalog/index.json" in names
    assert "memsim/models_catalog/distilbert.json" in names
    assert "memsim/py.typed" in names
    assert [name for name in names if name.startswith(("tests/", "models_catalog/"))] == []
    assert [name for name in names if name.startswith("memsim/models_catalog/") and name.endswith(".py")] == []


def test_the_installed_wheel_estimates_a_catalog_model(wheel, tmp_path):
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = "import memsim; print(memsim.__file__); print(memsim.estimate('gpt2').model.num_parameters)"
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    file, count = process.stdout.splitlines()
    assert Path(file).is_relative_to(site)
    assert int(count) == 124_439_808  # openai-community/gpt2: 124,439,808 parameters with the tied head counted once
