"""Batches of images, as an image processor and the task's data collator make them.

Legend: `B` images, `C` channels, `H` and `W` pixels of a side, `T` frames of a video.
"""

from __future__ import annotations

from typing import Any

from memsim.errors import UsageError
from memsim.record.training.request import BatchRequest, MadeBatch
from memsim.record.training.token_inputs import encoded, sequence_labels, token_ids, token_length

DEFAULT_PIXELS = 224
"""Side of an image where the configuration says nothing: that of the image processors of ResNet, ConvNeXT, CvT and most
other classifiers."""
PROCESSOR_PIXELS = {"segformer": 512, "upernet": 512}
"""Sides that the family's image processor makes, where the configuration has none and it is not 224
(image_processing_segformer.py:62 @transformers 5.24; UperNet's models use the same processor)."""
VIDEO_MODELS = ("videomae", "vivit", "timesformer")
"""Families whose `pixel_values` are videos."""


def image_batch(asked: BatchRequest) -> MadeBatch:
    """Return `pixel_values` and the task's labels, on the CPU.

    Raises:
        UsageError: a sequence length, which images do not have.
    """
    if asked.seq_len is not None:
        raise UsageError(
            f"{type(asked.model).__name__} takes images, which have no seq_len: leave it out. Their size follows from "
            "the configuration's image_size."
        )
    height, width = image_sides(asked)
    pixels = pixel_values(asked, (asked.batch_size,))
    said = (_size_sentence(asked, height, width),)
    return MadeBatch(tensors={"pixel_values": pixels, **_labels(asked, height, width)}, assumptions=said)


def caption_batch(asked: BatchRequest) -> MadeBatch:
    """Return as many captions as images, for models that learn which belong together."""
    length = token_length(asked)
    height, width = image_sides(asked)
    ids = token_ids(asked, (asked.batch_size, length))
    batch = {**encoded(asked, ids), "pixel_values": pixel_values(asked, (asked.batch_size,))}
    if "return_loss" in asked.takes and asked.task != "base":
        batch["return_loss"] = True
    said = (f"Captions of {length:,} tokens, as many as images.", _size_sentence(asked, height, width))
    return MadeBatch(tensors=batch, assumptions=said)


def pixel_values(asked: BatchRequest, leading: tuple[int, ...]) -> Any:
    """Return `[*leading, C, H, W]` numbers; `[*leading, T, C, H, W]` for video models."""
    height, width = image_sides(asked)
    frames = (asked.config.num_frames,) if asked.config.model_type in VIDEO_MODELS else ()
    return numbers(asked, (*leading, *frames, num_channels(asked.config), height, width))


def numbers(asked: BatchRequest, shape: tuple[int, ...]) -> Any:
    """Return a tensor of different numbers from -1 to 1; some models take an image of zeros for padding."""
    import torch

    numel = 1
    for size in shape:
        numel *= size
    return torch.linspace(-1, 1, numel).to(getattr(torch, asked.float_dtype)).reshape(shape)


def image_sides(asked: BatchRequest) -> tuple[int, int]:
    """Return height and width of the images that a model is fed with."""
    given = asked.changes.get("image_size")
    if given:
        return given, given
    stated = stated_sides(asked.config)
    if stated is None:
        side = PROCESSOR_PIXELS.get(asked.config.model_type, DEFAULT_PIXELS)
        return side, side
    return stated


def stated_sides(config: Any) -> tuple[int, int] | None:
    """Return the `image_size` of a configuration or of its vision part; `None` where neither has one."""
    for part in (config, getattr(config, "vision_config", None), getattr(config, "backbone_config", None)):
        size = getattr(part, "image_size", None)
        if isinstance(size, dict):
            size = (size.get("height"), size.get("width"))
        if isinstance(size, (list, tuple)) and len(size) == 2 and all(isinstance(side, int) for side in size):
            return size[0], size[1]
        if isinstance(size, int) and size > 0:
            return size, size
    return None


def num_channels(config: Any) -> int:
    """Return the channels of the images that a model is fed with: its configuration's, or 3."""
    for part in (config, getattr(config, "vision_config", None), getattr(config, "backbone_config", None)):
        for key in ("num_channels", "in_channels", "in_chans"):
            if isinstance(channels := getattr(part, key, None), int):
                return channels
    return 3


def patches_of(config: Any, height: int, width: int) -> int:
    """Return the number of patches of an image."""
    patch = config.patch_size
    rows, columns = patch if isinstance(patch, (list, tuple)) else (patch, patch)
    return int((height // rows) * (width // columns))


def _size_sentence(asked: BatchRequest, height: int, width: int) -> str:
    from_config = stated_sides(asked.config) is not None or "image_size" in asked.changes
    return f"Images of {height} x {width} pixels{'' if from_config else ', as the image processor makes them'}."


def _labels(asked: BatchRequest, height: int, width: int) -> dict[str, Any]:
    import torch

    if asked.task == "masked-image-modeling" or (asked.task == "pretraining" and "bool_masked_pos" in asked.takes):
        return _masked(asked, height, width)
    if "labels" not in asked.takes or asked.task in {"base", ""}:
        return {}
    if asked.task == "semantic-segmentation":
        return {"labels": torch.zeros(asked.batch_size, height, width, dtype=torch.long)}
    if asked.task in {"image-classification", "pretraining"}:
        return {"labels": sequence_labels(asked)}
    return {}


def _masked(asked: BatchRequest, height: int, width: int) -> dict[str, Any]:
    """Return the mask over patches, half of them, and BEiT's visual tokens of those."""
    import torch

    num_patches = patches_of(asked.config, height, width)
    if asked.config.model_type in VIDEO_MODELS:
        num_patches *= asked.config.num_frames // asked.config.tubelet_size
    mask = torch.zeros(asked.batch_size, num_patches, dtype=torch.bool)
    mask[:, ::2] = True
    if type(asked.model).__name__ == "BeitForMaskedImageModeling":
        return {"bool_masked_pos": mask, "labels": torch.zeros(int(mask.sum()), dtype=torch.long)}
    return {"bool_masked_pos": mask}
