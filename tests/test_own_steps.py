"""A user's own steps, really computed on the CPU, against what was predicted before them."""

from __future__ import annotations

import bitsandbytes
import pytest
import torch
import transformers
from tiny_families import FAMILIES, tiny

import memsim
from memsim.comparison import Comparison
from memsim.errors import MemsimError, UnknownNameError, UsageError
from memsim.integrations.module import ModuleRun, verify_module
from memsim.ledger import Category, Phase
from memsim.prediction import STATIC

OPTIMIZERS = {
    "AdamW": torch.optim.AdamW,
    "Adafactor of torch": torch.optim.Adafactor,
    "Adafactor of transformers": transformers.Adafactor,
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "8-bit AdamW of bitsandbytes": lambda parameters: bitsandbytes.optim.AdamW8bit(parameters, min_8bit_size=256),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors as tiny as these gain nothing from more threads, which would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def differences(comparison: Comparison) -> list[str]:
    rows = [r for r in comparison.judged if r.category in STATIC and r.difference_bytes]
    states = [s for s in comparison.optimizer_state if s.predicted_bytes != s.measured_bytes]
    return [*map(str, rows), *map(str, states)]


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_gradients_and_state_are_predicted_to_the_byte(family):
    model, batch = tiny(family)
    for name, build in OPTIMIZERS.items():
        optimizer = build(list(model.parameters()))
        comparison = verify_module(model, optimizer, batch)
        assert differences(comparison) == [], name
        assert comparison.passed, (name, comparison.verdict)
        # The oracle: what the live objects hold.
        ends = {(r.step, r.category): r.measured_bytes for r in comparison.rows if r.phase is Phase.OPTIMIZER_STEP}
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        assert ends[2, Category.PARAMETER] == ends[2, Category.GRADIENT] == weights
        assert ends[2, Category.OPTIMIZER_STATE] == memsim.compute_optimizer_size(optimizer.state).num_bytes
        assert comparison.num_steps == 2


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(30, 50)
        self.norm = torch.nn.BatchNorm1d(50)
        self.down = torch.nn.Linear(50, 7)

    def forward(self, x):
        return self.down(torch.relu(self.norm(self.up(x))))


def test_any_module_with_a_batch_and_a_loss_of_its_own_is_verified():
    model = Net()
    optimizer = torch.optim.Adagrad(model.parameters())
    batch = (torch.randn(11, 30), torch.randint(0, 7, (11,)))
    run = ModuleRun(loss_fn=lambda logits, batch: torch.nn.functional.cross_entropy(logits, batch[0].argmax(1) % 7))
    comparison = verify_module(model, optimizer, batch[0], ModuleRun(loss_fn=lambda out, _: out.square().mean()))
    assert (comparison.passed, comparison.loop, comparison.device) == (True, "plain", "cpu")
    assert run.steps == 2
    assert {state.name for state in comparison.optimizer_state} == {"sum", "step"}
    # BatchNorm: running mean and variance of 50 float32 each and a count of batches in int64.
    buffers = [r.measured_bytes for r in comparison.rows if r.category is Category.BUFFER]
    assert set(buffers) == {2 * 50 * 4 + 8}


def test_the_optimizers_step_is_predicted_with_its_temporaries():
    model = Net()
    comparison = verify_module(model, torch.optim.AdamW(model.parameters()), torch.randn(11, 30))
    temporary = {
        r.step: (r.predicted_bytes, r.measured_bytes)
        for r in comparison.judged
        if r.category is Category.TEMPORARY and r.moment == "peak"
    }
    # The for-loop form: the denominator of one parameter still lives while the next one's is made, twice the largest.
    assert temporary[1] == temporary[2]
    assert temporary[1][0] == temporary[1][1] > 0


def test_frozen_parameters_have_neither_gradient_nor_state():
    model = Net()
    model.up.requires_grad_(False)
    comparison = verify_module(model, torch.optim.AdamW(model.parameters()), torch.randn(11, 30))
    trained = 4 * (50 + 50 + 350 + 7)
    found = {r.category: r.measured_bytes for r in comparison.judged if r.step == 2 and r.phase is Phase.BACKWARD}
    assert found[Category.GRADIENT] == trained
    assert found[Category.OPTIMIZER_STATE] == 2 * trained + 4 * 4
    assert comparison.passed


def test_the_users_objects_are_trained_unless_they_are_to_be_restored():
    model = Net()
    before = [tensor.clone() for tensor in (*model.parameters(), *model.buffers())]
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(11, 30)
    verify_module(model, optimizer, batch, ModuleRun(restore=True))
    after = (*model.parameters(), *model.buffers())
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert (len(optimizer.state), [p.grad for p in model.parameters()]) == (0, [None] * 6)
    verify_module(model, optimizer, batch)
    moments = [entry["exp_avg"].clone() for entry in optimizer.state.values()]
    assert not torch.equal(before[0], model.up.weight)
    again = verify_module(model, optimizer, batch, ModuleRun(restore=True))
    assert all(torch.equal(m, s["exp_avg"]) for m, s in zip(moments, optimizer.state.values(), strict=True))
    assert [s["step"].item() for s in optimizer.state.values()] == [2.0] * 6
    assert again.passed  # state that exists before the first step is predicted as such


def test_a_wrong_rule_is_found_and_named(monkeypatch):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with memsim.measure_steps(model, optimizer) as run:
        optimizer.param_groups[0]["momentum"] = 0.0  # what really runs is another optimizer than was predicted
        model(torch.randn(11, 30)).sum().backward()
        optimizer.step()
    comparison = run.compare()
    assert comparison.wrong_categories == (Category.OPTIMIZER_STATE,)
    assert not comparison.passed


def test_own_steps_are_measured_as_the_user_runs_them():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with memsim.measure_steps(model, optimizer) as run:
        for _ in range(2):
            for _ in range(3):
                model(torch.randn(11, 30)).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    assert run.measurement.num_steps == 2
    phases = [span.phase for span in run.measurement.trace.spans if span.step == 2]
    assert phases == [Phase.FORWARD, Phase.BACKWARD] * 3 + [Phase.OPTIMIZER_STEP, Phase.ZERO_GRAD]
    comparison = run.compare(tolerance=0)
    assert (comparison.loop, comparison.wrong, comparison.passed) == ("own", (), True)


def test_an_error_in_the_users_code_passes_through_and_leaves_no_hook():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward = torch.autograd.backward
    run = memsim.measure_steps(model, optimizer)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), run:
        model(torch.randn(11, 31))
    assert torch.autograd.backward is backward
    assert run.measurement.num_steps == 0
    assert run.measurement.trace.events


