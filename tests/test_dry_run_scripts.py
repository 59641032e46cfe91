"""Training scripts as people write them run unmodified on an imaginary GPU, through `memsim dry-run`, and report."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from conftest import run_memsim
from gpu_fixture import installation  # noqa: F401

pytest.importorskip("transformers", minversion="5.0")

SCRIPTS = Path(__file__).resolve().parent / "training_scripts"
pytestmark = pytest.mark.usefixtures("installation")

TRAINER = "--output_dir out --report_to none --max_steps 9 --per_device_train_batch_size 4 --eval_strategy steps"


def launched(module, *arguments):
    return [sys.executable, "-m", module, *arguments]


def dry_run(folder, *command, steps=3):
    """Run a command to its third optimizer step and return the result's JSON."""
    saved = folder / "dry-run.json"
    options = ["--gpu", "RTX 4090", "--steps", steps, "--timeout", 110, "--format", "json", "-o", saved]
    result = run_memsim("dry-run", *options, "--", *command, cwd=folder, env={"OMP_NUM_THREADS": "1"})
    assert result.code == 0, (result.out + result.err)[-3000:]
    return json.loads(saved.read_text(encoding="utf-8"))


def script(folder, name, *arguments, **options):
    return dry_run(folder, sys.executable, SCRIPTS / name, *arguments, **options)


def needs(*modules):
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def check(result, *phases, ending="stopped"):
    """The three steps were seen, each of them whole, and every byte of the peak has a category."""
    assert result["ending"] == ending
    assert result["num_steps"] == 3
    seen = {(phase["step"], phase["phase"]) for phase in result["phases"]}
    assert {(step, name) for step in (1, 2, 3) for name in ("forward", "backward", "optimizer_step")} <= seen
    assert set(phases) <= {name for _, name in seen}
    assert sum(result["peak"]["by_category"].values()) == result["peak"]["allocated_bytes"]
    assert result["num_ooms"] == 0


def test_nanogpt_with_gradient_accumulation_and_a_grad_scaler(tmp_path):
    result = script(tmp_path, "nanogpt.py")
    check(result)
    # wte 50304 x 256 (tied), wpe 256 x 256, two blocks of 12 d^2 + 13 d, ln_f 2 d, with d = 256; AdamW keeps two
    # float32 states, and its fused form a float32 step on the device for each of 28 tensors, in blocks of 512 B.
    d = 256
    tensors = [50304 * d, 256 * d, 2 * (12 * d * d + 13 * d), 2 * d]
    at_step = [phase for phase in result["phases"] if (phase["step"], phase["phase"]) == (3, "optimizer_step")]
    held = at_step[0]["by_category"]["optimizer_state"]
    assert 8 * sum(tensors) <= held <= 8 * sum(tensors) + 28 * 3 * 512


@needs("datasets")
def test_run_clm_with_checkpointing_evaluation_and_saving(tmp_path):
    options = [*TRAINER.split(), "--eval_steps", "1", "--save_steps", "1", "--bf16", "--gradient_checkpointing"]
    check(script(tmp_path, "run_clm.py", *options), "evaluation", "save")


@needs("datasets")
def test_run_glue_in_fp16_with_padded_batches(tmp_path):
    options = [*TRAINER.split(), "--eval_steps", "2", "--fp16"]
    check(script(tmp_path, "run_glue.py", *options), "evaluation")


def test_an_accelerate_loop_under_accelerate_launch(tmp_path):
    check(dry_run(tmp_path, *launched("accelerate.commands.accelerate_cli", "launch", SCRIPTS / "accelerate_loop.py")))


def test_distributed_data_parallel_under_torchrun(tmp_path):
    result = dry_run(tmp_path, *launched("torch.distributed.run", "--nproc-per-node", "1", SCRIPTS / "ddp.py"))
    check(result)
    # DDP's bucket holds every gradient once more: 256 x 512 + 512 + 512 x 10 + 10 float32 numbers.
    bucket_bytes = 4 * (256 * 512 + 512 + 512 * 10 + 10)
    assert result["peak"]["by_category"]["communication"] >= bucket_bytes


@needs("trl", "datasets", "peft")
def test_trl_sft_with_lora(tmp_path):
    check(script(tmp_path, "sft.py"))


@needs("trl", "datasets", "peft", "bitsandbytes")
def test_trl_sft_with_4_bit_qlora(tmp_path):
    result = script(tmp_path, "sft.py", "--4-bit")
    check(result)
    # The linear layers of both blocks in half a byte each: q and o 256 x 256, k and v 256 x 128, three of 256 x 512.
    # prepare_model_for_kbit_training makes embedding and head float32 (1000 x 256 each); in bf16 alone the layers
    # would take four times their bytes.
    linear = 2 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512)
    rest = 2 * 4 * 1000 * 256
    held = result["peak"]["by_category"]["parameter"]
    assert linear / 2 + rest <= held < 2 * linear + rest


@needs("trl", "datasets", "peft", "bitsandbytes")
def test_trl_sft_with_lora_on_a_base_in_8_bits(tmp_path):
    result = script(tmp_path, "sft.py", "--8-bit")
    check(result)
    # The linear layers above in a byte each, with a float32 scale a row; embedding and head float32.
    linear = 2 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512)
    rest = 2 * 4 * 1000 * 256
    held = result["peak"]["by_category"]["parameter"]
    assert linear + rest <= held < 2 * linear + rest


def test_an_image_loop_with_worker_processes_and_channels_last(tmp_path):
    check(script(tmp_path, "images.py"))


@needs("triton")
def test_a_compiled_model(tmp_path):
    check(script(tmp_path, "compiled.py"))


@needs("triton", "liger_kernel")
def test_ligers_kernels_keep_no_logits(tmp_path):
    result = script(tmp_path, "liger.py")
    check(result)
    # 4 x 512 tokens, 32,000 words, width 256: Liger's fused loss makes the gradient of the head in the forward pass
    # (32000 x 256 numbers of bf16), and never all logits, which would take 4 x 512 x 32000 numbers.
    peaks = {(phase["step"], phase["phase"]): phase["peak_allocated_bytes"] for phase in result["phases"]}
    added = peaks[1, "forward"] - peaks[1, "load"]
    assert 2 * 32000 * 256 <= added < 2 * 4 * 512 * 32000


def test_a_compiled_model_without_triton(tmp_path):
    check(script(tmp_path, "compiled.py", "aot_eager"))


def test_loading_generating_training_evaluating_and_saving_have_phases_of_their_own(tmp_path):
    result = script(tmp_path, "whole_life.py", steps=0)
    check(result, "load", "generate", "evaluation", "save", ending="finished")
