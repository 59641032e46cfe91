"""Batches of token ids, as a tokenizer and the task's data collator make them.

Legend: `B` sequences, `S` tokens of each, `C` choices of a question.
"""

from __future__ import annotations

from typing import Any

from memsim.record.training.lengths import check_seq_len, default_seq_len, position_limit
from memsim.record.training.request import BatchRequest, MadeBatch, configs_in

NUM_CHOICES = 4
"""Answers of a multiple-choice question: as many as SWAG, the data set of transformers' example, has."""
MASKED_EVERY = 7
"""One token of so many is masked: 15 % (`DataCollatorForLanguageModeling.mlm_probability`)."""
IGNORED = -100
"""Label that the loss leaves out (`torch.nn.CrossEntropyLoss.ignore_index`)."""
NUM_UNICODE = 128
"""Token ids of a model without a vocabulary (CANINE reads characters)."""
_STRIDE = 7919
"""Consecutive tokens are so far apart in the vocabulary, a prime, so that experts get different ones."""


def token_batch(asked: BatchRequest) -> MadeBatch:
    """Return `input_ids`, what the family's tokenizer makes besides, and the task's labels, on the CPU.

    Raises:
        UsageError: the model has no positions for so many tokens.
    """
    length = token_length(asked)
    shape: tuple[int, ...] = (asked.batch_size, length)
    said = ["No token of a sequence is padding."]
    if asked.task == "multiple-choice":
        num_choices = asked.changes.get("num_choices", NUM_CHOICES)
        shape = (asked.batch_size, num_choices, length)
        said.append(f"Each question has {num_choices} answers.")
    batch = encoded(asked, token_ids(asked, shape))
    if asked.is_encoder_decoder and asked.task in {"base", ""} and "decoder_input_ids" in asked.takes:
        batch["decoder_input_ids"] = token_ids(asked, shape)
    labels = token_labels(asked, batch["input_ids"])
    if asked.is_encoder_decoder and "labels" in labels:
        said.append("Targets are as long as the inputs.")
    return MadeBatch(tensors={**batch, **labels}, assumptions=tuple(said))


def token_length(asked: BatchRequest) -> int:
    """Return the tokens of each sequence, after checking that the model has positions for them.

    Raises:
        UsageError: it has not.
    """
    if asked.seq_len is not None:
        check_seq_len(asked.model, asked.seq_len)
        return asked.seq_len
    length = default_seq_len(asked.config.to_dict(), asked.task)
    limit = position_limit(asked.model)
    return length if limit is None else min(length, limit)


def token_ids(asked: BatchRequest, shape: tuple[int, ...]) -> Any:
    """Return int64 ids of plain tokens; the last of each sequence is the end token where the model has one."""
    import torch

    numel = 1
    for size in shape:
        numel *= size
    vocabulary, special = _vocabulary(asked), _special_ids(asked.config)
    plain = next((id_ for id_ in range(vocabulary) if id_ not in special), 0)
    ids = (torch.arange(numel) * _STRIDE + plain) % vocabulary
    known = torch.tensor(sorted(id_ for id_ in special if 0 <= id_ < vocabulary), dtype=torch.long)
    ids = torch.where(torch.isin(ids, known), torch.tensor(plain), ids).reshape(shape)
    end = getattr(asked.config.get_text_config(), "eos_token_id", None)
    end = end[0] if isinstance(end, (list, tuple)) and end else end
    if isinstance(end, int) and 0 <= end < vocabulary:
        ids[..., -1] = end
    if asked.config.model_type == "longformer" and asked.task in {"question-answering", "multiple-choice"}:
        ids[..., -3:] = asked.config.sep_token_id  # it looks for the question before the first of three separators
    return ids


