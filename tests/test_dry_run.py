"""Dry runs of whole commands on an imaginary GPU: figures equal to PyTorch's own, and every way a command can end."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import dry_run_scripts as scripts
import pytest
from gpu_fixture import installation  # noqa: F401 - a fixture

import memsim
from memsim.dry_run import process
from memsim.dry_run.process import processes_of
from memsim.dry_run.run import Limits, run
from memsim.errors import MemsimError
from memsim.ledger import Category, Phase
from memsim.report.dry_run import render_dry_run
from memsim.snapshot import snapshot_bytes

MIB = 2**20
pytestmark = pytest.mark.usefixtures("installation")


def write(folder, source):
    path = Path(folder) / "train.py"
    path.write_text(source, encoding="utf-8")
    return path


def run_script(folder, source, *arguments, gpu="A100", steps=3, timeout=None, **variables):
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, str(write(folder, source)), *map(str, arguments)]
    limits = Limits(max_steps=steps, timeout_seconds=timeout)
    return run(command, gpu=gpu, limits=limits, environment=environment)


def stats_line(text):
    """Return (requested, allocated, reserved) peaks that a script printed of itself."""
    (line,) = [line for line in text.splitlines() if line.startswith("STATS")]
    return tuple(map(int, line.split()[1:]))


def figures(result):
    return result.peak.requested_bytes, result.peak.allocated_bytes, result.peak.reserved_bytes


@pytest.fixture(scope="module")
def nano(tmp_path_factory):
    """The result and the output of the GPT script."""
    folder = tmp_path_factory.mktemp("nano")
    path = write(folder, scripts.NANO_GPT)
    with (folder / "out").open("w+") as out:
        saved = os.dup(1)
        os.dup2(out.fileno(), 1)
        try:
            result = run([sys.executable, str(path)], environment={**os.environ, "OMP_NUM_THREADS": "1"})
        finally:
            os.dup2(saved, 1)
            os.close(saved)
        out.seek(0)
        return result, out.read()


def test_peaks_equal_what_pytorch_says_of_the_same_run(nano):
    result, out = nano
    assert figures(result) == stats_line(out)
    stats = result.trace.stats
    assert figures(result) == (stats.peak_requested_bytes, stats.peak_allocated_bytes, stats.peak_reserved_bytes)


def test_the_run_ends_after_three_steps_with_the_scripts_own_clean_up(nano):
    result, out = nano
    assert (result.ending, result.exit_code, result.num_steps) == ("stopped", 0, 3)
    assert [line for line in out.splitlines() if line.startswith("step")] == ["step 0", "step 1"]
    assert "STATS" in out  # its finally ran


def test_parts_add_up_to_the_whole(nano):
    result, _ = nano
    whole = result.peak.allocated_bytes
    assert sum(result.peak.by_category.values()) == whole
    assert sum(row.allocated_bytes for row in result.held.modules) == whole
    assert all(sum(phase.by_category.values()) == phase.peak_allocated_bytes for phase in result.phases)
    assert max(phase.peak_allocated_bytes for phase in result.phases) == whole
    assert max(phase.peak_reserved_bytes for phase in result.phases) == result.peak.reserved_bytes


def test_phases_of_each_step_are_told_apart(nano):
    result, _ = nano
    first = [phase.phase for phase in result.phases if phase.step == 1]
    assert first == [Phase.LOAD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER_STEP, Phase.ZERO_GRAD]
    assert {phase.step for phase in result.phases} == {1, 2, 3}
    assert result.growth_bytes == 0


def test_tensors_have_their_shape_dtype_name_and_line(nano):
    result, _ = nano
    largest = result.held.tensors[0]  # 8 x 256 tokens x 4 x 512 float32
    assert (largest.requested_bytes, largest.holder.shape) == (16 * MIB, (8, 256, 2048))
    assert (largest.holder.dtype, largest.holder.op) == ("float32", "GeluBackward0")
    known = {event.holder.name: event.holder for event in result.trace.events if event.holder}
    state = known["exp_avg_sq of h.1.mlp.0.weight"]
    assert (state.category, state.shape, state.dtype) == (Category.OPTIMIZER_STATE, (2048, 512), "float32")
    weights = [e.holder for e in result.trace.events if e.holder and e.holder.name == "h.0.attn.c_attn.weight"]
    assert {w.category for w in weights} == {Category.PARAMETER, Category.GRADIENT}
    lines = scripts.NANO_GPT.splitlines()
    holders = [event.holder for event in result.trace.events if event.holder]
    made = next(h for h in holders if (h.module, h.category) == ("h.0.mlp.0", Category.ACTIVATION))
    number = int(made.line.split(":")[1].split()[0])
    assert "self.mlp(self.ln_2(x))" in lines[number - 1]


def test_layers_are_folded_by_module(nano):
    result, _ = nano
    rows = {row.module: row.num_modules for row in result.held.modules}
    assert rows["h.*.mlp"] == rows["h.*.attn"] == 2


def test_a_result_survives_json_and_is_rendered_again(nano, tmp_path, cli):
    result, _ = nano
    result.save(tmp_path / "run.json")
    again = memsim.load(tmp_path / "run.json")
    assert again == result
    shown = cli("report", tmp_path / "run.json")
    assert (shown.code, shown.out) == (0, render_dry_run(result))
    assert list(result.to_frame().columns[:3]) == ["step", "phase", "peak_allocated_bytes"]
    assert len(result.to_frame(details=True)) == 10


def test_the_snapshot_is_read_by_pytorchs_own_tool(nano, tmp_path):
    result, _ = nano
    path = tmp_path / "run.pickle"
    path.write_bytes(snapshot_bytes(result.trace))
    snapshot = pickle.loads(path.read_bytes())
    assert sum(segment["total_size"] for segment in snapshot["segments"]) == result.trace.stats.reserved_bytes
    assert sum(segment["allocated_size"] for segment in snapshot["segments"]) == result.trace.stats.allocated_bytes
    code = (
        "import pickle, sys; from torch.cuda import _memory_viz as viz; "
        "data = pickle.load(open(sys.argv[1], 'rb')); print(viz.segsum(data)); print(viz.trace(data)[:200])"
    )
    read = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")
    assert "segments: " in read.stdout


def test_categories_are_those_of_arithmetic(tmp_path, capfd):
    result = run_script(tmp_path, scripts.FOUR_LAYERS, 2, steps=0)
    out = capfd.readouterr().out
    assert figures(result) == stats_line(out)
    assert (result.ending, result.num_steps) == ("finished", 2)
    step = next(phase for phase in result.phases if (phase.step, phase.phase) == (2, Phase.OPTIMIZER_STEP))
    # 4 weights of 1024 x 1024 float32 are 16 MiB, with a gradient and a momentum each
    assert [step.by_category[name] for name in ("parameter", "gradient", "optimizer_state")] == [16 * MIB] * 3
    forward = next(phase for phase in result.phases if (phase.step, phase.phase) == (2, Phase.FORWARD))
    # x of 256 x 1024 float32 is 1 MiB; of the outputs the three between layers wait for backward, the last does not
    assert (forward.by_category["input"], forward.by_category["activation"]) == (MIB, 3 * MIB + 512)
    assert "gradient" not in forward.by_category
    # cuBLAS before compute capability 9.0: 4096 KiB x 2 + 16 KiB x 8 for each thread that multiplies: here two
    assert step.by_category["workspace"] == 2 * (4096 * 2 + 16 * 8) * 1024


def test_a_trainer_script_shows_evaluation_saving_and_generation_as_phases(tmp_path, capfd):
    result = run_script(tmp_path, scripts.TRAINER, tmp_path / "out", steps=0, gpu="RTX 4090")
    captured = capfd.readouterr()
    assert (result.ending, result.num_steps) == ("finished", 2), captured.err[-2000:]
    assert "GENERATED 12" in captured.out
    assert figures(result) == stats_line(captured.out)
    phases = {phase.phase for phase in result.phases}
    assert {Phase.EVALUATION, Phase.SAVE, Phase.GENERATE, Phase.BACKWARD, Phase.OPTIMIZER_STEP} <= phases
    assert (tmp_path / "out" / "checkpoint-2").is_dir()
    assert any("Generation" in sentence for sentence in result.assumptions)
    assert "2 x model.layers.*.mlp" in render_dry_run(result)


def test_steps_of_optimizers_inside_backward_are_counted_by_backward(tmp_path, capfd):
    result = run_script(tmp_path, scripts.STEPS_IN_BACKWARD, steps=2)
    assert (result.ending, result.num_steps) == ("stopped", 2)
    assert capfd.readouterr().out.split() == ["1"]
    # both weights have a gradient only for as long as their own step takes: never 2 x 4 MiB
    assert max(phase.by_category.get("gradient", 0) for phase in result.phases) == 4 * MIB


def bin_of(name):
    return str(Path(sys.executable).with_name(name))


def test_accelerate_launch_runs_an_accelerate_loop(tmp_path):
    script = write(tmp_path, scripts.ACCELERATE)
    flags = ["--num_processes=1", "--num_machines=1", "--dynamo_backend=no", "--mixed_precision=fp16"]
    result = run([bin_of("accelerate"), "launch", *flags, str(script)], limits=Limits(max_steps=2))
    assert (result.ending, result.num_steps, result.exit_code) == ("stopped", 2, 0)
    assert any("GradScaler" in sentence for sentence in result.assumptions)


def test_torchrun_and_a_shell_in_between_make_no_difference(tmp_path, nano):
    script = write(tmp_path, scripts.NANO_GPT)
    line = f"cd {tmp_path} && {bin_of('torchrun')} --nproc-per-node 1 {script}"
    result = run(["sh", "-c", line], environment={**os.environ, "OMP_NUM_THREADS": "1"})
    assert (result.ending, result.num_steps) == ("stopped", 3)
    assert figures(result) == figures(nano[0])


def test_out_of_memory_ends_with_pytorchs_error_and_what_to_change(tmp_path, capfd):
    result = run_script(tmp_path, scripts.TOO_LARGE, gpu="2GiB")
    assert "CUDA out of memory. Tried to allocate 64.00 MiB" in capfd.readouterr().err
    assert (result.ending, result.num_steps, result.exit_code, result.fits) == ("out_of_memory", 0, 1, False)
    oom = result.oom
    assert (oom.asked_bytes, oom.total_bytes, oom.phase) == (64 * MIB, 2048 * MIB, Phase.OPTIMIZER_STEP)
    assert oom.free_bytes == 2048 * MIB - oom.reserved_bytes < oom.asked_bytes
    assert result.held.allocated_bytes == oom.allocated_bytes
    # 12 weights and gradients of 64 MiB leave 512 MiB, cuBLAS takes two workspaces of 8.125 MiB: 7 of 64 MiB fit.
    # Those are exp_avg and exp_avg_sq of three weights, and exp_avg of the fourth; a fused step is 512 bytes.
    assert [result.held.by_category[name] for name in ("parameter", "gradient")] == [768 * MIB] * 2
    assert result.held.by_category["optimizer_state"] == 7 * 64 * MIB + 4 * 512
    assert "of weights" in result.advice[0]
    text = render_dry_run(result)
    assert "Out of memory" in text
    assert "change first" in text


def memsim_dry_run(*arguments, cwd):
    return subprocess.Popen(
        [sys.executable, "-m", "memsim", "dry-run", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
    )


def test_a_program_that_catches_the_error_goes_on_and_only_fits_fails_it(tmp_path):
    write(tmp_path, scripts.CAUGHT)
    command = ("--gpu", "2GiB", "--format", "json", "--fits", "--", sys.executable, "train.py")
    started = memsim_dry_run(*command, cwd=tmp_path)
    out, err = started.communicate(timeout=120)
    data = json.loads(out)  # stdout is the result alone
    assert "caught it" in err
    assert started.returncode == 3
    assert (data["ending"], data["num_ooms"], data["num_steps"]) == ("stopped", 1, 3)
    assert data["oom"]["asked_bytes"] == 2**40


WITHOUT_STEPS = """
import os, torch
x = torch.empty(2**20, device="cuda")
try:
    torch.empty(2**40, device="cuda")
