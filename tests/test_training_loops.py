"""The three loops do what a script written by hand, Accelerate's example and `Trainer.train()` do."""

import copy
import os

import pytest

torch = pytest.importorskip("torch", reason="loops are real")
pytest.importorskip("accelerate", reason="loops are real")
pytest.importorskip("transformers", reason="loops are real")

from tiny_models import config_of  # noqa: E402

from memsim.config import OptimizerConfig, TrainingConfig  # noqa: E402
from memsim.errors import UsageError  # noqa: E402
from memsim.record.training.build import build_model  # noqa: E402
from memsim.record.training.inputs import example_batch  # noqa: E402
from memsim.record.training.loops import PlainLoop, differences, start_loop  # noqa: E402
from memsim.record.training.trainer_loop import run_trainer  # noqa: E402

LOOPS = ("plain", "accelerate", "trainer")
ADAMW = OptimizerConfig(name="adamw_torch")


def training(**options):
    own = {"task": "causal-lm", "dtype": "float32", "batch_size": 2, "seq_len": 16, "optimizer": ADAMW}
    return TrainingConfig(**{**own, **options})


@pytest.fixture
def model():
    torch.manual_seed(0)
    return build_model(config_of("llama"), training(), weights="real")  # a model without dropout


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], msg=name)


@pytest.mark.parametrize("loop", LOOPS)
def test_gradients_of_a_micro_step_are_those_of_a_loop_written_by_hand(loop, model):
    batch, by_hand = example_batch(model, training()), copy.deepcopy(model)
    by_hand(**batch).loss.backward()
    start_loop(model, training(loop=loop), with_optimizer=False).micro_step(batch)
    assert_equal(gradients(model), gradients(by_hand))


@pytest.mark.parametrize("loop", ["plain", "accelerate"])
def test_gradients_of_accumulated_micro_steps_are_the_mean(loop, model):
    batch, by_hand = example_batch(model, training()), copy.deepcopy(model)
    by_hand(**batch).loss.backward()
    started = start_loop(model, training(loop=loop, gradient_accumulation_steps=2), with_optimizer=False)
    started.micro_step(batch)
    halves = gradients(model)
    started.micro_step(batch)
    whole = gradients(by_hand)
    assert_equal(halves, {name: gradient / 2 for name, gradient in whole.items()})
    assert_equal(gradients(model), whole)


