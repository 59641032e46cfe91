"""`memsim simulate`: against a real run, event for event, and with bad input."""

import itertools
import json
from dataclasses import replace

import pytest
from gpu_fixture import installation  # noqa: F401

import memsim
from memsim.errors import MemsimError, UsageError
from memsim.gpus import find_gpu
from memsim.ledger import Phase
from memsim.record.job import RecordJob
from memsim.record.recorder import Recorder

TINY = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 512,
    "n_positions": 64,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "torch_dtype": "float32",
}
OPTIONS = ("--batch-size", "2", "--seq-len", "64", "--optimizer", "adamw_torch", "--max-grad-norm", "1.0")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(TINY))
    return tmp_path / "tiny"


def test_a_simulated_run_is_the_real_one_event_for_event(installation, folder, cli, tmp_path):  # noqa: F811
    result = cli("simulate", folder, *OPTIONS, "--step", "record", "-o", tmp_path / "run.json")
    assert (result.code, result.out) == (0, ""), result.err
    simulated = memsim.load(tmp_path / "run.json")
    with Recorder(find_gpu("A100")) as recorder:
        config = replace(simulated.estimate.config, task=None)
        real = recorder.record(RecordJob(config=TINY, training=config, kind="run", num_steps=2)).trace
    assert len(real.events) > 1000
    assert events(simulated.trace) == events(real)
    assert replace(simulated.trace.stats, num_ooms=0) == replace(real.stats, num_ooms=0)


def events(trace):
    """Return what is done to the allocator and when; a batch, made between the phases, belongs to forward.

    Tensors that are let go together may be so in any order: PyTorch's own is that of a hash table here and there.
    """
    found = [(event.action, event.nbytes, event.step, event.phase.value) for event in trace.events]
    first_forward = next(index for index, (*_, phase) in enumerate(found) if phase == Phase.BACKWARD.value)
    found = [(*event[:3], "") for event in found[:first_forward]] + found[first_forward:]
    runs = itertools.groupby(found, key=lambda event: event[0].startswith("free_"))
    return [event for frees, run in runs for event in (sorted(run) if frees else run)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--optimizer", "sgd", "--optimizer", "adamw_torch"), "memsim estimate compares"),
        (("--alloc-conf", "", "--alloc-conf", "expandable_segments:True"), "2 were asked for"),
        (("--fits",), "--fits needs a GPU"),
        (("--gpu", "RTX 4099"), "Did you mean"),
        (("--alloc-conf", "expandable_segments:yes"), "True or False"),
        (("-o", "step.docx"), "no format has the suffix '.docx'"),
        (("--format", "png"), "'png' is not one of"),
        (("--optimizer", "adamx"), "unknown optimizer"),
    ],
)
def test_what_cannot_be_simulated_is_told_before_anything_is_recorded(cli, options, said):
    result = cli("simulate", "gpt2", *options)
    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert "recording" not in result.err


def test_an_existing_file_is_kept(cli, tmp_path):
    (tmp_path / "step.svg").write_text("precious")
    result = cli("simulate", "gpt2", "-o", tmp_path / "step.svg")
    assert result.code == 1
    assert (tmp_path / "step.svg").read_text() == "precious"


def test_without_a_recording_the_error_says_what_there_is_instead():
    with pytest.raises(MemsimError, match="memsim estimate tells what can be told without it"):
        memsim.simulate("gpt2", batch_size=2, step="off")


def test_an_optimizer_whose_step_is_not_known_is_an_error():
    with pytest.raises(MemsimError, match="lomo updates parameters inside backward"):
        memsim.simulate("gpt2", optimizer="lomo", step="record")


def test_a_configuration_and_options_are_too_many():
    with pytest.raises(UsageError, match="not both"):
        memsim.simulate("gpt2", memsim.TrainingConfig(), batch_size=2)
    with pytest.raises(UsageError, match="TrainingConfig"):
        memsim.simulate("gpt2", {"batch_size": 2})
