"""What the names in a checkpoint tell by transformers' conventions: buffers, tied heads, owners' classes, tasks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from memsim.tensors import TensorSpec

_BUFFER = re.compile(
    r"(^|\.)(position_ids|token_type_ids|inv_freq|masked_bias|num_batches_tracked|running_mean|running_var"
    r"|e_score_correction_bias|relative_position_index|relative_coords_table)$"
)
_CAUSAL_MASK = re.compile(r"(^|\.)(attn|attention)\.bias$")
_QUANTIZATION_BUFFER = re.compile(
    r"(scales?|scale_inv|qzeros|qweight|g_idx|absmax|quant_map|SCB|weight_format|zero_point)$"
)
_EMBEDDING = re.compile(r"(^|[._])(wte|wpe|shared|embed\w*|\w*embeddings?|relative_attention_bias)\.weight$")
_SHOWN = 100
_LEGACY = {"gamma": "weight", "beta": "bias"}

_INPUT_EMBEDDINGS = ("embed_tokens", "wte", "word_embeddings", "shared", "embed_in", "tok_embeddings", "word_embedding")
_OUTPUT_EMBEDDINGS = ("lm_head", "embed_out", "decoder", "vocab_projector", "output", "generator_lm_head")

_CONV1D_MODELS = frozenset({"gpt2", "openai-gpt", "imagegpt", "decision_transformer"})
"""Architectures whose projections are transformers' `Conv1D` (pytorch_utils.py @transformers 5.24), not `Linear`."""

_TASK_OF_SUFFIX = (
    ("ForSequenceClassification", "sequence-classification"),
    ("ForTokenClassification", "token-classification"),
    ("ForQuestionAnswering", "question-answering"),
    ("ForMultipleChoice", "multiple-choice"),
    ("ForNextSentencePrediction", "next-sentence-prediction"),
    ("ForMaskedLM", "masked-lm"),
    ("WithLMHeadModel", "masked-lm"),
    ("ForPreTraining", "pretraining"),
    ("ForCausalLM", "causal-lm"),
    ("LMHeadModel", "causal-lm"),
    ("ForImageClassification", "image-classification"),
    ("ForMaskedImageModeling", "masked-image-modeling"),
    ("ForSemanticSegmentation", "semantic-segmentation"),
    ("ForCTC", "ctc"),
    ("ForAudioFrameClassification", "audio-frame-classification"),
    ("ForAudioClassification", "audio-classification"),
    ("ForXVector", "audio-xvector"),
)


def canonical_name(name: str) -> str:
    """Return the name under which transformers loads a tensor: `LayerNorm.gamma` of old checkpoints is `.weight`."""
    owner, _, leaf = name.rpartition(".")
    return f"{owner}.{_LEGACY[leaf]}" if leaf in _LEGACY and owner.endswith("LayerNorm") else name


def shown_name(name: str) -> str:
    """Return a tensor's name for a sentence; a stranger may have written one without end."""
    return name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..."


def is_buffer(name: str, tensor: TensorSpec, *, quantized: bool) -> bool:
    """Return whether a module of transformers registers this name as a buffer.

    Integer tensors cannot be trained; all but packed weights (`.weight`, `Params4bit` of bitsandbytes) are buffers.
    """
    if _BUFFER.search(name) or (_CAUSAL_MASK.search(name) and len(tensor.shape) == 4):
        return True
    if quantized and _QUANTIZATION_BUFFER.search(name):
        return True
    return not tensor.is_floating_point and not name.endswith("weight")


def owner_classes(tensors: Mapping[str, TensorSpec], model_type: str) -> dict[str, str]:
    """Return the `torch.nn` class of each module that owns a matrix named `weight`, as far as its name tells."""
    matrix = "Conv1D" if model_type in _CONV1D_MODELS else "Linear"
    return {
        name.removesuffix(".weight"): "Embedding" if _EMBEDDING.search(name) else matrix
        for name, tensor in tensors.items()
        if name.endswith(".weight") and len(tensor.shape) == 2
    }


def tied_pair(tensors: Mapping[str, TensorSpec]) -> tuple[str, str] | None:
    """Return the names of the input and output embeddings where both are stored with one shape, else `None`."""
    first = _named(tensors, _INPUT_EMBEDDINGS)
    second = _named((n for n in tensors if n != first), _OUTPUT_EMBEDDINGS)
    return (first, second) if first and second and tensors[first].shape == tensors[second].shape else None


def own_task(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return class and task that `architectures` of a config names; empty strings where they are not known."""
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else ""
    # A class name or nothing: it will be printed.
    name = first if isinstance(first, str) and first.isidentifier() and len(first) <= 80 else ""
    if name.endswith("ForConditionalGeneration"):
        return name, _conditional_task(config)
    for suffix, task in _TASK_OF_SUFFIX:
        if name.endswith(suffix):
            return name, task
    return name, "base" if name.endswith("Model") else ""


def _conditional_task(config: Mapping[str, Any]) -> str:
    if "vision_config" in config:
        return "image-text-to-text"
    if config.get("model_type") in ("whisper", "speech_to_text", "moonshine"):
        return "speech-seq2seq"
    return "seq2seq-lm" if config.get("is_encoder_decoder", config.get("model_type") in ("t5", "mt5", "bart")) else ""


def _named(names: Iterable[str], owners: Collection[str]) -> str:
    wanted = [name for name in names if name.rpartition(".")[2] == "weight" and name.split(".")[-2:-1]]
    # The shortest: an encoder or vision tower may hold a second module of that name further inside.
    found = [name for name in wanted if name.split(".")[-2] in owners]
    return min(found, key=lambda name: (name.count("."), name), default="")
