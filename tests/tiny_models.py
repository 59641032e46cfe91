"""Tiny configurations of real families, for tests that build and really train them."""

from __future__ import annotations

from typing import Any, NamedTuple


class Tiny(NamedTuple):
    """A model small enough to train in milliseconds."""

    task: str
    config: dict[str, Any]
    untrained: tuple[str, ...] = ()
    """Parts of the names of parameters that get no gradient, since the forward with this batch does not use them."""
    seq_len: int | None = 16
    changes: dict[str, int] = {}  # noqa: RUF012
    """Settings of the batch: see `memsim.record.training.request.CHANGES`."""


_BERT = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "vocab_size": 64,
    "max_position_embeddings": 32,
}
_LLAMA = {**_BERT, "num_key_value_heads": 1, "head_dim": 4}
_BART = {
    "d_model": 8,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": 32,
}
_T5 = {"d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2, "vocab_size": 64}
_VIT = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "image_size": 16,
    "patch_size": 8,
}
_SPEECH = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "conv_dim": [8, 8],
    "conv_kernel": [10, 8],
    "conv_stride": [5, 4],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": 20,
    "mask_time_prob": 0.0,
}
_SPECIAL = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
_START = {"pad_token_id": 0, "decoder_start_token_id": 1, "bos_token_id": 1, "eos_token_id": 2}
_CLIP_TEXT = {**_BERT, "projection_dim": 8, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
_QWEN_VISION = {"depth": 2, "embed_dim": 8, "hidden_size": 8, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14}
_MROPE = {"rope_type": "default", "mrope_section": [1, 1, 0], "rope_theta": 10000.0}

MODELS = {
    "gpt2": Tiny("causal-lm", {"n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 64, "n_positions": 32}),
    "gpt_neox": Tiny("causal-lm", _BERT),
    "opt": Tiny("causal-lm", {**_BERT, "ffn_dim": 12, "word_embed_proj_dim": 8}),
    "bloom": Tiny("causal-lm", {"hidden_size": 8, "n_layer": 2, "n_head": 2, "vocab_size": 64}),
    "falcon": Tiny("causal-lm", _BERT),
    "llama": Tiny("causal-lm", _LLAMA),
    "mistral": Tiny("causal-lm", _LLAMA),
    "qwen2": Tiny("causal-lm", _LLAMA),
    "qwen3": Tiny("causal-lm", _LLAMA),
    "gemma": Tiny("causal-lm", _LLAMA),
    "gemma2": Tiny("causal-lm", _LLAMA),
    "phi": Tiny("causal-lm", _BERT),
    "mixtral": Tiny("causal-lm", {**_LLAMA, "num_local_experts": 2, "num_experts_per_tok": 2}),
    "mamba": Tiny("causal-lm", {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 64, "state_size": 4}),
    "rwkv": Tiny("causal-lm", {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 64, "context_length": 16}),
    "bert": Tiny("masked-lm", _BERT),
    "bert-pretraining": Tiny("pretraining", _BERT),
    "bert-next": Tiny("next-sentence-prediction", _BERT),
    "bert-base": Tiny("base", _BERT, untrained=("pooler",)),
    "roberta": Tiny("token-classification", {**_BERT, "max_position_embeddings": 34}),
    "distilbert": Tiny(
        "sequence-classification",
        {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12, "vocab_size": 64, "max_position_embeddings": 32},
    ),
    "deberta-v2": Tiny("question-answering", _BERT),
    "electra": Tiny("multiple-choice", {**_BERT, "embedding_size": 8}),
    "electra-pretraining": Tiny("pretraining", {**_BERT, "embedding_size": 8}),
    "albert": Tiny("masked-lm", {**_BERT, "embedding_size": 8}),
    "modernbert": Tiny("masked-lm", {**_BERT, **dict.fromkeys(_SPECIAL, 0), "global_attn_every_n_layers": 2}),
    "t5": Tiny("seq2seq-lm", _T5),
    "t5-classifier": Tiny("sequence-classification", {**_T5, "eos_token_id": 1}),
    "bart": Tiny("seq2seq-lm", _BART),
    "bart-classifier": Tiny("sequence-classification", _BART),
    "marian": Tiny("seq2seq-lm", {**_BART, "decoder_start_token_id": 3, "pad_token_id": 3}),
    "vit": Tiny("image-classification", _VIT, seq_len=None),
    "vit-masked": Tiny("masked-image-modeling", {**_VIT, "encoder_stride": 8}, seq_len=None),
    "swin": Tiny(
        "image-classification",
        {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
        seq_len=None,
    ),
    "resnet": Tiny(
        "image-classification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
        seq_len=None,
        changes={"image_size": 32},
    ),
    "convnext": Tiny(
        "image-classification",
        {"hidden_sizes": [8, 16, 16, 16], "depths": [1] * 4},
        seq_len=None,
        changes={"image_size": 32},
    ),
    "segformer": Tiny(
        "semantic-segmentation",
        {
            "hidden_sizes": [8, 8, 8, 8],
            "depths": [1] * 4,
            "num_attention_heads": [1, 1, 2, 2],
            "decoder_hidden_size": 8,
        },
        seq_len=None,
        changes={"image_size": 64},
    ),
    "clip": Tiny(
        "zero-shot-image-classification",
        {"text_config": _CLIP_TEXT, "vision_config": _VIT, "projection_dim": 8},
    ),
    "whisper": Tiny(
        "speech-seq2seq",
        {**_BART, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 16, **_START},
    ),
    "wav2vec2": Tiny("ctc", _SPEECH, seq_len=1600),
    "hubert": Tiny("audio-classification", _SPEECH, seq_len=1600),
    "wav2vec2-frames": Tiny("audio-frame-classification", _SPEECH, seq_len=1600),
    "llava": Tiny(
        "image-text-to-text",
        {
            "text_config": {**_LLAMA, "model_type": "llama"},
            "vision_config": {**_VIT, "model_type": "clip_vision_model", "projection_dim": 8},
            "image_token_index": 60,
        },
        untrained=("vision_tower.encoder.layers.1", "vision_tower.vision_model.encoder.layers.1", "post_layernorm"),
    ),
    "qwen2_vl": Tiny(
        "image-text-to-text",
        {
            "text_config": {**_LLAMA, "head_dim": None, "rope_parameters": _MROPE},
            "vision_config": _QWEN_VISION,
            "image_token_id": 60,
        },
        seq_len=280,
    ),
}
"""By family; a name with a dash and a word is the same family with another head."""


def family(name: str) -> str:
    """Return the `model_type` of a model."""
    heads = ("pretraining", "next", "base", "classifier", "masked", "frames")
    stem, _, head = name.rpartition("-")
    return stem if head in heads else name


def config_of(name: str, **more: Any) -> dict[str, Any]:
    """Return the configuration of a model."""
    return {"model_type": family(name), **MODELS[name].config, **more}
