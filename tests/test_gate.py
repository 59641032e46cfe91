"""The static checks, so that one command runs everything."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CHECKED = ["memsim", "tests", "benchmarks", "models_catalog"]


@pytest.mark.parametrize(
    "command",
    [["ruff", "check", *CHECKED], ["ruff", "format", "--check", *CHECKED], ["mypy"]],
    ids=["ruff check", "ruff format", "mypy --strict"],
)
def test_the_source_passes(command):
    process = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )
    assert process.returncode == 0, process.stdout + process.stderr
