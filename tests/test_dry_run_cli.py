"""Bad input of `memsim dry-run`, before anything is started."""

import pytest

from memsim.dry_run.advice import advice_for
from memsim.ledger import Phase
from memsim.step import OutOfMemory

GIB = 2**30


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "give a command after --"),
        (("--", "no-such-command-at-all"), 1, "there is no command 'no-such-command-at-all'"),
        (("--gpu", "RTX 4099", "--", "true"), 2, "Did you mean RTX 4090"),
        (("--gpu", "12 parsecs", "--", "true"), 2, "unknown GPU"),
        (("--steps", "-1", "--", "true"), 2, "--steps -1"),
        (("--steps", "many", "--", "true"), 2, "'many' is not a valid integer"),
        (("--timeout", "0", "--", "true"), 2, "--timeout 0"),
        (("-o", "run.docx", "--", "true"), 2, "no format has the suffix '.docx'"),
    ],
)
def test_bad_input_is_a_short_error(cli, arguments, code, message):
    result = cli("dry-run", "-q", *arguments)
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    assert "Traceback" not in result.err


def test_an_existing_file_is_kept(cli, tmp_path):
    path = tmp_path / "run.json"
    path.write_text("precious")
    result = cli("dry-run", "-o", path, "--", "true")
    assert result.code == 1
    assert "exists" in result.err
    assert path.read_text() == "precious"


def test_a_snapshot_of_an_estimate_is_refused(cli, tmp_path):
    result = cli("estimate", "gpt2", "-o", tmp_path / "a.pickle")
    assert result.code == 2
    assert "snapshot" in result.err
    assert not (tmp_path / "a.pickle").exists()


def failure(phase=Phase.FORWARD, *, asked=GIB, free=0, allocated=20 * GIB, reserved=20 * GIB):
    return OutOfMemory(
        asked_bytes=asked,
        total_bytes=24 * GIB,
        free_bytes=free,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        step=1,
        phase=phase,
        module="",
        line="",
        library_line="",
    )


def test_advice_begins_with_what_holds_most():
    advice = advice_for(failure(), {"activation": 15 * GIB, "parameter": 4 * GIB, "input": 1})
    assert [text.split(":")[0] for text in advice] == ["15.00 GiB of activations", "4.00 GiB of weights"]


def test_advice_names_fragmentation_where_the_cache_had_enough():
    advice = advice_for(failure(allocated=18 * GIB), {"activation": 18 * GIB})
    assert "expandable_segments" in advice[0]


def test_advice_names_the_foreach_optimizer_where_its_copies_are_large():
    held = {"parameter": 10 * GIB, "temporary": 8 * GIB}
    assert "fused=True" in advice_for(failure(Phase.OPTIMIZER_STEP), held)[0]
    assert not any("fused" in text for text in advice_for(failure(Phase.BACKWARD), held))


def test_what_is_missing_is_asked_minus_free():
    assert failure(asked=3 * GIB, free=GIB).shortfall_bytes == 2 * GIB
    assert failure(asked=GIB, free=3 * GIB).shortfall_bytes == 0


def test_what_is_refused_before_anything_runs(cli, tmp_path, monkeypatch):
    (tmp_path / "plain.py").write_text("")
    monkeypatch.chdir(tmp_path)
    cases = {
        ("--gpu", "", "--", "true"): "--gpu is empty",
        ("--timeout", "nan", "--", "true"): "--timeout",
        ("--", "./plain.py"): "is not executable",
        ("--", str(tmp_path)): "is a folder",
    }
    for args, said in cases.items():
        result = cli("dry-run", *args)
        assert result.code in (1, 2)
        assert said in result.err
    for name, value in (("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"), ("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            result = cli("dry-run", "--", "true")
            assert result.code == 2
            assert name in result.err
