"""The loop of the Hugging Face Trainer."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from memsim.config import OptimizerConfig, TrainingConfig
from memsim.errors import UsageError
from memsim.optimizers import names, resolve_optimizer
from memsim.record.architecture import quiet
from memsim.record.training.accelerate_loop import clean_state, on_cpu
from memsim.record.training.optimizer import build_optimizer, given_arguments, optimizer_class
from memsim.record.training.optimizer_groups import wants_model

TRAINER_CLIPS_AT = 1.0
"""`TrainingArguments.max_grad_norm` (training_args.py @transformers 5.24)."""
_SCHEDULE_STEPS = 1000
"""Steps of the learning rate's schedule; no byte depends on it."""


class TrainerLoop:
    """A `transformers.Trainer`: single micro-steps through `training_step`, or the whole of `train()`.

    The Trainer's data loader puts each batch on the device before `training_step` sees it, and keeps it there until the
    next batch has come.

    Args:
        model: a model of transformers on its device.
        training: precision, checkpointing, clipping, accumulation and the optimizer.
        with_optimizer: whether an optimizer is made.

    Raises:
        MissingPackageError: transformers' Trainer needs a package that is not installed.
    """

    def __init__(self, model: Any, training: TrainingConfig, *, with_optimizer: bool = True) -> None:
        clean_state()
        self.model = model
        self.training = training
        self._folder = tempfile.TemporaryDirectory(prefix="memsim-")
        self.trainer = _trainer(model, training, self._folder.name, max_steps=1)
        self.optimizer: Any = None
        self._batches: Any = None
        self._num_items: Any = None
        self._loss: Any = None
        self._prepare(with_optimizer)

    def _prepare(self, with_optimizer: bool) -> None:
        trainer = self.trainer
        if with_optimizer:
            with _refusals(self.training):
                trainer.create_optimizer()
            self.model, trainer.optimizer = trainer.accelerator.prepare(self.model, trainer.optimizer)
            self.optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
            trainer.create_scheduler(num_training_steps=_SCHEDULE_STEPS)
        else:
            self.model = trainer.accelerator.prepare(self.model)
        trainer.model_wrapped = self.model
        trainer.current_gradient_accumulation_steps = self.training.gradient_accumulation_steps

    def micro_step(self, batch: Any) -> None:
        """Move a batch from the CPU to the device as the Trainer's data loader does; run `Trainer.training_step`."""
        from accelerate.utils import send_to_device

        trainer, device = self.trainer, self.trainer.args.device
        arriving = (send_to_device(one, device) for one in [batch])
        ask = trainer.get_batch_samples
        more = (device,) if "device" in inspect.signature(ask).parameters else ()
        self._batches, self._num_items = ask(arriving, 1, *more)
        self._loss = trainer.training_step(self.model, self._batches[0], self._num_items)

    def optimizer_step(self) -> None:
        """Clip gradients and step the optimizer, as the Trainer does after the last micro-batch."""
        trainer = self.trainer
        # Without a limit the Trainer computes the norm all the same, for its log (trainer.py:2789 @transformers 5.24).
        limit = trainer.args.max_grad_norm or float("inf")
        trainer.accelerator.gradient_state._set_sync_gradients(True)
        trainer.accelerator.clip_grad_norm_(self.model.parameters(), limit)
        trainer.optimizer.step()

    def zero_grad(self) -> None:
        """Free the gradients; the Trainer never keeps them."""
        self.model.zero_grad()

    def close(self) -> None:
        """Remove the Trainer's folder."""
        self._folder.cleanup()


