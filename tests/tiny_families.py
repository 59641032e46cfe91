"""Tiny models of twenty real families, each with a batch that gives a loss."""

from __future__ import annotations

import torch
import transformers

_NARROW = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 60,
    "max_position_embeddings": 32,
}
_GQA = {**_NARROW, "num_key_value_heads": 1, "head_dim": 8}
_LAYERS = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 60, "n_positions": 32}

FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "bert": ("AutoModelForMaskedLM", _NARROW),
    "roberta": ("AutoModelForMaskedLM", _NARROW),
    "electra": ("AutoModelForTokenClassification", {**_NARROW, "embedding_size": 16}),
    "albert": ("AutoModelForSequenceClassification", {**_NARROW, "embedding_size": 8}),
    "deberta-v2": ("AutoModelForMaskedLM", {**_NARROW, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "distilbert": (
        "AutoModelForMaskedLM",
        {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2, "vocab_size": 60, "max_position_embeddings": 32},
    ),
    "modernbert": ("AutoModelForMaskedLM", {**_NARROW, "pad_token_id": 0, "local_attention": 8}),
    "gpt2": ("AutoModelForCausalLM", _LAYERS),
    "gpt_neox": ("AutoModelForCausalLM", _NARROW),
    "opt": (
        "AutoModelForCausalLM",
        {
            **{k: v for k, v in _NARROW.items() if k != "intermediate_size"},
            "ffn_dim": 24,
            "word_embed_proj_dim": 16,
        },
    ),
    "bloom": ("AutoModelForCausalLM", {"hidden_size": 16, "n_layer": 2, "n_head": 2, "vocab_size": 60}),
    "llama": ("AutoModelForCausalLM", _GQA),
    "mistral": ("AutoModelForCausalLM", _GQA),
    "qwen2": ("AutoModelForCausalLM", _GQA),
    "qwen3_moe": (
        "AutoModelForCausalLM",
        {**_GQA, "moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2},
    ),
    "gemma2": ("AutoModelForCausalLM", _GQA),
    "phi": ("AutoModelForCausalLM", _NARROW),
    "t5": (
        "AutoModelForSeq2SeqLM",
        {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": 60},
    ),
    "bart": (
        "AutoModelForSeq2SeqLM",
        {
            "d_model": 16,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 24,
            "decoder_ffn_dim": 24,
            "vocab_size": 60,
            "max_position_embeddings": 32,
            "forced_eos_token_id": None,
        },
    ),
    "vit": (
        "AutoModelForImageClassification",
        {**{k: _NARROW[k] for k in list(_NARROW)[:4]}, "image_size": 8, "patch_size": 4},
    ),
}
"""Auto class and configuration by `model_type`."""


def tiny(family: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Return a model in training mode with its own initial weights, and a batch of two."""
    auto, options = FAMILIES[family]
    torch.manual_seed(0)
    special = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 1}
    config = transformers.AutoConfig.for_model(family, **{**special, **options})
    model = getattr(transformers, auto).from_config(config).train()
    if family == "vit":
        return model, {"pixel_values": torch.randn(2, 3, 8, 8), "labels": torch.tensor([0, 1])}
    tokens = torch.randint(4, 60, (2, 8))
    labels = {"AutoModelForTokenClassification": tokens % 2, "AutoModelForSequenceClassification": torch.tensor([0, 1])}
    return model, {"input_ids": tokens, "labels": labels.get(auto, tokens)}
