"""The loops that people train with: plain PyTorch, Accelerate, the Hugging Face Trainer.

All have the same three methods. What a training script's own variables would keep alive (the batch on the device, the
loss) is an attribute that is bound anew in the next micro-step, so that it lives as long.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from memsim.config import TrainingConfig
from memsim.errors import UsageError
from memsim.record.training import stepping
from memsim.record.training.accelerate_loop import AccelerateLoop
from memsim.record.training.inputs import to_device
from memsim.record.training.losses import LossFunction, call, loss_of
from memsim.record.training.optimizer import build_optimizer
from memsim.record.training.trainer_loop import TrainerLoop


class TrainingLoop(Protocol):
    """One training loop around one model."""

    optimizer: Any
    """What `build_optimizer` or the Trainer made; `None` in a loop without an optimizer."""

    def micro_step(self, batch: Any) -> None:
        """Move a batch from the CPU to the device; run forward and backward."""

    def optimizer_step(self) -> None:
        """Clip gradients as the configuration says, and step the optimizer."""

    def zero_grad(self) -> None:
        """Clear the gradients as the configuration says."""


class PlainLoop:
    """What a user of PyTorch writes: `loss = model(**batch).loss; loss.backward(); optimizer.step()`.

    Args:
        model: any `torch.nn.Module` on its device.
        training: autocast, clipping, accumulation and the optimizer.
        with_optimizer: whether an optimizer is made.
        loss_function: loss of outputs and batch; `None` is the model's own loss.
    """

    def __init__(
        self,
        model: Any,
        training: TrainingConfig,
        *,
        with_optimizer: bool = True,
        loss_function: LossFunction | None = None,
    ) -> None:
        import torch

        self.model = model
        self.training = training
        self.device = next(model.parameters()).device
        self.optimizer = build_optimizer(model, training.optimizer) if with_optimizer else None
        stepping.begin(self.optimizer)
        scaled = training.autocast == "float16"
        self._scaler = torch.amp.GradScaler(self.device.type) if scaled else None
        self._loss_function = loss_function
        self._batch: Any = None
        self._loss: Any = None

    def micro_step(self, batch: Any) -> None:
        """Move a batch from the CPU to the device; run forward and backward."""
        self._batch = to_device(batch, self.device)
        with self._autocast():
            self._loss = loss_of(call(self.model, self._batch), self._batch, self._loss_function)
        num_batches = self.training.gradient_accumulation_steps
        if num_batches > 1:
            self._loss = self._loss / num_batches
        if self._scaler is None:
            stepping.backward(self.optimizer, self._loss)
        else:
            self._scaler.scale(self._loss).backward()

    def optimizer_step(self) -> None:
        """Clip gradients as the configuration says, and step the optimizer."""
        import torch

        limit = self.training.max_grad_norm
        if self._scaler is not None and self.optimizer is not None and limit is not None:
            self._scaler.unscale_(self.optimizer)
        if limit is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        if self.optimizer is None:
            return
        if self._scaler is None:
            stepping.step(self.optimizer, self._again)
        else:
            self._scaler.step(self.optimizer)
            self._scaler.update()

    def _again(self) -> Any:
        self.zero_grad()
        self.micro_step(self._batch)
        return self._loss

    def zero_grad(self) -> None:
        """Clear the gradients as the configuration says."""
        cleared = self.model if self.optimizer is None else self.optimizer
        cleared.zero_grad(set_to_none=self.training.zero_grad_set_to_none)

    def _autocast(self) -> AbstractContextManager[Any]:
        import torch

        if self.training.autocast == "none":
            return nullcontext()
        autocast: AbstractContextManager[Any] = torch.autocast(
            self.device.type, dtype=getattr(torch, self.training.autocast)
        )
        return autocast


def start_loop(
    model: Any, training: TrainingConfig, *, with_optimizer: bool = True, loss_function: LossFunction | None = None
) -> TrainingLoop:
    """Return the loop that `training.loop` names, around a model that is on its device and in training mode.

    Raises:
        UsageError: the Trainer with a loss function of one's own.
        UnknownNameError: no such optimizer.
        MissingPackageError: the loop or the optimizer needs a package that is not installed.
    """
    if training.loop == "trainer":
        if loss_function is not None:
            raise UsageError("the Trainer's loss is the model's own: give a loss function with --loop plain.")
        return TrainerLoop(model, training, with_optimizer=with_optimizer)
    loop = PlainLoop if training.loop == "plain" else AccelerateLoop
    return loop(model, training, with_optimizer=with_optimizer, loss_function=loss_function)


_PREPARED = "Accelerate puts autocast round the model's own forward and turns its outputs into float32 copies."
_DIFFERENCES: dict[str, tuple[str, ...]] = {
    "plain": (),
    "accelerate": (
        _PREPARED,
        "The loss is divided by gradient_accumulation_steps even where that is 1: one more number on the device.",
    ),
    "trainer": (
        _PREPARED,
        "Gradients are clipped to a norm of 1.0 unless max_grad_norm says otherwise.",
        "Weights with and without weight decay are two parameter groups of the optimizer.",
        "Models that take num_items_in_batch sum their loss and divide it by the number of labels.",
        "All micro-batches of a step are on the device before its first forward.",
        "use_cache is off, so that no keys and values are kept.",
        "Gradients are always freed between steps.",
    ),
}


def differences(loop: str) -> tuple[str, ...]:
    """Return in what a loop differs from the plain one as far as memory goes, in sentences."""
    return _DIFFERENCES[loop]
