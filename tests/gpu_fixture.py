"""Children that run on the imaginary GPU, for the tests that need one."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from memsim import imaginary_gpu
from memsim.errors import MemsimError, MissingPackageError
from memsim.gpus import find_gpu
from memsim.imaginary_gpu.fetch import fetch

TESTED_TORCH = "2.13.0"


@pytest.fixture(scope="session")
def installation():
    """The environment's CUDA build of torch, or one fetched into memsim's cache once for all runs."""
    try:
        return imaginary_gpu.find()
    except MissingPackageError:
        try:
            return fetch(TESTED_TORCH)
        except MemsimError as error:
            pytest.skip(f"no CUDA build of torch: {error}")


@pytest.fixture
def on_gpu(installation, tmp_path):
    """Run a script on an imaginary GPU; returns what it prints last, read as JSON."""

    def run(script, gpu="A100", *, memory_bytes=None, num_devices=1, command=(), **variables):
        chosen = find_gpu(gpu)
        if memory_bytes is not None:
            chosen = replace(chosen, memory_bytes=memory_bytes)
        environment = imaginary_gpu.child_environment(chosen, installation=installation, num_devices=num_devices)
        path = tmp_path / "script.py"
        path.write_text("import json\nimport torch\n" + script, encoding="utf-8")
        process = subprocess.run(
            [sys.executable, *command, str(path)],
            env={**environment, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "2", **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            cwd=tmp_path,
        )
        assert process.returncode == 0, process.stderr[-3000:]
        return json.loads(process.stdout.strip().splitlines()[-1])

    os.environ.pop("MEMSIM_GPU", None)
    return run
