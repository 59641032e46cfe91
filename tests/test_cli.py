"""The command line: exact output, exit codes, stdout against stderr, and every bad option."""

import json
import os

import pandas as pd
import pytest
from conftest import run_memsim

MODEL = "distilbert/distilbert-base-cased"
CLASSIFIER = (MODEL, "--task", "sequence-classification")


def test_the_table_shows_the_published_figures_of_the_classifier(cli):
    result = cli("estimate", *CLASSIFIER, "--optimizer", "adamw_torch")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == MODEL
    assert "65,783,042 parameters in 104 tensors" in lines[1]
    # 65,783,042 x 4 B / 2**20 = 250.94 MiB, twice that for two moments, 104 steps of 4 B; 512 position ids of 8 B
    (row,) = [line for line in lines if line.startswith("adamw_torch ")]
    # On an accelerator AdamW takes its foreach form: one more copy of the parameters during step().
    sizes = "250.94 MiB 4.00 KiB 250.94 MiB 501.88 MiB 1,003.77 MiB 16.00 250.94 MiB 416 B"
    assert row.split() == ["adamw_torch", *sizes.split()]


def test_it_is_said_under_the_table_that_activations_are_missing(cli):
    out = cli("estimate", *CLASSIFIER).out
    assert "Not in these figures" in out
    assert "activations" in out


def test_json_follows_the_interface(cli):
    data = cli("estimate", *CLASSIFIER, "--optimizer", "adamw_torch", "--format", "json").json
    assert data["schema"] == 1
    assert data["static"] == {
        "parameter_bytes": 65_783_042 * 4,
        "buffer_bytes": data["static"]["buffer_bytes"],
        "gradient_bytes": 65_783_042 * 4,
        "optimizer_state_bytes": 65_783_042 * 8,
        "optimizer_state_num_elements": 131_566_188,
        "optimizer_state_host_bytes": 104 * 4,
    }
    assert data["model"]["num_parameters"] == 65_783_042
    assert data["config"]["optimizer"]["args"]["amsgrad"] is False
    assert data["config"]["dtype"] == "float32"
    assert "optimizer_state" not in data


def test_the_optimizer_step_is_estimated_too(cli):
    data = cli("estimate", *CLASSIFIER, "--optimizer", "adamw_torch", "--format", "json").json
    # Foreach AdamW makes exp_avg_sq.sqrt() of every parameter at once; the first step creates two moments besides.
    copy = 65_783_042 * 4
    assert data["optimizer_step"] == {"first_step_peak_bytes": 3 * copy, "later_step_peak_bytes": copy}
    fused = cli("estimate", *CLASSIFIER, "--optimizer", "adamw_torch_fused", "--format", "json").json
    assert fused["optimizer_step"]["later_step_peak_bytes"] == 0


def test_several_optimizers_give_results_side_by_side(cli):
    args = ("estimate", *CLASSIFIER, "--optimizer", "adamw_torch", "--optimizer", "adafactor", "--format", "json")
    data = cli(*args).json
    assert [r["config"]["optimizer"]["name"] for r in data["results"]] == ["adamw_torch", "adafactor"]
    assert [r["static"]["optimizer_state_num_elements"] for r in data["results"]] == [131_566_188, 178_712]


def test_details_list_every_state_entry(cli):
    data = cli("estimate", *CLASSIFIER, "--optimizer", "adamw_torch", "--format", "json", "--details").json
    rows = data["optimizer_state"]
    assert len(rows) == 104 * 3
    assert sum(row["nbytes"] for row in rows) == 526_264_752
    assert {row["name"] for row in rows} == {"step", "exp_avg", "exp_avg_sq"}
    assert {row["device"] for row in rows if row["name"] == "step"} == {"host"}


def test_details_in_the_table_name_the_entries(cli):
    out = cli("estimate", *CLASSIFIER, "--optimizer", "adafactor", "--details").out
    assert "exp_avg_sq_row" in out
    assert "distilbert.embeddings.word_embeddings.weight" in out