except torch.OutOfMemoryError:
    print("went on")
LAST
"""


def test_a_caught_error_is_no_end(tmp_path):
    result = run_script(tmp_path, WITHOUT_STEPS.replace("LAST", ""))
    assert (result.ending, result.num_ooms, result.exit_code) == ("finished", 1, 0)


def test_a_program_that_leaves_past_pythons_end_is_told_so(tmp_path):
    with pytest.raises(MemsimError, match=r"used the GPU, but ended \(exit code 0\) without running"):
        run_script(tmp_path, WITHOUT_STEPS.replace("LAST", "os._exit(0)"))


def test_names_in_square_brackets_are_names(tmp_path):
    source = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleDict({"[/b]": torch.nn.Linear(1024, 1024)})
    def forward(self, x):
        return self.parts["[/b]"](x)
Net().cuda()(torch.ones(8, 1024, device="cuda")).sum().backward()
"""
    assert "[/b]" in render_dry_run(run_script(tmp_path, source))


def test_forks_and_processes_in_the_background_are_found_and_ended(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run_script(tmp_path, scripts.FORKS)
    assert result.peak.allocated_bytes == 7 * MIB  # the fork
    assert any("1 more process of the command used the GPU" in sentence for sentence in result.assumptions)
    assert any("left 1 process" in sentence for sentence in result.assumptions)
    assert not any(processes_of(tmp_path / "train.py"))


def test_a_crash_is_reported_with_what_was_seen_until_then(tmp_path):
    write(tmp_path, scripts.CRASHES)
    started = memsim_dry_run("--gpu", "T4", "-o", "run.json", "--", sys.executable, "train.py", cwd=tmp_path)
    out, err = started.communicate(timeout=120)
    assert (out, started.returncode) == ("", 1)
    assert "ValueError: boom" in err
    assert "memsim: the command failed (exit code 1)" in err
    assert json.loads((tmp_path / "run.json").read_text())["peak"]["allocated_bytes"] == 512


def test_a_program_that_will_not_end_is_killed_and_its_figures_are_kept(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(process, "_SIGNALS", tuple((number, 0.5) for number, _ in process._SIGNALS))
    result = run_script(tmp_path, scripts.STUBBORN)
    assert "swallowed SystemExit" in capfd.readouterr().out
    assert (result.ending, result.exit_code, result.num_steps) == ("stopped", -9, 3)
    assert (result.peak.allocated_bytes, result.peak.phase) == (8 * MIB, Phase.LOAD)
    assert any("reset PyTorch's peak" in sentence for sentence in result.assumptions)


def wait_for(path, started):
    for _ in range(1200):
        if path.exists() and path.read_text():
            return int(path.read_text())
        assert started.poll() is None, started.communicate()
        time.sleep(0.05)
    raise AssertionError(f"{path} never came")


def gone(pid):
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)], ids=["int", "term", "kill"]
)
def test_a_signal_to_memsim_ends_the_command_too(tmp_path, number, code):
    write(tmp_path, scripts.ENDLESS)
    started = memsim_dry_run("--gpu", "T4", "--", sys.executable, "train.py", cwd=tmp_path)
    pid = wait_for(tmp_path / "ready", started)
    started.send_signal(number)
    started.communicate(timeout=60)
    assert started.returncode == code
    assert gone(pid)
    assert (tmp_path / "cleaned").exists() == (number != signal.SIGKILL)


