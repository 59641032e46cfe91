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


BAD_CONFIGS = {
    "not JSON": ("{", "is not JSON"),
    "not an object": ("[1]", "table of options"),
    "nested without end": ("[" * 100_000, "is not JSON"),
    "an unknown key": ('{"bacth_size": 1}', "batch_size"),
    "a word for a switch": ('{"activation_checkpointing": "no"}', "true or false"),
    "a number for names": ('{"freeze": 3}', "tuple of a text"),
    "a number among names": ('{"freeze": [3]}', "tuple of a text"),
    "a number for a task": ('{"task": 3}', "task must be"),
    "a list for an optimizer": ('{"optimizer": [[]]}', "optimizer must be"),
    "arguments that are none": ('{"optimizer_args": 3}', "optimizer_args"),
    "groups that are none": ('{"parameter_groups": 3}', "parameter_groups"),
    "a group without patterns": ('{"parameter_groups": [{"optimizer": "sgd"}]}', "patterns is missing"),
    "a group with a text for patterns": ('{"parameter_groups": [{"patterns": "x"}]}', "patterns must be"),
    "a group with an unknown key": ('{"parameter_groups": [{"patern": ["x"]}]}', "patterns"),
    "a damaged saved optimizer": ('{"config": {"optimizer": {"name": 3}}}', "optimizer.name must be"),
    "several results": ('{"schema": 1, "results": []}', "several results"),
}


@pytest.mark.parametrize("case", BAD_CONFIGS)
def test_a_bad_config_file_is_a_usage_error_that_names_the_place(cli, tmp_path, case):
    text, word = BAD_CONFIGS[case]
    file = tmp_path / "run.json"
    file.write_text(text)
    result = cli("estimate", MODEL, "--config", file)
    assert (result.code, result.out) == (2, "")
    assert word in result.err
    assert "bug in memsim" not in result.err


def test_parameter_groups_in_a_config_file_may_be_written_either_way(cli, tmp_path):
    file = tmp_path / "run.json"
    as_text = '"*.attention.*=sgd,momentum=0.9"'
    as_table = '{"patterns": ["*.attention.*"], "optimizer": "sgd", "args": {"momentum": 0.9}}'
    results = []
    for group in (as_text, as_table):
        file.write_text(f'{{"optimizer": "adamw_torch", "parameter_groups": [{group}]}}')
        results.append(cli("estimate", MODEL, "--config", file, "--format", "json").json["static"])
    args = ("--optimizer", "adamw_torch", "--param-group", "*.attention.*=sgd,momentum=0.9", "--format", "json")
    typed = cli("estimate", MODEL, *args)
    # 24 attention matrices and biases of 768 x 769 elements lose one of two fp32 moments
    assert results == [typed.json["static"]] * 2
    whole = cli("estimate", MODEL, "--optimizer", "adamw_torch", "--format", "json").json["static"]
    assert whole["optimizer_state_bytes"] - results[0]["optimizer_state_bytes"] == 24 * 768 * 769 * 4


def test_arguments_may_be_for_one_of_several_optimizers(cli):
    args = (
        "--optimizer",
        "sgd",
        "--optimizer",
        "adamw_torch",
        "--optimizer-arg",
        "sgd:momentum=0.9",
        "--format",
        "json",
    )
    sgd, adamw = cli("estimate", MODEL, *args).json["results"]
    assert sgd["static"]["optimizer_state_bytes"] == sgd["static"]["parameter_bytes"]
    assert "momentum" not in adamw["config"]["optimizer"]["args"]
    assert cli("estimate", MODEL, "--optimizer", "sgd", "--optimizer-arg", "sdg:momentum=0.9").code == 2


def test_a_group_argument_may_hold_a_comma_in_brackets(cli):
    result = cli("estimate", MODEL, "--param-group", "*=adamw_torch,betas=(0.8,0.9)", "--format", "json")
    assert result.json["config"]["optimizer"]["groups"][0]["args"] == {"betas": "(0.8,0.9)"}


BAD_RESULTS = {
    "no object": ("[1, 2]", "has no schema"),
    "nested without end": ("[" * 200_000, "is not JSON"),
    "another schema": ('{"schema": 99}', "schema 99"),
    "no results": ('{"schema": 1, "results": []}', "at least one"),
    "nothing in it": ('{"schema": 1}', "memsim_version is missing"),
}


@pytest.mark.parametrize("case", BAD_RESULTS)
def test_a_file_that_holds_no_result_is_an_error(cli, tmp_path, case):
    text, word = BAD_RESULTS[case]
    file = tmp_path / "est.json"
    file.write_text(text)
    result = cli("report", file)
    assert result.code == 1
    assert word in result.err
    assert len(result.err.splitlines()) <= 3


@pytest.mark.parametrize(
    ("place", "value"),
    [("parameter_bytes", "x"), ("parameter_bytes", -1), ("parameter_bytes", float("nan")), ("buffer_bytes", True)],
)
def test_a_damaged_figure_in_a_saved_result_is_named(cli, tmp_path, place, value):
    file = tmp_path / "est.json"
    data = cli("estimate", MODEL, "--format", "json").json
    data["static"][place] = value
    file.write_text(json.dumps(data))
    result = cli("report", file)
    assert result.code == 1
    assert f"static.{place} must" in result.err


