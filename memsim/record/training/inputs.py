"""An example batch for a model: what a user's data loader would hand to it, from its task and its own signature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsim.config import TrainingConfig
from memsim.errors import ModelError
from memsim.record.training.audio_inputs import audio_batch
from memsim.record.training.build import runs_every_layer
from memsim.record.training.image_inputs import caption_batch, image_batch
from memsim.record.training.lengths import default_seq_len
from memsim.record.training.multimodal_inputs import image_text_batch
from memsim.record.training.request import BatchRequest, MadeBatch, request
from memsim.record.training.token_inputs import token_batch

__all__ = ["assumptions", "default_seq_len", "example_batch", "to_device"]

_LOSSES = frozenset(
    ["labels", "return_loss", "start_positions", "next_sentence_label", "bool_masked_pos", "mask_time_indices"]
)
"""Arguments with which models return a loss."""


def example_batch(
    model: Any, training: TrainingConfig, *, device: Any = None, changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a batch with labels for a model of transformers, made on the CPU and moved key by key.

    Args:
        model: the model, on any device.
        training: `task`, `batch_size`, `seq_len` and `dtype` are used.
        device: where it is moved; `None` leaves it on the CPU.
        changes: settings beside its size; keys of `request.CHANGES`.

    Raises:
        UsageError: the sequences are longer than the model's positions, or the model has no sequences.
        UnknownNameError: `changes` has an unknown key.
        ModelError: memsim knows no inputs for this model.
    """
    batch = _make(request(model, training, changes)).tensors
    return batch if device is None else to_device(batch, device)


def assumptions(model: Any, training: TrainingConfig, changes: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Return what is taken for granted in the example batch, the loss and the model's forward, in sentences.

    Raises:
        MemsimError: as `example_batch`.
    """
    asked = request(model, training, changes)
    made = _make(asked)
    said = list(made.assumptions)
    if asked.float_dtype != "float32" and any(_is_float(value) for value in made.tensors.values()):
        said.append(f"Floating-point inputs are {asked.float_dtype} like the weights.")
    if not _LOSSES & set(made.tensors):
        said.append("The loss is the mean of the model's first output in float32.")
    if runs_every_layer(model):
        said.append("Every layer runs in every step: layerdrop is 0.")
    return tuple(said)


def to_device(batch: Any, device: Any) -> Any:
    """Return the batch with every tensor moved in order, as `{k: v.to(device) for k, v in batch.items()}` does."""
    if isinstance(batch, Mapping):
        return {name: to_device(value, device) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch.to(device) if hasattr(batch, "to") else batch


def _make(asked: BatchRequest) -> MadeBatch:
    takes = asked.takes
    if "input_ids" in takes and "pixel_values" in takes:
        if asked.task == "zero-shot-image-classification" or "return_loss" in takes:
            return caption_batch(asked)
        return token_batch(asked) if asked.task == "causal-lm" else image_text_batch(asked)
    if "input_features" in takes or "input_values" in takes:
        return audio_batch(asked)
    if "input_ids" in takes:
        return token_batch(asked)
    if "pixel_values" in takes:
        return image_batch(asked)
    raise ModelError(
        f"memsim makes no inputs for {type(asked.model).__name__}, whose forward takes "
        f"{', '.join(sorted(takes))}.\nIn Python, give a batch of your own."
    )


def _is_float(value: Any) -> bool:
    return bool(hasattr(value, "is_floating_point") and value.is_floating_point())
