"""What several test modules need."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

os.environ["MEMSIM_STEP"] = "off"
"""Tests ask for a recorded step where they want one; else each estimate would start PyTorch on an imaginary GPU."""

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the folder ../shared is not there")


@pytest.fixture(autouse=True)
def _bitsandbytes_without_overrides():
    """Forget overrides of other tests: bitsandbytes keeps them per process, by position and `id(parameter)`."""
    if "bitsandbytes" in sys.modules:
        sys.modules["bitsandbytes"].optim.GlobalOptimManager.get_instance().initialize()


class Result(NamedTuple):
    """What a command printed and returned."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


def run_memsim(*args, cwd=None, env=None) -> Result:
    """Run the command line in a process of its own."""
    process = subprocess.run(
        [sys.executable, "-m", "memsim", *map(str, args)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1", **(env or {})},
        timeout=120,
        check=False,
    )
    return Result(process.returncode, process.stdout, process.stderr)


@pytest.fixture
def cli(monkeypatch, capsys):
    """Run the command line in this process, through the same `main` that the console script calls."""
    from memsim.cli import main

    def run(*args) -> Result:
        capsys.readouterr()
        code = 0
        try:
            main([str(arg) for arg in args])
        except SystemExit as done:
            code = done.code or 0
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    monkeypatch.delenv("MEMSIM_DEBUG", raising=False)
    return run