def test_what_is_saved_loads_back_equal(tmp_path):
    import memsim

    estimate = memsim.estimate(MODEL, optimizer="adamw_torch", seq_len=128, freeze=["distilbert.embeddings"])
    estimate.save(tmp_path / "est.json")
    loaded = memsim.load(tmp_path / "est.json")
    assert loaded.to_dict(details=True) == estimate.to_dict(details=True)
    assert loaded.config == estimate.config
    assert (loaded.model, loaded.static, loaded.assumptions) == (estimate.model, estimate.static, estimate.assumptions)


BAD_CALLS = {
    "freeze": lambda memsim: memsim.estimate(MODEL, freeze=3),
    "a number to freeze": lambda memsim: memsim.estimate(MODEL, freeze=[3]),
    "task": lambda memsim: memsim.estimate(MODEL, task=[]),
    "args": lambda memsim: memsim.estimate(MODEL, optimizer_args=[1]),
    "a number for an argument": lambda memsim: memsim.estimate(MODEL, optimizer_args={3: 4}),
    "groups": lambda memsim: memsim.estimate(MODEL, parameter_groups=[{}]),
    "config": lambda memsim: memsim.estimate(MODEL, config=3),
    "optimizer": lambda memsim: memsim.TrainingConfig(optimizer="sgd"),
    "name": lambda memsim: memsim.OptimizerConfig(name=3),
    "letters": lambda memsim: memsim.TrainingConfig(freeze="distilbert"),
    "compare": lambda memsim: memsim.compare(MODEL, None),
    "no parameters": lambda memsim: memsim.optimizer_state("sgd", None),
    "load": lambda memsim: memsim.load(None),
    "save": lambda memsim: memsim.estimate(MODEL).save(None),
    "labels": lambda memsim: memsim.estimate(MODEL, task="sequence-classification", num_labels=10**14),
    "history": lambda memsim: memsim.estimate(MODEL, optimizer="lbfgs", optimizer_args={"history_size": 10**11}),
    "betas": lambda memsim: memsim.estimate(MODEL, optimizer="adamw_torch", optimizer_args={"betas": ("a", "b")}),
    "one beta": lambda memsim: memsim.estimate(MODEL, optimizer="adamw_torch", optimizer_args={"betas": (0.9,)}),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_wrong_type_in_python_is_one_of_our_errors(case):
    import memsim

    with pytest.raises(memsim.MemsimError):
        BAD_CALLS[case](memsim)


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_input_is_a_short_error_that_names_what_is_allowed(cli, case):
    args, code, words = BAD_OPTIONS[case]
    result = cli(*args)
    assert result.code == code, result
    assert result.out == ""
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err
    assert len(result.err.strip().splitlines()) <= 3


def test_a_traceback_is_shown_when_asked_for():
    result = run_memsim("estimate", "distilbert-base-csaed", env={"MEMSIM_DEBUG": "1"})
    assert result.code == 1
    assert "UnknownNameError" in result.err


def test_names_of_any_length_are_cut_in_messages(cli):
    for args in (("estimate", "x" * 5000), ("estimate", MODEL, "--optimizer", "x" * 5000)):
        result = cli(*args)
        assert result.code == 2
        assert len(result.err) < 500


def test_a_narrow_terminal_breaks_no_figure():
    from memsim import compare
    from memsim.report.estimates import render_estimates

    estimates = compare(MODEL, ["adamw_torch", "adafactor"])
    for width in (40, 80, 100):
        text = render_estimates(estimates, width=width)
        assert "1,004.22 MiB" in text
        assert "adamw_torch\n" in text
        assert max(map(len, text.splitlines())) <= width
    rows = [line.split() for line in render_estimates(estimates, width=130).splitlines()]
    assert ["adamw_torch", "251.05", "MiB"] in [row[:3] for row in rows]


def test_an_output_that_cannot_be_written_is_no_bug():
    import subprocess
    import sys

    command = f"{sys.executable} -m memsim estimate gpt2"
    full = subprocess.run(f"{command} --details > /dev/full", shell=True, capture_output=True, text=True, check=False)
    assert full.returncode == 1
    assert "No space left on device" in full.stderr
    closed = subprocess.run(f"{command} >&-", shell=True, capture_output=True, text=True, check=False)
    assert closed.returncode == 1
    assert "stdout is closed" in closed.stderr
    head = subprocess.run(f"{command} --details | head -1", shell=True, capture_output=True, text=True, check=False)
    assert head.stderr == ""
    latin = subprocess.run(
        command, shell=True, capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "latin-1"}
    )
    assert latin.returncode == 0
    assert b"----" in latin.stdout


def test_a_dash_is_stdout_and_a_link_is_written_through(cli, tmp_path):
    assert cli("estimate", MODEL, "--format", "csv", "-o", "-").out.startswith("model,")
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to("real.csv")
    (tmp_path / "dangling.csv").symlink_to("nowhere.csv")
    assert cli("estimate", MODEL, "-o", tmp_path / "dangling.csv").code == 1
    assert cli("estimate", MODEL, "-o", tmp_path / "link.csv", "-f").code == 0
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text().startswith("model,")


def test_a_file_name_that_cannot_be_is_an_error(cli, tmp_path):
    result = cli("estimate", MODEL, "-o", tmp_path / ("x" * 300 + ".json"))
    assert result.code == 1
    assert "File name too long" in result.err


def test_help_keeps_its_examples_on_lines_of_their_own(cli):
    out = cli("-h").out
    assert "\n  memsim optimizers adamw_bnb_8bit\n" in out
    assert "\\b" not in out


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