def test_two_steps_of_the_plain_loop_are_those_of_a_loop_written_by_hand(model):
    batch, by_hand = example_batch(model, training()), copy.deepcopy(model)
    optimizer = torch.optim.AdamW(by_hand.parameters(), lr=5e-5, weight_decay=0.0)
    loop = start_loop(model, training(max_grad_norm=0.1))
    for _ in range(2):
        by_hand(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        loop.micro_step(batch)
        loop.optimizer_step()
        loop.zero_grad()
    assert_equal(dict(model.named_parameters()), dict(by_hand.named_parameters()))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_single_steps_of_the_trainer_loop_are_those_of_the_whole_train(model):
    batch, whole = example_batch(model, training()), copy.deepcopy(model)
    asked = training(loop="trainer", optimizer=OptimizerConfig(name="adafactor"))  # its step depends on no schedule
    trainer = run_trainer(whole, asked, batch, num_steps=1)
    loop = start_loop(model, asked)
    loop.micro_step(batch)
    loop.optimizer_step()
    loop.zero_grad()
    assert_equal(dict(model.named_parameters()), dict(whole.named_parameters()))
    assert trainer.state.global_step == 1
    assert set(trainer.optimizer.state) == set(whole.parameters())


@pytest.mark.parametrize("recompute", [False, True])
def test_the_whole_train_runs_as_asked_and_writes_nothing_here(recompute, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = training(
        loop="trainer",
        autocast="bfloat16",
        activation_checkpointing=recompute,
        gradient_accumulation_steps=2,
        max_grad_norm=0.5,
        optimizer=OptimizerConfig(name="adamw_bnb_8bit"),
    )
    args = run_trainer(model, asked, example_batch(model, asked), num_steps=2).args
    assert (args.bf16, args.gradient_accumulation_steps, args.max_grad_norm) == (True, 2, 0.5)
    assert args.optim == "adamw_bnb_8bit"
    assert args.gradient_checkpointing is recompute
    assert model.is_gradient_checkpointing is recompute
    assert not model.config.use_cache
    assert os.listdir(tmp_path) == []


def test_the_trainer_makes_two_groups_and_the_other_loops_one(model):
    batch = example_batch(model, training())
    groups = {}
    for loop in LOOPS:
        started = start_loop(copy.deepcopy(model), training(loop=loop))
        started.micro_step(batch)
        started.optimizer_step()
        groups[loop] = len(started.optimizer.param_groups)
    assert groups == {"plain": 1, "accelerate": 1, "trainer": 2}


def test_arguments_of_a_trainers_name_keep_the_trainers_groups(model):
    asked = OptimizerConfig(name="adamw_torch", args={"betas": (0.5, 0.9)}, impl="foreach")
    groups = start_loop(model, training(loop="trainer", optimizer=asked)).optimizer.param_groups
    assert len(groups) == 2
    assert [(group["betas"], group["foreach"]) for group in groups] == [((0.5, 0.9), True)] * 2


@pytest.mark.parametrize(
    ("loop", "limit"), [("plain", 1e-3), ("accelerate", 1e-3), ("trainer", 1e-3), ("trainer", None)]
)
def test_gradients_are_clipped_before_the_step(loop, limit, model):
    for parameter in model.parameters():
        parameter.data.mul_(20)  # gradients of a norm above 1
    started = start_loop(model, training(loop=loop, max_grad_norm=limit))
    started.micro_step(example_batch(model, training()))
    before = torch.nn.utils.get_total_norm(list(gradients(model).values()))
    started.optimizer_step()
    after = torch.nn.utils.get_total_norm(list(gradients(model).values()))
    assert before > 1
    torch.testing.assert_close(after, torch.tensor(limit or 1.0), rtol=1e-2, atol=0)


@pytest.mark.parametrize("loop", ["plain", "accelerate"])
def test_gradients_stay_as_zeros_when_asked(loop, model):
    started = start_loop(model, training(loop=loop, zero_grad_set_to_none=False))
    started.micro_step(example_batch(model, training()))
    started.optimizer_step()
    started.zero_grad()
    assert not any(parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("loop", LOOPS)
def test_autocast_computes_in_its_dtype_and_only_the_plain_loop_keeps_the_outputs(loop, model):
    seen = {}
    model.model.layers[0].mlp.register_forward_hook(lambda *args: seen.update(inside=args[2].dtype))
    started = start_loop(model, training(loop=loop, autocast="bfloat16"), with_optimizer=False)
    started.micro_step(example_batch(model, training()))
    assert seen["inside"] == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=loop == "plain"):
        logits = started.model(**example_batch(model, training())).logits
    assert logits.dtype == (torch.bfloat16 if loop == "plain" else torch.float32)
    assert bool(differences(loop)) == (loop != "plain")


def test_the_batch_and_the_loss_live_until_the_next_ones_are_there(model):
    loop = PlainLoop(model, training())
    batch = example_batch(model, training())
    loop.micro_step(batch)
    first = loop._loss
    loop.optimizer_step()
    loop.zero_grad()
    assert loop._loss is first
    loop.micro_step(batch)
    assert loop._loss is not first


@pytest.mark.parametrize("loop", ["plain", "accelerate"])
def test_a_module_of_ones_own_trains_with_a_loss_of_ones_own(loop):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    asked = TrainingConfig(
        loop=loop, dtype="float32", optimizer=OptimizerConfig(name="torch.optim.SGD", args={"lr": 0.005})
    )
    started = start_loop(module, asked, loss_function=lambda outputs, batch: (outputs - batch[0].sum()).square().mean())
    losses = []
    for _ in range(5):
        started.micro_step((torch.ones(2, 3),))
        losses.append(float(started._loss.detach()))
        started.optimizer_step()
        started.zero_grad()
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == 5


def test_the_trainer_takes_no_loss_of_ones_own(model):
    with pytest.raises(UsageError, match="the Trainer's loss is the model's own"):
        start_loop(model, training(loop="trainer"), loss_function=lambda outputs, _: outputs.logits.sum())


def test_what_the_trainer_refuses_is_told_in_a_few_lines(model):
    asked = training(loop="trainer", optimizer=OptimizerConfig(name="galore_adafactor_layerwise"))
    with pytest.raises(UsageError, match=r"the Trainer refuses this training .*Cannot combine manual") as raised:
        start_loop(model, asked)
    assert len(str(raised.value).splitlines()) <= 3


@pytest.mark.parametrize("name", ["lomo_optim.Lomo", "torch.optim.LBFGS", "pytorch_optimizer.AdaHessian", "muon"])
@pytest.mark.filterwarnings("ignore:Using backward")
def test_optimizers_that_want_another_backward_or_step_get_it(name):
    if "." in name:
        pytest.importorskip(name.partition(".")[0])
    torch.manual_seed(0)
    eager = training(attn_implementation="eager")  # the fused attention has no second derivative
    model = build_model(config_of("llama"), eager, weights="real")
    before = copy.deepcopy(model.state_dict())
    started = start_loop(model, training(optimizer=OptimizerConfig(name=name)))
    started.micro_step(example_batch(model, training()))
    if "Lomo" in name:
        assert not torch.equal(model.lm_head.weight, before["lm_head.weight"])
    started.optimizer_step()
    changed = [key for key, value in model.state_dict().items() if not torch.equal(value, before[key])]
    assert set(changed) == {name for name, _ in model.named_parameters()}
