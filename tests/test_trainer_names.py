"""Names of optimizers: `optim=` means what a real Trainer builds, and short names mean the plain class."""

from __future__ import annotations

import importlib
from typing import Any

import bitsandbytes as bnb
import optimizer_oracle as oracle
import pytest
import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification, Trainer, TrainingArguments
from transformers.training_args import OptimizerNames

from memsim.errors import UnknownNameError, UsageError
from memsim.optimizers import names, resolve_optimizer

TRAINER_NAMES = sorted(name.value for name in OptimizerNames)
# What the Trainer itself raises: these need hardware or packages that no pip index has, or are refused everywhere.
REFUSED_BY_THE_TRAINER = {
    "adamw_torch_xla": "torch_xla",
    "adamw_torch_npu_fused": "torch_npu",
    "adamw_anyprecision": "torchdistx",
    "galore_adafactor_layerwise": "Cannot combine manual `lr`",
}
PACKAGES = ("torch.optim.", "transformers.", "bitsandbytes.")
BUILT_BY_THE_TRAINER = [n for n in TRAINER_NAMES if n in names() and names()[n].class_path.startswith(PACKAGES)]


@pytest.fixture(autouse=True)
def _no_overrides():
    """Overrides of bitsandbytes are global to the process: forget those of other tests."""
    bnb.optim.GlobalOptimManager.get_instance().initialize()


@pytest.fixture
def model() -> torch.nn.Module:
    """A model with embeddings, matrices and vectors on both sides of 4,096 elements, one of them frozen."""
    torch.manual_seed(0)
    config = DistilBertConfig(vocab_size=160, dim=64, hidden_dim=80, n_layers=1, n_heads=2, max_position_embeddings=32)
    model = DistilBertForSequenceClassification(config)
    model.classifier.bias.requires_grad_(False)
    return model


def make_trainer(name: str, model: torch.nn.Module, folder: Any) -> Trainer:
    try:
        arguments = TrainingArguments(
            output_dir=str(folder), optim=name, optim_target_modules="all-linear", use_cpu=True, report_to=[]
        )
        trainer = Trainer(model=model, args=arguments)
        trainer.create_optimizer()
    except (ImportError, ValueError) as error:
        if "nstall" in str(error) or "You need to" in str(error):
            pytest.skip(f"{name}: {error}")
        raise
    return trainer


def module_classes(model: torch.nn.Module) -> dict[str, str]:
    return {
        f"{path}.{name}": type(module).__name__
        for path, module in model.named_modules()
        for name, _ in module.named_parameters(recurse=False)
    }


@pytest.mark.xfail(strict=False, reason="the rules of some packages are still missing")
def test_all_41_names_of_the_trainer_are_known():
    assert len(TRAINER_NAMES) == 41
    assert set(TRAINER_NAMES) - {n.name for n in names().values() if n.framework == "transformers"} == set()


@pytest.mark.parametrize("name", BUILT_BY_THE_TRAINER)
def test_class_and_arguments_are_what_the_trainer_gives(name, model, tmp_path):
    trainer = make_trainer(name, model, tmp_path)
    known = names()[name]
    cls, kwargs = Trainer.get_optimizer_cls_and_kwargs(trainer.args, model)
    module, _, class_name = known.class_path.rpartition(".")
    assert cls is getattr(importlib.import_module(module), class_name)
    groups = trainer.optimizer.param_groups
    assert {group["weight_decay"] for group in groups} == {known.args["weight_decay"]}
    own = resolve_optimizer(name).rule.own_arguments
    given = {key: value for key, value in known.args.items() if key not in own}
    assert {"weight_decay": 0.0, **kwargs} == given


@pytest.mark.parametrize("name", BUILT_BY_THE_TRAINER)
def test_state_after_two_steps_is_the_predicted_one(name, model, tmp_path):
    trainer = make_trainer(name, model, tmp_path)
    parameters = dict(model.named_parameters())
    trained = {n: p for n, p in parameters.items() if p.requires_grad}
    oracle.step_twice(trainer.optimizer, trained)
    oracle.assert_state_equals(name, {}, trainer.optimizer, parameters, module_classes(model))


@pytest.mark.parametrize(("name", "reason"), [r for r in REFUSED_BY_THE_TRAINER.items() if r[0] in names()])
def test_what_the_trainer_refuses_to_build_is_known_all_the_same(name, reason, model, tmp_path):
    with pytest.raises(ValueError, match=reason):
        Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=str(tmp_path), optim=name, optim_target_modules="all-linear", use_cpu=True, report_to=[]
            ),
        ).create_optimizer()
    assert resolve_optimizer(name).rule.class_path


@pytest.mark.xfail(strict=False, reason="the rules of some packages are still missing")
def test_a_refusal_that_does_not_depend_on_the_machine_is_told():
    assert {n.name for n in names().values() if n.unbuildable} == {"galore_adafactor_layerwise"}


@pytest.mark.parametrize(
    ("typed", "class_path"),
    [
        ("adamw", "torch.optim.AdamW"),
        ("AdamW", "torch.optim.AdamW"),
        ("ADAMW", "torch.optim.AdamW"),
        ("SGD", "torch.optim.SGD"),
        ("RMSprop", "torch.optim.RMSprop"),
        ("sgd8bit", "bitsandbytes.optim.SGD8bit"),
        ("AdamW8bit", "bitsandbytes.optim.AdamW8bit"),
        ("PagedAdamW8bit", "bitsandbytes.optim.PagedAdamW8bit"),
        ("AdEMAMix", "bitsandbytes.optim.AdEMAMix"),
        ("Adamw_BNB_8bit", "bitsandbytes.optim.AdamW"),
        ("adafactor", "transformers.optimization.Adafactor"),
        ("torch.optim.AdamW", "torch.optim.AdamW"),
    ],
)
def test_names_are_found_in_any_case(typed, class_path):
    assert resolve_optimizer(typed).rule.class_path == class_path


def test_a_spelling_that_fits_two_classes_is_refused():
    with pytest.raises(UsageError, match=r"could be adafactor or torch\.optim\.Adafactor"):
        resolve_optimizer("Adafactor")


def test_the_plain_8bit_class_quantises_embeddings_and_the_trainers_name_does_not():
    assert resolve_optimizer("adamw8bit").args["embeddings_in_32bit"] is False
    assert resolve_optimizer("adamw_bnb_8bit").args["embeddings_in_32bit"] is True


@pytest.mark.parametrize(("typed", "nearest"), [("adamw_tourch", "adamw_torch"), ("AdamW8bits", "adamw8bit")])
def test_an_unknown_name_is_an_error_that_names_the_nearest(typed, nearest):
    with pytest.raises(UnknownNameError, match=nearest):
        resolve_optimizer(typed)
