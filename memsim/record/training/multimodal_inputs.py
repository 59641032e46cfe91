"""Batches of text with one image each, as the family's processor makes them.

Legend: `B` examples, `S` tokens of each with the image's placeholders, `C` channels, `H` and `W` pixels, `P` patches.
Every family was read in its `processing_*.py` and `image_processing_*.py` of transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memsim.errors import ModelError, UsageError
from memsim.record.training.image_inputs import image_sides, num_channels, numbers
from memsim.record.training.lengths import check_seq_len, default_seq_len
from memsim.record.training.request import BatchRequest, MadeBatch
from memsim.record.training.token_inputs import encoded, token_ids, token_labels

PATCHED_PIXELS = 448
"""Side of the image for families that take any size and patch it themselves: 256 tokens for Qwen2-VL. The user's image
decides; `image_size` changes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One image for each example."""

    tensors: dict[str, Any]
    """What the image processor makes."""
    num_tokens: int
    """Places of the image in the text."""
    height: int
    """Pixels."""
    width: int
    """Pixels."""


def image_text_batch(asked: BatchRequest) -> MadeBatch:
    """Return text with one image each and the labels of the text, on the CPU.

    `seq_len` counts the places of the image too; without it there are as many tokens of text as in a text model.

    Raises:
        ModelError: memsim does not know how this family puts images into text.
        UsageError: the sequence is too short for the image.
    """
    if asked.changes.get("num_images", 1) == 0:
        return _text_alone(asked)
    picture = _picture(asked)
    length = _length(asked, picture)
    ids = token_ids(asked, (asked.batch_size, length))
    ids[:, : picture.num_tokens] = _placeholder(asked, picture)
    batch = {**encoded(asked, ids), **picture.tensors, **_types(asked, picture, ids)}
    labels = token_labels(asked, ids)
    said = (
        f"Each example has {length:,} tokens, {picture.num_tokens:,} of them places of its one image, which is "
        f"{picture.height} x {picture.width} pixels large."
    )
    return MadeBatch(tensors={**batch, **labels}, assumptions=(said,))


def families() -> tuple[str, ...]:
    """Return the model types whose images memsim can make."""
    return tuple(sorted(_FAMILIES))


def _text_alone(asked: BatchRequest) -> MadeBatch:
    from memsim.record.training.token_inputs import token_batch

    made = token_batch(asked)
    return MadeBatch(tensors=made.tensors, assumptions=(*made.assumptions, "No example has an image."))


def _picture(asked: BatchRequest) -> Picture:
    make = _FAMILIES.get(asked.config.model_type)
    if make is None and "image_grid_thw" in asked.takes:
        make = _grid
    if make is None:
        raise ModelError(
            f"memsim does not know how {asked.config.model_type} puts an image into text. It knows: "
            f"{', '.join(families())}.\nIn Python, give a batch of your own."
        )
    return make(asked)


def _length(asked: BatchRequest, picture: Picture) -> int:
    if asked.seq_len is None:
        return default_seq_len(asked.config.to_dict(), asked.task) + picture.num_tokens
    if asked.seq_len <= picture.num_tokens:
        raise UsageError(
            f"seq_len {asked.seq_len:,} has no place for the image, which takes {picture.num_tokens:,} tokens; give "
            f"at least {picture.num_tokens + 1:,}."
        )
    check_seq_len(asked.model, asked.seq_len)
    return asked.seq_len


def _placeholder(asked: BatchRequest, picture: Picture) -> int:
    if not picture.num_tokens:
        return 0
    for key in ("image_token_id", "image_token_index"):
        if isinstance(id_ := getattr(asked.config, key, None), int):
            return id_
    raise ModelError(
        f"the {asked.config.model_type} configuration has no image_token_id, the token that stands for images: "
        "add it to the config.json."
    )


def _types(asked: BatchRequest, picture: Picture, ids: Any) -> dict[str, Any]:
    """Return which tokens are an image's: `mm_token_type_ids`, and what Gemma 3 and PaliGemma call `token_type_ids`."""
    import torch

    kinds = torch.zeros_like(ids)
    if asked.config.model_type == "paligemma":
        kinds[:, picture.num_tokens + 1 :] = 1  # prefix 0, suffix 1 (processing_paligemma.py)
    else:
        kinds[:, : picture.num_tokens] = 1
    if "mm_token_type_ids" in asked.takes:
        return {"mm_token_type_ids": kinds}
    return {"token_type_ids": kinds} if asked.config.model_type in {"gemma3", "paligemma"} else {}


