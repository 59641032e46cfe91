"""The loop of the Hugging Face Trainer."""

from __future__ import annotations

import inspect
import tempfile
from typing import Any

from memsim.config import TrainingConfig
from memsim.optimizers import names
from memsim.record.architecture import quiet
from memsim.record.training.accelerate_loop import clean_state, on_cpu
from memsim.record.training.optimizer import build_optimizer

TRAINER_CLIPS_AT = 1.0
"""`TrainingArguments.max_grad_norm` (training_args.py @transformers 5.24)."""


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
            trainer.create_optimizer()
            self.model, trainer.optimizer = trainer.accelerator.prepare(self.model, trainer.optimizer)
            self.optimizer = trainer.optimizer.optimizer
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


def _trainer(model: Any, training: TrainingConfig, folder: str, *, max_steps: int) -> Any:
    from transformers import Trainer

    own = names().get(training.optimizer.name)
    by_name = own is not None and own.framework == "transformers" and not training.optimizer.groups
    optimizer = None if by_name else build_optimizer(model, training.optimizer)
    arguments = trainer_arguments(training, folder, max_steps=max_steps, cpu=on_cpu(model))
    with quiet():
        return Trainer(model=model, args=arguments, optimizers=(optimizer, None))


def trainer_arguments(training: TrainingConfig, folder: str, *, max_steps: int, cpu: bool) -> Any:
    """Return the `TrainingArguments` that a configuration stands for, with nothing saved, logged or reported."""
    from transformers import TrainingArguments

    known = inspect.signature(TrainingArguments.__init__).parameters
    recompute = "activation_checkpointing" if "activation_checkpointing" in known else "gradient_checkpointing"
    limit = training.max_grad_norm
    own = names().get(training.optimizer.name)
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
    if own is not None and own.framework == "transformers":
        options["optim"] = own.name
        options["optim_target_modules"] = "all-linear"
    with quiet():
        return TrainingArguments(**options)
