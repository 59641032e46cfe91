"""The imaginary GPU holds what a real A100 held, to the kilobyte.

The measured runs used transformers 4.48.1 and peft 0.13.2; `benchmarks/measured_rows.py` fetches those and compares
every row. Here the installed versions run: full fine-tuning peaks in the optimizer step, which is torch's own, so its
row holds for any version. With LoRA the peak is in the loss, which transformers has changed since.
"""

import sys
from pathlib import Path

import pytest
from gpu_fixture import installation  # noqa: F401

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import measured_rows

FULL = measured_rows.ROWS[0]
LORA = measured_rows.ROWS[2]


@pytest.mark.usefixtures("installation")
def test_full_fine_tuning_of_mistral_7b_holds_what_was_measured():
    recorded = measured_rows.record(FULL)
    assert recorded.max_allocated_bytes == pytest.approx(FULL.max_allocated_bytes, abs=4096, rel=0)
    assert recorded.after_step_bytes == pytest.approx(FULL.after_step_bytes, abs=4096, rel=0)


@pytest.mark.usefixtures("installation")
def test_lora_on_mistral_7b_leaves_what_was_measured():
    recorded = measured_rows.record(LORA)
    assert recorded.after_step_bytes == pytest.approx(LORA.after_step_bytes, abs=4096, rel=0)