def encoded(asked: BatchRequest, ids: Any) -> dict[str, Any]:
    """Return token ids with the masks that the family's tokenizer makes and the model takes."""
    import torch

    batch = {"input_ids": ids}
    for name in tokenizer_outputs(asked.config):
        if name in asked.takes:
            batch[name] = torch.ones_like(ids) if name == "attention_mask" else torch.zeros_like(ids)
    if "bbox" in asked.takes:  # layout models: a box for each token
        batch["bbox"] = torch.zeros((*ids.shape, 4), dtype=torch.long)
    return batch


def tokenizer_outputs(config: Any) -> tuple[str, ...]:
    """Return what the tokenizer of a family makes besides `input_ids`, in its order."""
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING

    try:
        classes = TOKENIZER_MAPPING[type(config)]
    except (KeyError, ImportError, AttributeError, ValueError):
        return ("attention_mask",)  # a family that shares the plain fast tokenizer
    classes = classes if isinstance(classes, tuple) else (classes,)
    names = next((cls.model_input_names for cls in classes if cls is not None), ["attention_mask"])
    known = ("token_type_ids", "attention_mask")
    return tuple(name for name in names if name in known)


def token_labels(asked: BatchRequest, ids: Any) -> dict[str, Any]:
    """Return the labels that a task's collator adds, as far as the model takes them."""
    import torch

    zeros = torch.zeros(asked.batch_size, dtype=torch.long)
    ends = {"start_positions": zeros, "end_positions": zeros + 1}
    if asked.task == "question-answering":
        return {name: value for name, value in ends.items() if name in asked.takes}
    pairs = ("next_sentence_label", "sentence_order_label")
    second: dict[str, Any] = {name: zeros for name in pairs if name in asked.takes}
    if asked.task in {"base", ""} or "labels" not in asked.takes:
        return second
    return {"labels": _labels(asked, ids), **second}


def _labels(asked: BatchRequest, ids: Any) -> Any:
    import torch

    per_sequence = {"sequence-classification", "multiple-choice", "next-sentence-prediction"}
    if asked.task in per_sequence:
        return sequence_labels(asked)
    discriminates = type(asked.model).__name__ == "ElectraForPreTraining"
    if asked.task == "token-classification" or discriminates:
        return torch.zeros_like(ids)
    if asked.task == "masked-lm" or (asked.task == "pretraining" and not _is_causal(asked)):
        places = torch.arange(ids.numel()).reshape(ids.shape)
        return torch.where(places % MASKED_EVERY == 0, ids, torch.tensor(IGNORED))
    return ids.clone()


def sequence_labels(asked: BatchRequest) -> Any:
    """Return a label for each sequence, as the configuration's `problem_type` and number of labels have it."""
    import torch

    num_labels = getattr(asked.config, "num_labels", 2)
    kind = getattr(asked.config, "problem_type", None)
    if asked.task != "multiple-choice" and kind == "multi_label_classification":
        return torch.zeros(asked.batch_size, num_labels)
    if asked.task == "sequence-classification" and (kind == "regression" or (kind is None and num_labels == 1)):
        return torch.zeros(asked.batch_size)
    return torch.zeros(asked.batch_size, dtype=torch.long)


def _is_causal(asked: BatchRequest) -> bool:
    return asked.is_encoder_decoder or type(asked.model).__name__.endswith(("CausalLM", "LMHeadModel"))


def _vocabulary(asked: BatchRequest) -> int:
    import torch

    try:
        table = asked.model.get_input_embeddings()
    except NotImplementedError:  # speech models, and those of two towers
        table = None
    if isinstance(table, torch.nn.Embedding):
        return int(table.num_embeddings)
    stated = getattr(asked.config.get_text_config(), "vocab_size", None)
    return stated if isinstance(stated, int) and stated > 0 else NUM_UNICODE


def _special_ids(config: Any) -> set[int]:
    """Return the ids of tokens that mean something: padding, ends, places of images."""
    found: set[int] = set()
    for part in configs_in(config):
        for key, value in vars(part).items():
            if key.endswith(("token_id", "token_index", "token_ids")):
                found |= {id_ for id_ in (value if isinstance(value, (list, tuple)) else (value,)) if type(id_) is int}
    return found
