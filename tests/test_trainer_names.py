"""Names of optimizers: `optim=` means what a real Trainer builds, and short names mean the plain class."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import sys
import types
from typing import Any

import optimizer_oracle as oracle
import pytest
import torch
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    Trainer,
    TrainingArguments,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)
from transformers.training_args import OptimizerNames

from memsim.errors import UnknownNameError, UsageError
from memsim.optimizers import derive_state, names, resolve_optimizer
from memsim.record.meta import table_from_module

TRAINER_NAMES = sorted(name.value for name in OptimizerNames)
# What the Trainer itself raises: these need hardware or packages that no pip index has, or are refused everywhere.
REFUSED_BY_THE_TRAINER = {
    "adamw_torch_xla": "torch_xla",
    "adamw_torch_npu_fused": "torch_npu",
    "adamw_anyprecision": "torchdistx",
    "galore_adafactor_layerwise": "Cannot combine manual `lr`",
}
ABSENT_PACKAGES = {
    "adamw_torch_xla": "torch_xla.amp.syncfree.AdamW",
    "adamw_torch_npu_fused": "torch_npu.optim.NpuFusedAdamW",
    "adamw_anyprecision": "torchdistx.optimizers.AnyPrecisionAdamW",
}
BUILT_BY_THE_TRAINER = [n for n in TRAINER_NAMES if n not in REFUSED_BY_THE_TRAINER]


@pytest.fixture
def model() -> torch.nn.Module:
    """A model with embeddings, matrices and vectors on both sides of 4,096 elements, one of them frozen."""
    torch.manual_seed(0)
    config = DistilBertConfig(vocab_size=160, dim=64, hidden_dim=80, n_layers=1, n_heads=2, max_position_embeddings=32)
    model = DistilBertForSequenceClassification(config)
    model.classifier.bias.requires_grad_(False)
    return model


@pytest.fixture
def make_trainer(model, tmp_path, monkeypatch):
    """Return a real Trainer with its optimizer; skip by name where the package is not installed."""

    def make(name: str, model: torch.nn.Module = model) -> Trainer:
        # AdaLomo's constructor and GaLore's 8-bit step call these without asking whether there is a GPU.
        monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        package = resolve_optimizer(name).rule.package
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{package} is not installed")
        trainer = Trainer(model=model, args=arguments(name, tmp_path))
        trainer.create_optimizer()
        return trainer

    return make


def arguments(name: str, folder: Any) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder), optim=name, optim_target_modules="all-linear", use_cpu=True, report_to=[]
    )


def module_classes(model: torch.nn.Module) -> dict[str, str]:
    return {
        f"{path}.{name}": type(module).__name__
        for path, module in model.named_modules()
        for name, _ in module.named_parameters(recurse=False)
    }


def test_all_41_names_of_the_trainer_are_known():
    assert len(TRAINER_NAMES) == 41
    assert {n.name for n in names().values() if n.framework == "transformers"} == set(TRAINER_NAMES)


@pytest.mark.parametrize("name", BUILT_BY_THE_TRAINER)
def test_class_and_arguments_are_what_the_trainer_gives(name, model, make_trainer):
    trainer = make_trainer(name)
    cls, given = Trainer.get_optimizer_cls_and_kwargs(trainer.args, model)
    groups = given.pop("params", trainer.optimizer.param_groups)
    given.pop("model", None)
    layerwise = given.pop("optimizer_dict", None)
    if layerwise:
        cls = type(next(iter(layerwise.values())))
    resolved = resolve_optimizer(name)
    module, _, class_name = resolved.rule.class_path.rpartition(".")
    assert cls is getattr(importlib.import_module(module), class_name)
    defaults = {
        p.name: p.default for p in inspect.signature(cls).parameters.values() if p.name in resolved.rule.arguments
    }
    in_groups = {key: value for group in groups for key, value in group.items() if key in resolved.args}
    if name.startswith("apollo"):
        in_groups.pop("eps")  # of the projected group alone; the other group has the class's own
    assert resolved.args.items() >= {**defaults, **in_groups, **given}.items()


@pytest.mark.parametrize("name", BUILT_BY_THE_TRAINER)
def test_state_after_two_steps_is_the_predicted_one(name, model, make_trainer):
    optimizer = make_trainer(name).optimizer
    parameters = dict(model.named_parameters())
    trained = {n: p for n, p in parameters.items() if p.requires_grad}
    step_twice(optimizer, trained)
    oracle.assert_state_equals(name, {}, live_state(optimizer, trained), parameters, module_classes(model))


def test_an_embedding_is_kept_in_32_bits_when_its_first_name_is_that_of_the_head(make_trainer):
    """XLM-RoBERTa's `named_parameters()` lists the tied weight as the decoder of the head only."""
    config = XLMRobertaConfig(
        vocab_size=200, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2
    )
    model = XLMRobertaForMaskedLM(config)
    parameters = dict(model.named_parameters())
    assert "lm_head.decoder.weight" in parameters
    optimizer = make_trainer("adamw_bnb_8bit", model).optimizer
    oracle.step_twice(optimizer, parameters)
    table = table_from_module(model)
    predicted = derive_state(resolve_optimizer("adamw_bnb_8bit"), table.trainable)
    oracle.assert_same(oracle.real_state(optimizer, parameters), predicted)
    assert optimizer.state[parameters["lm_head.decoder.weight"]]["state1"].dtype == torch.float32