def test_a_command_that_never_steps_ends_when_its_time_is_up(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run_script(tmp_path, scripts.ENDLESS, timeout=20)
    assert (result.ending, result.num_steps, result.peak.allocated_bytes) == ("timed_out", 0, 512)
    assert (tmp_path / "cleaned").exists()


def test_two_runs_at_once_do_not_disturb_each_other(tmp_path):
    path = write(tmp_path, scripts.FOUR_LAYERS)
    gpus = {"T4": "7.5", "H100": "9.0"}
    running = {
        gpu: memsim_dry_run("-q", "--gpu", gpu, "-o", f"{gpu}.json", "--", sys.executable, str(path), "2", cwd=tmp_path)
        for gpu in gpus
    }
    for gpu, started in running.items():
        out, err = started.communicate(timeout=180)
        assert started.returncode == 0, err
        data = json.loads((tmp_path / f"{gpu}.json").read_text())
        assert data["device"]["compute_capability"] == gpus[gpu]
        assert data["peak"]["allocated_bytes"] == stats_line(out)[1]


def test_an_existing_sitecustomize_still_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("open('was_here', 'w').close()\n")
    command = [sys.executable, "-c", "print('no torch')"]
    os.chdir(tmp_path)
    with pytest.raises(MemsimError, match="ended without using the GPU"):
        run(command, environment={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (tmp_path / "was_here").exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["sh", "-c", "exit 7"], r"failed \(exit code 7\)"),
        (["sh", "-c", "kill -SEGV $$"], r"failed \(signal SIGSEGV\)"),
        (["true"], "ended without using the GPU"),
    ],
)
def test_a_command_that_never_uses_the_gpu_is_an_error(command, message):
    with pytest.raises(MemsimError, match=message):
        run(command)
