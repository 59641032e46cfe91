"""The loop that Accelerate's users write: `accelerator.prepare`, `accelerator.backward`."""

from __future__ import annotations

from typing import Any

from memsim.config import TrainingConfig
from memsim.errors import MissingPackageError
from memsim.record.training import stepping
from memsim.record.training.losses import LossFunction, call, loss_of
from memsim.record.training.optimizer import build_optimizer

PRECISION = {"none": "no", "bfloat16": "bf16", "float16": "fp16"}
"""Accelerate's `mixed_precision` for each `autocast`."""


class AccelerateLoop:
    """A model and an optimizer prepared by an `accelerate.Accelerator`.

    Args:
        model: any `torch.nn.Module` on its device.
        training: precision, clipping, accumulation and the optimizer.
        with_optimizer: whether an optimizer is made.
        loss_function: loss of outputs and batch; `None` is the model's own loss.

    Raises:
        MissingPackageError: accelerate is not installed.
    """

    def __init__(
        self,
        model: Any,
        training: TrainingConfig,
        *,
        with_optimizer: bool = True,
        loss_function: LossFunction | None = None,
    ) -> None:
        clean_state()
        from accelerate import Accelerator

        self.training = training
        self.optimizer = build_optimizer(model, training.optimizer) if with_optimizer else None
        self.accelerator = Accelerator(
            mixed_precision=PRECISION[training.autocast],
            gradient_accumulation_steps=training.gradient_accumulation_steps,
            cpu=on_cpu(model),
        )
        self.model: Any = self.accelerator.prepare(model)
        self._prepared = None if self.optimizer is None else self.accelerator.prepare(self.optimizer)
        stepping.begin(self.optimizer)
        self._loss_function = loss_function
        self._batch: Any = None
        self._loss: Any = None

    def micro_step(self, batch: Any) -> None:
        """Move a batch from the CPU to the device as a prepared data loader does; run forward and backward."""
        from accelerate.utils import send_to_device

        self._batch = send_to_device(batch, self.accelerator.device)
        self._loss = loss_of(call(self.model, self._batch), self._batch, self._loss_function)
        told = stepping.backward_options(self.optimizer)
        if stepping.updates_in_backward(self.optimizer):
            told["learning_rate"] = stepping.LEARNING_RATE
        self.accelerator.backward(self._loss, **told)

    def optimizer_step(self) -> None:
        """Clip gradients as the configuration says, and step the optimizer."""
        self.accelerator.gradient_state._set_sync_gradients(True)
        if self.training.max_grad_norm is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.training.max_grad_norm)
        if self._prepared is not None:
            stepping.step(self.optimizer, self._again, through=self._prepared)

    def _again(self) -> Any:
        self.zero_grad()
        self.micro_step(self._batch)
        return self._loss

    def zero_grad(self) -> None:
        """Clear the gradients as the configuration says."""
        cleared = self.model if self._prepared is None else self._prepared
        cleared.zero_grad(set_to_none=self.training.zero_grad_set_to_none)


def clean_state() -> None:
    """Forget what an earlier loop in this process made Accelerate assume: precision, device, accumulation.

    Raises:
        MissingPackageError: accelerate is not installed.
    """
    try:
        from accelerate.state import AcceleratorState, GradientState
    except ImportError as error:
        raise MissingPackageError(
            "this loop needs accelerate, which is not installed: pip install accelerate, or take --loop plain."
        ) from error
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def on_cpu(model: Any) -> bool:
    """Return whether a module is on the CPU."""
    return all(tensor.device.type == "cpu" for tensor in model.parameters())