def step_twice(optimizer: torch.optim.Optimizer, trained: dict[str, torch.nn.Parameter]) -> None:
    if hasattr(optimizer, "train"):
        optimizer.train()  # schedule-free optimizers want to be told
    if type(optimizer).__name__ in {"Lomo", "AdaLomo"}:
        return  # no step(): the state, if any, is there since the constructor
    for _ in range(2):
        oracle.fill_gradients(trained.values())
        each = getattr(optimizer, "optimizer_dict", None)  # layerwise: what the hooks in backward call
        for one in [each[p] for p in trained.values()] if each else [optimizer]:
            one.step()


def live_state(optimizer: torch.optim.Optimizer, trained: dict[str, torch.nn.Parameter]) -> Any:
    """Return the state by parameter from where the optimizer keeps it, which is not always `optimizer.state`."""
    if hasattr(optimizer, "optimizer_dict"):
        return {p: values for one in optimizer.optimizer_dict.values() for p, values in one.state.items()}
    if type(optimizer).__name__ == "AdaLomo":
        kept = {key: getattr(optimizer, key) for key in ("exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col")}
        return {p: {f"opt.{key}": v[n] for key, v in kept.items() if n in v} for n, p in trained.items()}
    if type(optimizer).__name__ == "GrokAdamW":
        groups = optimizer.param_groups
        return {p: {f"group.state.{k}": v for k, v in s.items()} for g in groups for p, s in g["state"].items()}
    return optimizer


@pytest.mark.parametrize(("name", "reason"), REFUSED_BY_THE_TRAINER.items())
def test_what_the_trainer_refuses_to_build_is_known_all_the_same(name, reason, model, tmp_path):
    with pytest.raises((ValueError, ImportError), match=reason):
        Trainer(model=model, args=arguments(name, tmp_path)).create_optimizer()
    assert resolve_optimizer(name).rule.class_path


@pytest.mark.parametrize("name", ABSENT_PACKAGES)
def test_arguments_are_what_the_trainer_gives_to_a_class_that_no_pip_index_has(name, model, tmp_path, monkeypatch):
    """The Trainer's own code, with an empty class where it imports the real one."""
    path = ABSENT_PACKAGES[name]
    assert names()[name].class_path == path
    module, _, class_name = path.rpartition(".")
    for end in range(1, module.count(".") + 2):
        part = ".".join(module.split(".")[:end])
        monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
    monkeypatch.setattr(sys.modules[module], class_name, type(class_name, (), {}), raising=False)
    _, given = Trainer.get_optimizer_cls_and_kwargs(arguments(name, tmp_path), model)
    texts = {key: str(v).removeprefix("torch.") if isinstance(v, torch.dtype) else v for key, v in given.items()}
    assert resolve_optimizer(name).args.items() >= {"weight_decay": 0.0, **texts}.items()


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