@pytest.mark.parametrize("suffix", ["csv", "parquet", "md", "html", "xlsx", "json", "txt"])
def test_the_suffix_of_the_output_file_decides_its_format(cli, tmp_path, suffix):
    path = tmp_path / f"result.{suffix}"
    result = cli("estimate", *CLASSIFIER, "--optimizer", "sgd", "-o", path)
    assert (result.code, result.out, result.err) == (0, "", f"wrote {path}\n")
    if suffix == "json":
        total = json.loads(path.read_text())["static"]["parameter_bytes"]
    elif suffix in {"md", "txt"}:
        assert ("263132168" if suffix == "md" else "250.94 MiB") in path.read_text()
        return
    else:
        frame = {
            "csv": pd.read_csv,
            "parquet": pd.read_parquet,
            "xlsx": pd.read_excel,
            "html": lambda file: pd.read_csv(tmp_path / "same.csv"),
        }
        if suffix == "html":
            assert "<td>263132168</td>" in path.read_text()
            return
        total = frame[suffix](path).loc[0, "parameter_bytes"]
    assert total == 263_132_168


def test_binary_formats_can_be_piped():
    process = run_memsim("estimate", "gpt2", "--format", "csv")
    assert process.code == 0
    assert process.out.startswith("model,task,dtype,optimizer,")


def test_an_existing_file_is_kept_unless_force_is_given(cli, tmp_path):
    path = tmp_path / "a.json"
    path.write_text("precious")
    refused = cli("estimate", MODEL, "-o", path)
    assert refused.code == 1
    assert "exists" in refused.err
    assert "--force" in refused.err
    assert path.read_text() == "precious"
    assert cli("estimate", MODEL, "-o", path, "-f").code == 0
    assert json.loads(path.read_text())["schema"] == 1


def test_a_folder_is_no_output_file(cli, tmp_path):
    result = cli("estimate", MODEL, "-o", tmp_path)
    assert result.code == 1
    assert "is a folder" in result.err


def test_a_missing_folder_is_named(cli, tmp_path):
    result = cli("estimate", MODEL, "-o", tmp_path / "no" / "a.json")
    assert result.code == 1
    assert "does not exist" in result.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_an_error(cli, tmp_path):
    tmp_path.chmod(0o500)
    result = cli("estimate", MODEL, "-o", tmp_path / "a.json")
    assert result.code == 1
    assert "cannot write" in result.err


def test_a_device_that_refuses_is_an_error(cli):
    result = cli("estimate", MODEL, "-o", "/dev/full", "--format", "json", "-f")
    assert result.code == 1
    assert "cannot write '/dev/full': No space left on device" in result.err


def test_an_unknown_suffix_is_a_usage_error(cli, tmp_path):
    result = cli("estimate", MODEL, "-o", tmp_path / "a.docx")
    assert result.code == 2
    assert ".docx" in result.err
    assert ".csv" in result.err


