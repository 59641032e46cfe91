"""The script that measures trainings on a GPU: its cases, its rows, and that it goes on where it stopped."""

import importlib
import json
import sys
import time

import pytest
from conftest import ROOT, SHARED, needs_shared


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("gpu_verify")
    sys.modules.pop("gpu_verify", None)


FOUND = {
    "oom": False,
    "verdict": "All 3 predicted figures are within 1% of what was measured.",
    "gpu": "NVIDIA H100 80GB HBM3",
    "versions": {"torch": "2.13.0", "transformers": "5.24.0"},
    "predicted": {"max_allocated": 3, "max_reserved": 5},
    "metrics": {"max_allocated": 3, "max_reserved": 5, "nvidia_smi": None},
}


def test_every_training_has_a_name_of_its_own_and_each_choice_of_the_issue_is_there(script):
    every = list(script.cases(frozenset()))
    assert len({case.case_id for case in every}) == len(every)
    assert {case.size for case in every} == {"60M", "100M", "500M", "1B", "3B", "8B"}
    assert {case.optimizer for case in every} == set(script.OPTIMIZERS)
    assert {case.loop for case in every} == {"plain", "accelerate", "trainer"}
    assert {case.attn_implementation for case in every} == {"sdpa", "eager"}
    assert any(case.activation_checkpointing for case in every)
    assert any(case.lora_r for case in every)


@needs_shared
def test_rows_have_every_field_of_measured_cases(script):
    with (SHARED / "ground_truth" / "given.jsonl").open(encoding="utf-8") as file:
        known = set(json.loads(file.readline())) - {"source_case_ids", "half"}
    row = next(script.rows(next(script.cases(frozenset())), FOUND))
    assert known - set(row) == set()
    assert (row["metric"], row["measured_bytes"], row["predicted_bytes"]) == ("max_allocated", 3, 3)


def test_an_interrupted_run_goes_on_where_it_stopped(script, monkeypatch, tmp_path):
    path, ran = tmp_path / "cases.jsonl", []
    monkeypatch.setattr(script, "run_case", lambda case, _environment: ran.append(case.case_id) or FOUND)
    for limit in ("2", "1"):
        monkeypatch.setattr(sys, "argv", ["gpu_verify.py", str(path), "--models", "60M", "--limit", limit])
        script.main()
    assert ran == [case.case_id for case in script.cases(frozenset({"60M"}))][:3]
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["metric"] for line in lines] == ["max_allocated", "max_reserved"] * 3


def test_what_failed_is_kept_with_its_reason_and_no_figure(script, tmp_path):
    case = next(script.cases(frozenset()))
    path = tmp_path / "cases.jsonl"
    script.run_all([case], path, {"PATH": "/nowhere"}, deadline=time.monotonic() - 1)
    assert not path.exists()  # time was up before it began
    (row,) = script.rows(case, {"error": "took longer than 240 seconds"})
    assert (row["metric"], row["measured_bytes"], row["notes"]) == (None, None, "took longer than 240 seconds")