def test_what_is_read_too_early_says_so():
    run = memsim.measure_steps(Net(), torch.optim.SGD(Net().parameters(), lr=0.1))
    with pytest.raises(MemsimError, match="after the 'with' block"):
        run.measurement  # noqa: B018
    with pytest.raises(MemsimError, match="enter the 'with' block first"):
        run.prediction  # noqa: B018


def test_an_optimizer_without_a_rule_is_refused_before_anything_runs():
    class Mine(torch.optim.SGD):
        pass

    model = Net()
    before = model.up.weight.clone()
    with pytest.raises(UnknownNameError, match="unknown optimizer class"):
        verify_module(model, Mine(model.parameters(), lr=0.1), torch.randn(11, 30))
    assert torch.equal(before, model.up.weight)
    with memsim.measure_steps(model, Mine(model.parameters(), lr=0.1)) as run:
        pass
    assert run.measurement.num_steps == 0  # it is measured all the same
    with pytest.raises(UnknownNameError, match="unknown optimizer class"):
        run.compare()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (torch.nn.ReLU(), "on no device"),
        (torch.nn.Linear(2, 2, device="meta"), "on meta"),
        ("gpt2", "must be a torch.nn.Module, not 'gpt2'"),
    ],
)
def test_a_model_that_cannot_be_watched_is_refused(model, message):
    with pytest.raises(UsageError, match=message):
        memsim.measure_steps(model, None)


@pytest.mark.parametrize("options", [{"steps": 0}, {"steps": 101}, {"steps": "2"}, {"loss_fn": "mse"}])
def test_a_run_that_cannot_be_is_refused(options):
    with pytest.raises(UsageError):
        ModuleRun(**options)
