"""The README shows what the commands print today."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def check():
    return subprocess.run(
        [sys.executable, "benchmarks/readme.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_its_outputs_and_tables_are_up_to_date():
    process = check()
    assert process.returncode == 0, process.stderr


def test_an_outdated_output_would_be_seen():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import readme

    shown = readme.README.read_text(encoding="utf-8")
    assert readme.regenerated(shown) == shown
    outdated = shown.replace("250.94 MiB", "250.95 MiB").replace("| `adamw_torch` |", "| `adamw` |")
    assert outdated != shown
    assert readme.regenerated(outdated) == shown
