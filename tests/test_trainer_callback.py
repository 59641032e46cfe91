"""The callback in a real Hugging Face Trainer, on the CPU."""

from __future__ import annotations

import logging

import pytest
import torch
import transformers
from tiny_families import tiny

import memsim
from memsim.errors import UsageError
from memsim.integrations import trainer as integration
from memsim.integrations.trainer import DoesNotFitError, MemsimCallback
from memsim.ledger import Category, Phase
from memsim.prediction import STATIC


class Rows(torch.utils.data.Dataset):
    def __init__(self, num_rows):
        self.num_rows = num_rows

    def __len__(self):
        return self.num_rows

    def __getitem__(self, index):
        tokens = torch.arange(8) + 4 + index % 8
        return {"input_ids": tokens, "labels": tokens}


def trainer_with(callback, tmp_path, *, model=None, **arguments):
    options = {
        "output_dir": str(tmp_path),
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "per_device_train_batch_size": 2,
        "max_steps": 4,
        "logging_steps": 1,
        "disable_tqdm": True,
        **arguments,
    }
    return transformers.Trainer(
        model=tiny("llama")[0] if model is None else model,
        args=transformers.TrainingArguments(**options),
        train_dataset=Rows(64),
        callbacks=[callback],
    )


def entries(trainer, key):
    return [entry for entry in trainer.state.log_history if key in entry]


@pytest.mark.parametrize(
    "arguments",
    [
        {"optim": "adamw_torch"},
        {"optim": "adamw_torch_fused", "gradient_accumulation_steps": 2},
        {"optim": "adafactor", "bf16": True},
        {"optim": "sgd", "optim_args": "momentum=0.9", "max_grad_norm": 0.0},
    ],
    ids=lambda arguments: arguments["optim"],
)
def test_it_predicts_before_the_first_step_and_measures_the_first_two(arguments, tmp_path, caplog):
    callback = MemsimCallback()
    trainer = trainer_with(callback, tmp_path, **arguments)
    with caplog.at_level(logging.INFO, logger="memsim"):
        trainer.train()
    comparison = callback.comparison
    assert (comparison.num_steps, comparison.loop, comparison.device) == (2, "trainer", "cpu")
    assert [row for row in comparison.judged if row.category in STATIC and row.difference_bytes] == []
    assert comparison.passed, comparison.verdict
    # The oracle: the live optimizer of the Trainer, wrapped by Accelerate.
    live = memsim.compute_optimizer_size(trainer.optimizer.state)
    assert live == memsim.compute_optimizer_size(trainer.optimizer.state.values())
    ends = {
        (row.step, row.category): row.measured_bytes for row in comparison.rows if row.phase is Phase.OPTIMIZER_STEP
    }
    assert ends[2, Category.OPTIMIZER_STATE] == live.num_bytes
    predicted, measured = entries(trainer, "memsim_predicted_bytes"), entries(trainer, "memsim_measured_peak_bytes")
    assert [(entry["step"], entry["memsim_fits"]) for entry in predicted] == [(0, True)]
    assert [(entry["step"], entry["memsim_passed"]) for entry in measured] == [(2, True)]
    assert measured[0]["memsim_measured_peak_bytes"] >= predicted[0]["memsim_predicted_bytes"] > 0
    assert "a step needs at least" in caplog.text
    assert comparison.verdict in caplog.text


def test_after_the_measured_steps_every_hook_is_gone(tmp_path):
    modules = torch.nn.modules.module
    seen = []

    class Looks(transformers.TrainerCallback):
        def on_step_begin(self, _args, state, _control, **_):
            seen.append((len(modules._global_forward_pre_hooks), torch.autograd.backward.__module__))

    backward = torch.autograd.backward.__module__
    trainer = trainer_with(MemsimCallback(), tmp_path)
    trainer.add_callback(Looks())
    trainer.train()
    assert [hooks for hooks, _ in seen] == [1, 1, 0, 0]
    assert seen[-1][1] == backward


def test_a_run_that_does_not_fit_is_ended_before_its_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(integration, "available_bytes", lambda _model, _optimizer: 50_000)
    model = tiny("llama")[0]
    before = [parameter.clone() for parameter in model.parameters()]
    callback = MemsimCallback(stop_if_over=True)
    trainer = trainer_with(callback, tmp_path, model=model)
    with pytest.raises(DoesNotFitError, match=r"a step needs at least .* KiB; the device has 48\.83 KiB for it"):
        trainer.train()
    assert trainer.state.global_step == 0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert len(torch.nn.modules.module._global_forward_pre_hooks) == 0
    assert entries(trainer, "memsim_fits")[0]["memsim_fits"] is False


def test_without_being_asked_to_stop_it_warns_and_goes_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(integration, "available_bytes", lambda _model, _optimizer: 50_000)
    callback = MemsimCallback()
    trainer = trainer_with(callback, tmp_path)
    trainer.train()
    assert trainer.state.global_step == 4
    assert [r.levelname for r in caplog.records if r.name == "memsim" and "needs at least" in r.message] == ["WARNING"]


def test_what_is_predicted_is_a_lower_bound_that_shapes_give(tmp_path):
    callback = MemsimCallback()
    trainer = trainer_with(callback, tmp_path, optim="sgd", max_grad_norm=0.0)
    trainer.train()
    model = trainer.model
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    # Plain SGD has neither state nor, in its for-loop form, temporaries: weights and gradients.
    assert callback.prediction.least_bytes == 2 * weights + buffers


def test_an_optimizer_without_a_rule_is_measured_but_not_compared(tmp_path, caplog):
    class Mine(torch.optim.SGD):
        pass

    model = tiny("llama")[0]
    callback = MemsimCallback(stop_if_over=True)
    trainer = trainer_with(callback, tmp_path, model=model)
    trainer.optimizer = Mine(model.parameters(), lr=0.1)
    trainer.train()
    assert trainer.state.global_step == 4
    assert (callback.prediction, callback.comparison) == (None, None)
    assert "unknown optimizer class" in caplog.text
    assert len(torch.nn.modules.module._global_forward_pre_hooks) == 0


def test_a_run_of_one_step_is_compared_at_its_end(tmp_path):
    callback = MemsimCallback()
    trainer_with(callback, tmp_path, max_steps=1).train()
    assert callback.comparison.num_steps == 1


def test_an_error_in_the_training_leaves_the_measuring_to_close(tmp_path):
    callback = MemsimCallback()
    trainer = trainer_with(callback, tmp_path)
    trainer.data_collator = lambda rows: {"input_ids": torch.full((2, 8), 10_000), "labels": torch.zeros(2, 8).long()}
    with pytest.raises(IndexError):
        trainer.train()
    callback.close()
    assert len(torch.nn.modules.module._global_forward_pre_hooks) == 0
    assert callback.comparison is None


def test_it_is_a_callback_that_the_trainer_knows_by_its_class(tmp_path):
    callback = MemsimCallback()
    trainer = trainer_with(callback, tmp_path)
    assert isinstance(callback, transformers.TrainerCallback)
    assert trainer.pop_callback(MemsimCallback) is callback


def test_fewer_than_one_step_cannot_be_measured():
    with pytest.raises(UsageError, match="num_steps must be at least 1, not 0"):
        MemsimCallback(num_steps=0)
