"""The README shows what the commands print today."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_fixture import installation  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]


def check():
    environment = {name: value for name, value in os.environ.items() if name != "MEMSIM_STEP"}
    return subprocess.run(
        [sys.executable, "benchmarks/readme.py", "--check"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.usefixtures("installation")
def test_its_outputs_and_tables_are_up_to_date():
    process = check()
    assert process.returncode == 0, process.stderr


@pytest.mark.usefixtures("installation")
def test_an_outdated_output_would_be_seen(monkeypatch):
    monkeypatch.delenv("MEMSIM_STEP", raising=False)
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import readme

    shown = readme.README.read_text(encoding="utf-8")
    assert readme.regenerated(shown) == shown
    outdated = shown.replace("250.94 MiB", "250.95 MiB").replace("| `adamw_torch` |", "| `adamw` |")
    assert outdated != shown
    assert readme.regenerated(outdated) == shown
