"""An example batch for a model: what a user's data loader would hand to it, from its task and its own signature."""

from __future__ import annotations

from typing import Any

from memsim.config import TrainingConfig
from memsim.errors import ModelError
from memsim.record.training.lengths import default_seq_len
from memsim.record.training.request import BatchRequest, request
from memsim.record.training.token_inputs import token_batch

__all__ = ["default_seq_len", "example_batch", "to_device"]


def example_batch(model: Any, training: TrainingConfig, *, device: Any = None) -> dict[str, Any]:
    """Return a batch with labels for a model of transformers, made on the CPU and moved key by key.

    Args:
        model: the model, on any device.
        training: `task`, `batch_size`, `seq_len` and `dtype` are used.
        device: where it is moved; `None` leaves it on the CPU.

    Raises:
        UsageError: the sequences are longer than the model's positions.
        ModelError: memsim knows no inputs for this model.
    """
    batch = _make(request(model, training))
    return batch if device is None else to_device(batch, device)


def to_device(batch: dict[str, Any], device: Any) -> dict[str, Any]:
    """Return the batch with every tensor moved in order, as `{k: v.to(device) for k, v in batch.items()}` does."""
    return {name: value.to(device) if hasattr(value, "to") else value for name, value in batch.items()}


def _make(asked: BatchRequest) -> dict[str, Any]:
    if "input_ids" in asked.takes:
        return token_batch(asked)
    raise ModelError(
        f"memsim makes no inputs for {type(asked.model).__name__}, whose forward takes "
        f"{', '.join(sorted(asked.takes))}.\nIn Python, give a batch of your own."
    )
