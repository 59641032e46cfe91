"""Saved comparisons through `memsim report`."""

from test_comparison import SGD, SPEC, sgd_run

from memsim.comparing import compare_run
from memsim.prediction import static_prediction


def test_report_renders_a_saved_comparison_in_every_text_format(tmp_path, cli):
    path = tmp_path / "comparison.json"
    compare_run(static_prediction(SPEC, SGD, num_steps=1), sgd_run(momentum_bytes=600).measurement()).save(path)
    table = cli("report", path)
    lines = [" ".join(line.split()) for line in table.out.splitlines()]
    assert "optimizer_step 1 end optimizer_state 1.18 KiB 612 B +600 +98.04% wrong" in lines
    assert "momentum_buffer 1.18 KiB 612 B +600 +98.04%" in lines
    assert "layers.* optimizer_state 1.18 KiB 612 B +600 +98.04%" in lines
    assert "Measured, not predicted" not in table.out
    assert "forward 1 peak activation 4.88 KiB" in " ".join(cli("report", path, "--details").out.split())
    assert "1,optimizer_step,end,optimizer_state,1212.0,612" in cli("report", path, "--format", "csv").out
    assert "| optimizer_step | end" in cli("report", path, "--format", "markdown").out
    assert "<td>optimizer_state</td>" in cli("report", path, "--format", "html").out


def test_a_run_without_segments_is_no_snapshot(tmp_path, cli):
    compare_run(static_prediction(SPEC, SGD), sgd_run().measurement()).save(tmp_path / "c.json")
    result = cli("report", tmp_path / "c.json", "-o", tmp_path / "c.pickle")
    assert (result.code, "no segments" in result.err) == (1, True)
