"""A parameter table from safetensors headers alone, where no class can be built (no torch, or remote code)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from memsim.config import LABEL_TASKS
from memsim.errors import MissingPackageError, NoLabelsError
from memsim.model import BufferSpec, ModelSpec, ParameterSpec, ParameterTable
from memsim.resolve.float32 import KEPT_WITH, float32_patterns
from memsim.resolve.found import FoundModel
from memsim.resolve.naming import canonical_name, is_buffer, own_task, owner_classes, shown_name, tied_pair
from memsim.tensors import TensorSpec

_EXPERT = re.compile(r"\.experts?\.[0-9]+\.|\.experts?_[0-9]+\.")
_TRAINABLE = ("float32", "bfloat16", "float16", "float64")


def spec_from_headers(
    found: FoundModel,
    *,
    task: str | None,
    dtype: str,
    dtype_asked: bool,
    dtype_notes: Sequence[str],
    num_labels: int | None,
    reason: str,
) -> ModelSpec:
    """Return the model that the safetensors headers of `found` describe.

    Args:
        found: config and checkpoint; the checkpoint has tensors.
        task: the task asked for; without torch only the checkpoint's own can be given.
        dtype: dtype of the weights.
        dtype_asked: whether the user chose it; else a checkpoint of mixed dtypes keeps them tensor by tensor where the
            family is not known.
        dtype_notes: what was assumed in choosing it, sentences for the assumptions.
        num_labels: labels asked for; without torch only the checkpoint's own number can be given.
        reason: why no class was built, a sentence for the assumptions.

    Raises:
        MissingPackageError: another task or number of labels than the checkpoint's own.
        UsageError: a number of labels, and the checkpoint's class has no head of that size.
    """
    model_class, own = own_task(found.config)
    _check_own(found, model_class, own, task, num_labels)
    quantized = "quantization_config" in found.config
    mixed = len(found.checkpoint.floating_dtypes) > 1
    family = float32_patterns(found.config)
    # What an unknown family keeps in float32 is not known; that it stores some tensors otherwise is a hint.
    keep = quantized or (mixed and not dtype_asked and family is None)
    loaded = {canonical_name(name): tensor for name, tensor in found.checkpoint.tensors.items()}
    tensors = loaded if keep else {name: _cast(name, tensor, dtype, family or {}) for name, tensor in loaded.items()}
    dtypes = () if keep else (*dtype_notes, *(_float32_notes(found, dtype) if family is None else ()))
    table, tied_notes = _table(found, tensors, quantized=quantized)
    return ModelSpec(
        name=found.name,
        source=found.source,
        task=own,
        model_class=model_class,
        dtype=dtype,
        table=table,
        config=found.config,
        assumptions=(
            *found.notes,
            reason,
            *_notes(found, keep, quantized),
            *dtypes,
            *_expert_notes(loaded),
            *tied_notes,
        ),
    )


def _cast(name: str, tensor: TensorSpec, dtype: str, family: Mapping[str, Sequence[str]]) -> TensorSpec:
    if not tensor.is_floating_point:
        return tensor
    stays = any(re.search(pattern, name) for key in KEPT_WITH[dtype] for pattern in family.get(key, ()))
    return tensor.with_dtype("float32" if stays else dtype)


def _float32_notes(found: FoundModel, dtype: str) -> Iterator[str]:
    if dtype in ("float16", "bfloat16"):
        yield (
            f"Every tensor was taken as {dtype}: what {shown_name(str(found.config.get('model_type')))} keeps in "
            "float32 (_keep_in_fp32_modules of its class) is not known."
        )


def _expert_notes(tensors: Mapping[str, TensorSpec]) -> Iterator[str]:
    apart = [name for name in tensors if _EXPERT.search(name)]
    if apart:
        yield (
            f"The checkpoint stores experts one by one ({len(apart)} tensors, the first is {shown_name(apart[0])}); "
            "transformers 5 loads those of a layer as one or two tensors. Elements are equal, the number of tensors is "
            "not: optimizer state that is made tensor by tensor can differ."
        )


def _check_own(found: FoundModel, model_class: str, own: str, task: str | None, num_labels: int | None) -> None:
    install = 'Building another needs torch: pip install "memsim[torch]".'
    if task is not None and task != own:
        raise MissingPackageError(
            f"the checkpoint of {found.name} is of the class {model_class or '(not named)'}"
            f"{f' ({own})' if own else ''}, not {task}.\n{install}"
        )
    if num_labels is not None and own and own not in LABEL_TASKS:
        raise NoLabelsError(model_class, num_labels, ())
    labels = found.config.get("id2label")
    own_labels = len(labels) if isinstance(labels, dict) else found.config.get("num_labels", 2)
    if num_labels is not None and num_labels != own_labels:
        raise MissingPackageError(
            f"the checkpoint of {found.name} has a head for {own_labels} labels, not {num_labels}.\n{install}"
        )


def _table(
    found: FoundModel, tensors: dict[str, TensorSpec], *, quantized: bool
) -> tuple[ParameterTable, tuple[str, ...]]:
    buffers = {name for name, tensor in tensors.items() if is_buffer(name, tensor, quantized=quantized)}
    parameters = {name: tensor for name, tensor in tensors.items() if name not in buffers}
    pair = tied_pair(parameters)
    tie = found.config.get("tie_word_embeddings")
    tied = {pair[1]: pair[0]} if pair and tie is True else {}
    classes = owner_classes(parameters, str(found.config.get("model_type")))
    names = [*(n for n in parameters if n not in tied), *tied]
    table = ParameterTable(
        parameters=tuple(
            ParameterSpec(
                name=name,
                tensor=parameters[name],
                tied_to=tied.get(name),
                requires_grad=parameters[name].dtype in _TRAINABLE,
                module_class=classes.get(name.rpartition(".")[0], ""),
            )
            for name in names
        ),
        buffers=tuple(BufferSpec(name=name, tensor=tensors[name]) for name in tensors if name in buffers),
    )
    return table, tuple(_tied_notes(pair, tie, parameters))


def _tied_notes(pair: tuple[str, str] | None, tie: object, parameters: dict[str, TensorSpec]) -> Iterator[str]:
    if pair is None or tie is False:
        return
    first, second = pair
    if tie is True:
        yield both_stored_note(second, first, parameters[second])
    else:
        yield (
            f"The checkpoint stores {shown_name(second)} beside {shown_name(first)} and config.json does not say "
            "whether they are tied: they were counted as two."
        )


def both_stored_note(name: str, tied_to: str, tensor: TensorSpec) -> str:
    """Return the sentence for a tied parameter that the checkpoint stores on its own.

    transformers then compares the values and ties them only if they are equal (modeling_utils.py:2566 @5.24); the
    values are never read here.
    """
    return (
        f"{shown_name(name)} is tied to {shown_name(tied_to)} and counted once, though the checkpoint stores both: "
        f"if their values differ, loading leaves them apart ({tensor.nbytes} bytes of weights more)."
    )


def _notes(found: FoundModel, kept: bool, quantized: bool) -> Iterator[str]:
    yield (
        "Names and shapes are those of the safetensors headers: every tensor is taken as used and trainable, buffers "
        "are told by their names, and buffers that a checkpoint does not store are not counted."
    )
    if quantized:
        yield "The checkpoint is quantized: its packed tensors are counted as stored, and those cannot be trained."
    elif kept:
        dtypes = " and ".join(found.checkpoint.floating_dtypes)
        yield f"The checkpoint mixes {dtypes}: each tensor keeps its own dtype."
