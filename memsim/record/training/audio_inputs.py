"""Batches of sound, as a feature extractor and the task's data collator make them.

Legend: `B` recordings, `N` samples of each, `F` frames, `M` frequencies, `S` tokens of a transcription.
"""

from __future__ import annotations

from typing import Any

from memsim.errors import UsageError
from memsim.record.training.image_inputs import numbers
from memsim.record.training.lengths import DEFAULT_TOKENS
from memsim.record.training.request import BatchRequest, MadeBatch
from memsim.record.training.token_inputs import sequence_labels, token_ids

DEFAULT_SAMPLES = 160_000
"""Samples of a recording where the user gives none: 10 seconds at 16,000 a second."""
DEFAULT_FRAMES = 1_000
"""Frames of a spectrogram where neither user nor model gives any: 10 seconds at 100 a second."""
SAMPLES_PER_LABEL = 1_600
"""Samples for each character of a transcription: ten characters a second."""
FRAMES_PER_LABEL = 10
"""Frames for each character."""


def audio_batch(asked: BatchRequest) -> MadeBatch:
    """Return sound with the task's labels, on the CPU.

    `seq_len` is what varies: tokens of the transcription where the model always hears the same time (Whisper), else
    samples or frames of the recording.
    """
    raw = "input_values" in asked.takes and not _is_spectrogram(asked.config)
    return _samples(asked) if raw else _spectrogram(asked)


def _samples(asked: BatchRequest) -> MadeBatch:
    num_samples = asked.seq_len or DEFAULT_SAMPLES
    batch: dict[str, Any] = {"input_values": numbers(asked, (asked.batch_size, num_samples))}
    # Feature extractors mask where layers are normalised, not where groups are (Wav2Vec2FeatureExtractor's
    # documentation of return_attention_mask).
    if "attention_mask" in asked.takes and getattr(asked.config, "feat_extract_norm", "layer") == "layer":
        batch["attention_mask"] = _mask((asked.batch_size, num_samples))
    labels = _labels(asked, num_samples, SAMPLES_PER_LABEL)
    said = f"Recordings of {num_samples:,} samples ({num_samples / 16_000:g} seconds at 16 kHz), none of them padding."
    return MadeBatch(tensors={**batch, **labels}, assumptions=(said, *_label_sentence(labels)))


def _spectrogram(asked: BatchRequest) -> MadeBatch:
    shape, varies = _spectrogram_shape(asked)
    name = "input_features" if "input_features" in asked.takes else "input_values"
    batch: dict[str, Any] = {name: numbers(asked, shape)}
    frames = max(shape[1:])
    if "attention_mask" in asked.takes and varies:
        batch["attention_mask"] = _mask((asked.batch_size, shape[1]))
    labels = _labels(asked, frames, FRAMES_PER_LABEL, fixed=not varies)
    said = f"Spectrograms of {' x '.join(str(size) for size in shape[1:])}."
    return MadeBatch(tensors={**batch, **labels}, assumptions=(said, *_label_sentence(labels)))


def _spectrogram_shape(asked: BatchRequest) -> tuple[tuple[int, ...], bool]:
    """Return the shape, and whether its number of frames is for the user to choose."""
    config, size = asked.config, asked.batch_size
    if hasattr(config, "max_source_positions") and hasattr(config, "num_mel_bins"):
        return (size, config.num_mel_bins, 2 * config.max_source_positions), False  # Whisper: the convolution halves
    if hasattr(config, "max_length") and hasattr(config, "num_mel_bins") and _is_spectrogram(config):
        return (size, config.max_length, config.num_mel_bins), False  # AST
    for key in ("input_feat_per_channel", "feature_projection_input_dim", "num_mel_bins"):
        for part in (config, getattr(config, "encoder_config", None)):
            if isinstance(width := getattr(part, key, None), int):
                return (size, asked.seq_len or DEFAULT_FRAMES, width), True
    raise UsageError(
        f"memsim does not know the spectrograms of {type(asked.model).__name__}. In Python, give a batch of your own."
    )


def _is_spectrogram(config: Any) -> bool:
    return bool(config.model_type == "audio-spectrogram-transformer")


def _mask(shape: tuple[int, ...]) -> Any:
    import torch

    return torch.ones(shape, dtype=torch.int32)  # feature extractors make NumPy int32


def _labels(asked: BatchRequest, heard: int, per_label: int, *, fixed: bool = False) -> dict[str, Any]:
    import torch

    if asked.is_encoder_decoder and asked.task in {"base", ""} and "decoder_input_ids" in asked.takes:
        return {"decoder_input_ids": token_ids(asked, (asked.batch_size, _num_tokens(asked, heard, per_label, fixed)))}
    if asked.task == "pretraining" and "sampled_negative_indices" in asked.takes:
        return _contrast(asked, heard)
    if asked.task in {"base", ""} or "labels" not in asked.takes:
        return {}
    if asked.task in {"audio-classification", "audio-xvector"}:
        return {"labels": sequence_labels(asked)}
    if asked.task == "audio-frame-classification":
        frames = int(asked.model._get_feat_extract_output_lengths(torch.tensor(heard)))
        return {"labels": torch.zeros(asked.batch_size, frames, asked.config.num_labels)}
    return {"labels": token_ids(asked, (asked.batch_size, _num_tokens(asked, heard, per_label, fixed)))}


def _contrast(asked: BatchRequest, heard: int) -> dict[str, Any]:
    """Return which frames are masked, every other one, and for each the frames that it is told apart from."""
    import torch

    frames = int(asked.model._get_feat_extract_output_lengths(torch.tensor(heard)))
    mask = torch.zeros(asked.batch_size, frames, dtype=torch.bool)
    mask[:, ::2] = True
    others = torch.arange(frames * asked.config.num_negatives).reshape(frames, -1) % frames
    first = frames * torch.arange(asked.batch_size).reshape(-1, 1, 1)
    return {"mask_time_indices": mask, "sampled_negative_indices": others + first}


def _num_tokens(asked: BatchRequest, heard: int, per_label: int, fixed: bool) -> int:
    """Return the tokens of a transcription: what the user chooses where the time is fixed, else in proportion."""
    given = asked.changes.get("label_tokens")
    if given:
        return int(given)
    if not fixed:
        return max(heard // per_label, 1)
    most = getattr(asked.config, "max_target_positions", None) or DEFAULT_TOKENS
    num_tokens = asked.seq_len or min(most, DEFAULT_TOKENS)
    if num_tokens > most:
        raise UsageError(f"seq_len {num_tokens:,} is longer than the {most:,} tokens that the model can write.")
    return int(num_tokens)


def _label_sentence(labels: dict[str, Any]) -> tuple[str, ...]:
    label = labels.get("labels", labels.get("decoder_input_ids"))
    if label is None or label.dim() != 2 or label.is_floating_point():
        return ()
    return (f"Transcriptions of {label.shape[1]:,} tokens.",)