BAD_OPTIONS = {
    "unknown model": (["estimate", "distilbert-base-csaed"], 2, ["distilbert-base-cased"]),
    "unknown optimizer": ([*("estimate", MODEL), "--optimizer", "adamw_trch"], 2, ["adamw_torch"]),
    "unknown dtype": (["estimate", MODEL, "--dtype", "bfloat17"], 2, ["bfloat16"]),
    "unknown task": (["estimate", MODEL, "--task", "casual-lm"], 2, ["causal-lm"]),
    "task it does not have": (["estimate", MODEL, "--task", "causal-lm"], 1, ["sequence-classification"]),
    "argument unknown": (["estimate", MODEL, "--optimizer-arg", "amsgrda=true"], 2, ["amsgrad"]),
    "argument of the wrong type": (["estimate", MODEL, "--optimizer-arg", "amsgrad=7"], 2, ["amsgrad", "bool"]),
    "argument without value": (["estimate", MODEL, "--optimizer-arg", "amsgrad"], 2, ["KEY=VALUE"]),
    "batch of zero": (["estimate", MODEL, "--batch-size", "0"], 2, ["batch_size", "at least 1"]),
    "batch that is no number": (["estimate", MODEL, "--batch-size", "x"], 2, ["batch-size"]),
    "frozen nothing": (["estimate", MODEL, "--freeze", "nothing.*"], 2, ["matches none"]),
    "form it has not": (["estimate", MODEL, "--optimizer", "adafactor", "--optimizer-impl", "fused"], 2, ["fused"]),
    "config file missing": (["estimate", MODEL, "--config", "none.json"], 2, ["none.json"]),
    "no model": (["estimate"], 2, ["MODEL"]),
    "unknown command": (["estimat"], 2, ["estimate"]),
    "unknown option": (["estimate", MODEL, "--optimiser", "sgd"], 2, ["--optimizer"]),
    "missing file": (["report", "none.json"], 1, ["none.json"]),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_input_is_a_short_error_that_names_what_is_allowed(cli, case):
    args, code, words = BAD_OPTIONS[case]
    result = cli(*args)
    assert result.code == code, result
    assert result.out == ""
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err
    assert len(result.err.strip().splitlines()) <= 4 if "Usage:" in result.err else 3


def test_a_traceback_is_shown_when_asked_for():
    result = run_memsim("estimate", "distilbert-base-csaed", env={"MEMSIM_DEBUG": "1"})
    assert result.code == 1
    assert "UnknownNameError" in result.err


def test_strict_refuses_what_is_not_modelled(cli):
    result = cli("estimate", MODEL, "--strict")
    assert result.code == 1
    assert "activations" in result.err
    assert result.out == ""


def test_config_files_and_the_command_line_agree(cli, tmp_path):
    file = tmp_path / "run.json"
    file.write_text('{"optimizer": "sgd", "optimizer-args": {"momentum": 0.9}, "dtype": "bfloat16"}')
    from_file = cli("estimate", MODEL, "--config", file, "--format", "json").json
    typed = ("--optimizer", "sgd", "--optimizer-arg", "momentum=0.9", "--dtype", "bfloat16")
    assert from_file == cli("estimate", MODEL, *typed, "--format", "json").json
    assert from_file["static"]["optimizer_state_bytes"] == from_file["static"]["parameter_bytes"]


def test_a_saved_estimate_is_a_config_file(cli, tmp_path):
    saved = tmp_path / "est.json"
    args = ("--optimizer", "adamw_torch", "--optimizer-arg", "amsgrad=true", "--dtype", "float16")
    cli("estimate", MODEL, *args, "-o", saved)
    again = cli("estimate", MODEL, "--config", saved, "--format", "json").json
    assert again == json.loads(saved.read_text())


def test_a_saved_result_is_rendered_again(cli, tmp_path):
    saved = tmp_path / "est.json"
    args = ("estimate", MODEL, "--optimizer", "adamw_torch", "--optimizer", "adafactor")
    cli(*args, "-o", saved)
    assert cli("report", saved).out == cli(*args).out
    refused = cli("report", saved, "--details")
    assert refused.code == 1
    assert "saved without details" in refused.err


def test_the_catalog_lists_finds_and_shows(cli):
    assert len(cli("catalog", "--format", "json").json) == 514
    facts = cli("catalog", "meta-llama/Llama-3.1-8B", "--format", "json").json
    assert facts["num_parameters"] == 8_030_261_248
    listed = cli("catalog", "whisper", "--format", "json").json
    assert {row["model_type"] for row in listed} == {"whisper"}
    assert cli("catalog", "no-such-model-anywhere").code == 2


def test_optimizers_lists_and_shows(cli):
    listed = {row["optimizer"]: row for row in cli("optimizers", "--format", "json").json}
    assert listed["adamw_torch"]["device"] == 4.0  # two bf16 moments
    assert listed["sgd"]["device"] == 0.0
    shown = cli("optimizers", "adafactor")
    assert shown.code == 0
    assert "exp_avg_sq_row [4096] float32 on device, 16,384 B" in shown.out
    assert cli("optimizers", "adafacto").code == 2


def test_completion_offers_models_optimizers_and_tasks():
    def complete(words, current):
        env = {"_MEMSIM_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(current)}
        return run_memsim(env=env).out

    assert "distilbert/distilbert-base-cased" in complete("memsim estimate distilbert/", 2)
    assert "adamw_bnb_8bit" in complete("memsim estimate gpt2 --optimizer adamw_b", 4)
    assert "masked-lm" in complete("memsim estimate gpt2 --task mask", 4)
