"""What a cold start loads, held in processes of their own."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "pandas", "numpy", "huggingface_hub", "httpx", "requests", "safetensors")

PROBE = """
import sys
{code}
print([name for name in {heavy} if name in sys.modules])
"""

ESTIMATE = """
from memsim.cli import main
try:
    main(["estimate", "distilbert/distilbert-base-cased", "--optimizer", "adafactor", "--quiet"])
except SystemExit as done:
    assert not done.code
"""


def loaded_by(code: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", PROBE.format(code=code, heavy=HEAVY)], capture_output=True, text=True, check=True
    )
    return process.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "code",
    [
        "import memsim",
        "try:\n    from memsim.cli import main\n    main(['--help'])\nexcept SystemExit:\n    pass",
        ESTIMATE,
        "import memsim; memsim.estimate('gpt2', optimizer='adamw_bnb_8bit')",
        "try:\n    from memsim.cli import main\n    main(['optimizers'])\nexcept SystemExit:\n    pass",
    ],
    ids=["import", "help", "estimate", "python", "optimizers"],
)
def test_nothing_heavy_is_loaded(code):
    assert loaded_by(code) == "[]"


def test_the_probe_would_see_a_heavy_import():
    assert loaded_by("import memsim; memsim.estimate('gpt2').to_frame()") == "['pandas', 'numpy']"