def _plain(asked: BatchRequest, num_tokens: int, *leading: int, **more: Any) -> Picture:
    """Return `[B, *leading, C, H, W]` pixels that stand for so many tokens."""
    height, width = image_sides(asked)
    shape = (asked.batch_size, *leading, num_channels(asked.config), height, width)
    tensors = {"pixel_values": numbers(asked, shape), **more}
    return Picture(tensors=tensors, num_tokens=num_tokens, height=height, width=width)


def _num_patches(asked: BatchRequest) -> int:
    height, width = image_sides(asked)
    patch = asked.config.vision_config.patch_size
    return int((height // patch) * (width // patch))


def _llava(asked: BatchRequest) -> Picture:
    class_token = asked.config.vision_feature_select_strategy != "default"
    return _plain(asked, _num_patches(asked) + class_token)


def _paligemma(asked: BatchRequest) -> Picture:
    return _plain(asked, _num_patches(asked))


def _gemma3(asked: BatchRequest) -> Picture:
    return _plain(asked, asked.config.mm_tokens_per_image)


def _gemma4(asked: BatchRequest) -> Picture:
    """Patches of an image that fills the processor's 280 places, 14 rows of 20 (image_processing_gemma4.py:147)."""
    import torch

    vision = asked.config.vision_config
    rows, columns = 14 * vision.pooling_kernel_size, 20 * vision.pooling_kernel_size
    positions = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).flip(1)
    patches = (asked.batch_size, rows * columns, 3 * vision.patch_size**2)
    tensors = {
        "pixel_values": numbers(asked, patches),
        "image_position_ids": positions.repeat(asked.batch_size, 1, 1),
    }
    return Picture(
        tensors=tensors, num_tokens=14 * 20, height=rows * vision.patch_size, width=columns * vision.patch_size
    )


def _idefics3(asked: BatchRequest) -> Picture:
    """One tile, the image not split."""
    import torch

    height, width = image_sides(asked)
    mask = torch.ones(asked.batch_size, 1, height, width, dtype=torch.long)
    num_tokens = _num_patches(asked) // asked.config.scale_factor**2
    return _plain(asked, num_tokens, 1, pixel_attention_mask=mask)


def _idefics2(asked: BatchRequest) -> Picture:
    import torch

    height, width = image_sides(asked)
    mask = torch.ones(asked.batch_size, 1, height, width, dtype=torch.long)
    return _plain(asked, asked.config.perceiver_config.resampler_n_latents, 1, pixel_attention_mask=mask)


def _mllama(asked: BatchRequest) -> Picture:
    """One image of four tiles, and one token in the text, which sees it through cross-attention."""
    import torch

    size, tiles = asked.batch_size, asked.config.vision_config.max_num_tiles
    ratios = asked.config.vision_config.supported_aspect_ratios
    squarest = min(range(len(ratios)), key=lambda i: (-ratios[i][0] * ratios[i][1], abs(ratios[i][0] - ratios[i][1])))
    length = asked.seq_len or default_seq_len(asked.config.to_dict(), asked.task) + 1
    return _plain(
        asked,
        1,
        1,
        tiles,
        aspect_ratio_ids=torch.full((size, 1), squarest + 1),
        aspect_ratio_mask=torch.ones(size, 1, tiles, dtype=torch.long),
        cross_attention_mask=torch.ones(size, length, 1, tiles, dtype=torch.long),
    )


def _blip2(asked: BatchRequest) -> Picture:
    picture = _plain(asked, asked.config.num_query_tokens)
    if "qformer_input_ids" not in asked.takes:
        return picture
    prompt = encoded(asked, token_ids(asked, (asked.batch_size, 32)) % asked.config.qformer_config.vocab_size)
    tensors = {**picture.tensors, **{f"qformer_{name}": value for name, value in prompt.items()}}
    return Picture(tensors=tensors, num_tokens=picture.num_tokens, height=picture.height, width=picture.width)


def _git(asked: BatchRequest) -> Picture:
    return _plain(asked, 0)


def _florence2(asked: BatchRequest) -> Picture:
    """Every pixel of the last feature map, and their mean; the processor's images are 768 pixels large."""
    side = asked.changes.get("image_size") or 768
    stride = 1
    for step in asked.config.vision_config.patch_stride:
        stride *= step
    pixels = numbers(asked, (asked.batch_size, num_channels(asked.config), side, side))
    return Picture(tensors={"pixel_values": pixels}, num_tokens=(side // stride) ** 2 + 1, height=side, width=side)


def _llama4(asked: BatchRequest) -> Picture:
    """One tile: `[B, C, H, W]`."""
    ratio = asked.config.vision_config.pixel_shuffle_ratio
    return _plain(asked, int(_num_patches(asked) * ratio**2))


def _internvl(asked: BatchRequest) -> Picture:
    height, width = image_sides(asked)
    rows, columns = asked.config.vision_config.patch_size
    tokens = (height // rows) * (width // columns) * asked.config.downsample_ratio**2
    return _plain(asked, int(tokens))


def _mistral3(asked: BatchRequest) -> Picture:
    import torch

    vision = asked.config.vision_config
    unit = vision.patch_size * getattr(asked.config, "spatial_merge_size", 1)
    side = (asked.changes.get("image_size") or PATCHED_PIXELS) // unit
    pixels = side * unit
    tensors = {
        "pixel_values": numbers(asked, (asked.batch_size, num_channels(asked.config), pixels, pixels)),
        "image_sizes": torch.full((asked.batch_size, 2), pixels),
    }
    return Picture(tensors=tensors, num_tokens=side**2, height=pixels, width=pixels)


def _grid(asked: BatchRequest) -> Picture:
    """Flattened patches of all images and their grids: `[B * P, C * frames * patch * patch]`, `[B, 3]`."""
    import torch

    vision = asked.config.vision_config
    unit = vision.patch_size * vision.spatial_merge_size
    side = (asked.changes.get("image_size") or PATCHED_PIXELS) // unit * vision.spatial_merge_size
    width = num_channels(asked.config) * getattr(vision, "temporal_patch_size", 1) * vision.patch_size**2
    tensors = {
        "pixel_values": numbers(asked, (asked.batch_size * side**2, width)),
        "image_grid_thw": torch.tensor([[1, side, side]] * asked.batch_size),
    }
    pixels = side * vision.patch_size
    return Picture(tensors=tensors, num_tokens=(side // vision.spatial_merge_size) ** 2, height=pixels, width=pixels)


_FAMILIES: dict[str, Callable[[BatchRequest], Picture]] = {
    "llava": _llava,
    "vipllava": _paligemma,
    "paligemma": _paligemma,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "idefics2": _idefics2,
    "idefics3": _idefics3,
    "smolvlm": _idefics3,
    "mllama": _mllama,
    "blip-2": _blip2,
    "instructblip": _blip2,
    "git": _git,
    "florence2": _florence2,
    "llama4": _llama4,
    "internvl": _internvl,
    "mistral3": _mistral3,
    "qwen2_vl": _grid,
    "qwen2_5_vl": _grid,
    "qwen3_vl": _grid,
    "qwen3_vl_moe": _grid,
    "qwen3_5": _grid,
    "qwen3_5_moe": _grid,
}
