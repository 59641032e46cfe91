"""`estimate` and `verify` of whole steps, from a model's folder to the exit code."""

import json
import pickle

import pytest
from conftest import run_memsim
from gpu_fixture import installation  # noqa: F401

import memsim
from memsim import programs, verifying
from memsim.comparison import Comparison
from memsim.estimator import estimate_all, training_config
from memsim.ledger import Category

CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 64,
    "n_layer": 6,
    "n_head": 4,
    "n_positions": 512,
    "vocab_size": 997,
}
STEP = ("--dtype", "float32", "--batch-size", 4, "--seq-len", 64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that nobody has recorded."""
    path = tmp_path_factory.mktemp("models") / "tiny-gpt2"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def kept(tmp_path_factory, folder, installation):  # noqa: F811
    """A folder of step programs in which the model is recorded, and the estimate that it was recorded for."""
    path = tmp_path_factory.mktemp("programs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "programs_folder", lambda: path)
        told = []
        config = training_config(dtype="float32", batch_size=4, seq_len=64, optimizer="adamw_torch")
        estimate = estimate_all(str(folder), [config], step="record", progress=told.append)[0]
    assert any("recording" in text for text in told)
    return path, estimate


@pytest.fixture
def no_recorder(kept, monkeypatch):
    """Use the kept programs; a new recording would fail."""
    path, estimate = kept
    monkeypatch.setattr(programs, "programs_folder", lambda: path)

    def refuse(*_args, **_kwargs):
        raise AssertionError("a recording was started")

    monkeypatch.setattr(programs, "Recorder", refuse)
    return estimate


def test_the_estimate_has_the_peak_of_the_real_steps(kept, folder, monkeypatch):
    path, estimate = kept
    monkeypatch.setattr(programs, "programs_folder", lambda: path)
    result = memsim.verify(
        str(folder), "adamw_torch", dtype="float32", batch_size=4, seq_len=64, device="imaginary", step="stored"
    )
    assert result.peak.predicted_bytes == result.peak.measured_bytes == estimate.peak.allocated_bytes
    assert result.peak.predicted_reserved_bytes == result.peak.measured_reserved_bytes == estimate.peak.reserved_bytes
    assert {row.difference_bytes for row in result.judged} == {0}
    assert {row.category for row in result.judged} >= {Category.ACTIVATION, Category.TEMPORARY, Category.GRADIENT}


def test_another_batch_length_optimizer_or_allocator_needs_no_new_recording(no_recorder, folder, cli):
    others = ("--optimizer", "adafactor", "--optimizer", "sgd", "--alloc-conf", "", "--alloc-conf")
    result = cli(
        "estimate", folder, "--dtype", "float32", "--batch-size", 6, "--seq-len", 192, *others,
        "expandable_segments:True", "--step", "stored", "--format", "json",
    )  # fmt: skip
    assert (result.code, result.err) == (0, "")
    rows = result.json["results"]
    assert [(row["config"]["optimizer"]["name"], row["config"]["alloc_conf"]) for row in rows] == [
        (optimizer, conf) for optimizer in ("adafactor", "sgd") for conf in ("", "expandable_segments:True")
    ]
    for row in rows:
        assert row["peak"]["requested_bytes"] <= row["peak"]["allocated_bytes"] <= row["peak"]["reserved_bytes"]
        assert sum(row["peak"]["by_category"].values()) == row["peak"]["allocated_bytes"]
        assert row["peak"]["device_bytes"] == row["peak"]["reserved_bytes"] + 400 * 2**20  # the usual CUDA context
        assert row["recorded"]["torch"].startswith("2.")


def test_what_no_program_covers_is_recorded_or_said(no_recorder, folder, cli):
    result = cli("estimate", folder, *STEP[:-1], 65, "--step", "stored", "--format", "json")
    assert result.code == 0
    assert result.json["peak"] is None
    (gap,) = result.json["unmodeled"]
    assert "no stored step program" in gap["reason"]


def test_fits_is_an_exit_code_and_says_what_is_left(no_recorder, folder, cli):
    fits = cli("estimate", folder, *STEP, "--gpu", "80GiB", "--fits", "--step", "stored", "--format", "json")
    assert fits.code == 0
    fit = fits.json["fit"]
    assert fit["left_bytes"] == 80 * 2**30 - fits.json["peak"]["reserved_bytes"] - 400 * 2**20
    # 256 MiB hold not even the usual CUDA context of 400 MiB.
    tight = cli("estimate", folder, *STEP, "--gpu", "256MiB", "--fits", "--step", "stored")
    assert tight.code == 3
    assert "It does not fit" in tight.out
    nowhere = cli("estimate", folder, *STEP, "--fits", "--step", "stored")
    assert nowhere.code == 2
    assert "--gpu" in nowhere.err


def test_the_table_says_why_the_peak_is_where_it_is_and_who_holds_it(no_recorder, folder, cli):
    out = cli("estimate", folder, *STEP, "--step", "stored").out
    assert "The peak is in the " in out
    assert "What held memory at the peak" in out
    assert "6 x transformer.h.*" in out


def test_a_whole_step_survives_saving_and_loading(no_recorder, tmp_path):
    path = tmp_path / "estimate.json"
    no_recorder.save(path)
    again = memsim.load(path)
    assert again.peak == no_recorder.peak
    assert again.phases == no_recorder.phases
    assert again.whole_step == no_recorder.whole_step


def test_the_first_and_a_steady_step_are_both_there(no_recorder):
    assert [(phase.step, phase.phase.value) for phase in no_recorder.phases] == [
        (1, "load"),
        *((step, phase) for step in (1, 2) for phase in ("forward", "backward", "optimizer_step", "zero_grad")),
    ]


BAD = {
    "an absurd batch": (("--batch-size", 10**9), 2, "at most 1,048,576"),
    "an absurd length": (("--seq-len", 10**9), 2, "at most 16,777,216"),
    "a norm below zero": (("--max-grad-norm", -1), 2, "at least 0"),
    "a norm that is no number": (("--max-grad-norm", "nan"), 2, "at least 0"),
    "no name of a GPU": (("--gpu", ""), 2, "gpu is empty"),
    "a length beyond the positions": (("--seq-len", 513), 2, "512 positions"),
    "no batch": (("--batch-size", 0), 2, "at least 1"),
    "a negative length": (("--seq-len", -1), 2, "at least 1"),
    "an attention that the model does not have": (("--attn-implementation", "flash_attention_2"), 1, "flash"),
    "settings that PyTorch refuses": (("--alloc-conf", "max_split_size_mb:nothing"), 2, "max_split_size_mb"),
    "a setting that does not exist": (("--alloc-conf", "max_split:20"), 2, "max_split_size_mb"),
    "a GPU that nobody built": (("--gpu", "RTX 9999"), 2, "memsim gpus"),
    "a source that is none": (("--step", "maybe"), 2, "auto"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_told_in_a_line_or_two(name, folder, installation):  # noqa: F811
    options, code, said = BAD[name]
    result = run_memsim("estimate", folder, "--dtype", "float32", "--step", "record", *options)
    assert result.code == code, result.err
    assert said in result.err
    assert len([line for line in result.err.splitlines() if not line.startswith("memsim:")]) <= 3
    assert "Traceback" not in result.err


def test_real_steps_on_the_cpu_agree_with_the_shapes(folder, cli):
    result = cli("verify", folder, *STEP, "--device", "cpu", "--optimizer", "adamw_torch", "--format", "json")
    assert result.code == 0, result.err
    data = result.json
    assert data["passed"]
    assert data["device"] == "cpu"
    judged = [row for row in data["rows"] if row["predicted_bytes"] is not None]
    assert all(row["predicted_bytes"] == row["measured_bytes"] for row in judged)
    names = {row["name"]: row["measured_bytes"] for row in data["optimizer_state"]}
    # wte, wpe, six blocks, ln_f in float32; a step counter of 4 bytes for each of the 76 tensors
    block = 4 * 64 + (64 * 192 + 192) + (64 * 64 + 64) + (64 * 256 + 256) + (256 * 64 + 64)
    parameters = 997 * 64 + 512 * 64 + 6 * block + 2 * 64
    assert names == {"exp_avg": 4 * parameters, "exp_avg_sq": 4 * parameters, "step": 4 * 76}


def test_a_wrong_prediction_is_found_named_and_exit_code_3(folder, cli, monkeypatch):
    honest = verifying.predicted

    def of_another_optimizer(spec, config, *args, **kwargs):
        from dataclasses import replace

        wrong = replace(config, optimizer=replace(config.optimizer, name="sgd", args={}))
        return honest(spec, wrong, *args, **kwargs)

    monkeypatch.setattr(verifying, "predicted", of_another_optimizer)
    result = cli("verify", folder, *STEP, "--device", "cpu", "--optimizer", "adamw_torch")
    assert result.code == 3
    assert "Outside 1%" in result.out
    assert "optimizer_state" in result.out


def test_the_seeds_figures_of_distilbert_are_measured_live():
    from memsim.config import OptimizerConfig, TrainingConfig
    from memsim.record.training.build import build_model
    from memsim.record.training.inputs import example_batch
    from memsim.record.training.loops import start_loop
    from memsim.resolve import resolve

    spec = resolve("distilbert-base-cased", task="sequence-classification")
    elements = {}
    for optimizer in ("adamw_torch", "adafactor"):
        training = TrainingConfig(
            task=spec.task, dtype="float32", batch_size=8, seq_len=128, optimizer=OptimizerConfig(name=optimizer)
        )
        model = build_model(dict(spec.config), training, weights="real")
        loop = start_loop(model, training)
        loop.micro_step(example_batch(model, training))
        loop.optimizer_step()
        elements[optimizer] = memsim.compute_optimizer_size(loop.optimizer.state.values()).num_elements
    assert elements == {"adamw_torch": 131_566_188, "adafactor": 178_712}


def test_a_log_of_ones_own_gpu_is_compared_and_a_hostile_one_refused(no_recorder, folder, cli, tmp_path):
    class Hostile:
        def __reduce__(self):
            return (open, (str(tmp_path / "made"), "w"))

    path = tmp_path / "hostile.pickle"
    path.write_bytes(pickle.dumps({"segments": [Hostile()], "device_traces": []}))
    result = cli("verify", folder, *STEP, "--snapshot", path, "--step", "stored")
    assert result.code == 1
    assert not (tmp_path / "made").exists()
    missing = cli("verify", folder, *STEP, "--snapshot", tmp_path / "nowhere.pickle", "--step", "stored")
    assert missing.code == 1
    assert "No such file" in missing.err


def test_the_log_of_a_run_has_the_predicted_peak(kept, folder, tmp_path, monkeypatch, cli):
    path, _ = kept
    monkeypatch.setattr(programs, "programs_folder", lambda: path)
    snapshot = tmp_path / "run.pickle"
    run = ("verify", folder, *STEP, "--optimizer", "adamw_torch", "--device", "imaginary", "--step", "stored")
    assert cli(*run, "-o", snapshot).code == 0  # a snapshot of what was measured
    result = cli("verify", folder, *STEP, "--optimizer", "adamw_torch", "--snapshot", snapshot, "--step", "stored")
    assert result.code == 0, result.out + result.err
    assert "The predicted peak is within 1% of what was measured." in result.out


def test_tolerances_are_percent_or_fractions(folder, cli):
    for text in ("-1%", "x", "200%"):
        result = cli("verify", folder, *STEP, "--device", "cpu", "--tolerance", text)
        assert result.code == 2
        assert "--tolerance" in result.err


def test_verify_in_python_takes_a_module_with_its_optimizer_and_batch():
    import torch

    model = torch.nn.Linear(32, 16)
    optimizer = torch.optim.AdamW(model.parameters())
    result = memsim.verify(model, optimizer, torch.ones(4, 32), loss_fn=lambda out, _batch: out.sum())
    assert isinstance(result, Comparison)
    assert result.passed
    with pytest.raises(memsim.MemsimError, match="optimizer over its parameters and a batch"):
        memsim.verify(model, "adamw_torch")
    with pytest.raises(memsim.MemsimError, match="los_fn"):
        memsim.verify(model, optimizer, torch.ones(4, 32), los_fn=None)