def run_trainer(
    model: Any, training: TrainingConfig, batch: Mapping[str, Any], *, num_steps: int, callbacks: Sequence[Any] = ()
) -> Any:
    """Train with the whole of `Trainer.train()`, every micro-batch a copy of `batch`, and return the Trainer.

    Nothing is saved, logged or reported. The optimizer is `trainer.optimizer`, as Accelerate wraps it.

    Args:
        model: a model of transformers on its device.
        training: precision, checkpointing, clipping, accumulation and the optimizer.
        batch: on the CPU.
        num_steps: optimizer steps.
        callbacks: `transformers.TrainerCallback`s.

    Raises:
        MissingPackageError: transformers' Trainer needs a package that is not installed.
        UsageError: the Trainer does not build such an optimizer.
    """
    clean_state()
    num_examples = training.batch_size * training.gradient_accumulation_steps * num_steps
    with tempfile.TemporaryDirectory(prefix="memsim-") as folder:
        trainer = _trainer(model, training, folder, max_steps=num_steps)
        trainer.train_dataset = range(num_examples)
        trainer.data_collator = lambda _examples: dict(batch)
        for callback in callbacks:
            trainer.add_callback(callback)
        with quiet():
            trainer.train()
    return trainer


def _trainer(model: Any, training: TrainingConfig, folder: str, *, max_steps: int) -> Any:
    from transformers import PrinterCallback, Trainer

    options: dict[str, Any] = {}
    if not _by_name(training.optimizer):
        chosen = class_and_arguments(training.optimizer)
        known = inspect.signature(Trainer.__init__).parameters
        if chosen is not None and "optimizer_cls_and_kwargs" in known:
            options["optimizer_cls_and_kwargs"] = chosen
        else:
            options["optimizers"] = (build_optimizer(model, training.optimizer), None)
    with quiet(), _refusals(training):
        arguments = trainer_arguments(training, folder, max_steps=max_steps, cpu=on_cpu(model))
        trainer = Trainer(model=model, args=arguments, **options)
    trainer.remove_callback(PrinterCallback)
    return trainer


def _by_name(optimizer: OptimizerConfig) -> bool:
    """Return whether the Trainer builds the optimizer from its own name alone."""
    own = names().get(optimizer.name)
    plain = not optimizer.groups and not optimizer.args and optimizer.impl is None
    return plain and own is not None and own.framework == "transformers"


def class_and_arguments(optimizer: OptimizerConfig) -> tuple[Any, dict[str, Any]] | None:
    """Return class and arguments of a Trainer's name with arguments of the user's; `None` where groups are special.

    The Trainer then makes its own groups, with and without weight decay.
    """
    own = names().get(optimizer.name)
    resolved = resolve_optimizer(optimizer.name, optimizer.args, optimizer.impl)
    special = {"target_modules", "adam_patterns"} & set(resolved.rule.own_arguments)
    if own is None or own.framework != "transformers" or optimizer.groups or special or wants_model(resolved):
        return None
    return optimizer_class(resolved.rule.class_path, resolved.rule.package), given_arguments(resolved)


@contextmanager
def _refusals(training: TrainingConfig) -> Iterator[None]:
    """Say in one line what the Trainer refuses."""
    try:
        yield
    except (ValueError, ImportError, RuntimeError, NotImplementedError) as error:
        said = " ".join(str(error).split())[:300]
        raise UsageError(
            f"the Trainer refuses this training (optim={training.optimizer.name!r}, autocast={training.autocast!r}): "
            f"{said}\nChange what it names, or take --loop plain."
        ) from error


def trainer_arguments(training: TrainingConfig, folder: str, *, max_steps: int, cpu: bool) -> Any:
    """Return the `TrainingArguments` that a configuration stands for, with nothing saved, logged or reported."""
    from transformers import TrainingArguments

    known = inspect.signature(TrainingArguments.__init__).parameters
    recompute = "activation_checkpointing" if "activation_checkpointing" in known else "gradient_checkpointing"
    limit = training.max_grad_norm
    options: dict[str, Any] = {
        "output_dir": folder,
        "per_device_train_batch_size": training.batch_size,
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
        "bf16": training.autocast == "bfloat16",
        "fp16": training.autocast == "float16",
        recompute: training.activation_checkpointing,
        "max_grad_norm": TRAINER_CLIPS_AT if limit is None else limit,
        "torch_empty_cache_steps": training.empty_cache_steps,
        "max_steps": max_steps,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
        "use_cpu": cpu,
    }
    if _by_name(training.optimizer):
        options["optim"] = training.optimizer.name
        options["optim_target_modules"] = "all-linear"
    return TrainingArguments(**options)
