"""From config and checkpoint to a `ModelSpec`: the class is built where torch is there, else the headers speak."""

from __future__ import annotations

from memsim.errors import MissingPackageError, UnknownNameError
from memsim.model import ModelSpec, ParameterTable
from memsim.resolve.comparison import checkpoint_notes
from memsim.resolve.config_json import config_dtype
from memsim.resolve.found import FoundModel
from memsim.resolve.header_table import spec_from_headers


def spec_from_found(found: FoundModel, *, task: str | None, dtype: str, num_labels: int | None) -> ModelSpec:
    """Return the model of a config and the headers of its checkpoint.

    With torch and transformers the table is the built class's: exact class, tying and buffers. Without them, or for an
    architecture that transformers does not know, it is what the safetensors headers say.

    Raises:
        MissingPackageError: there are no safetensors headers and no torch, or the task asked for needs torch.
        UnknownNameError: an architecture that transformers does not know, and no headers to take its place.
        ModelError: the architecture has no such task, or no model can have the config's sizes.
        UsageError: a number of labels for a class that has no head of that size.
    """
    from memsim.resolve.labels import build_with_labels

    chosen, dtype_notes = _choose_dtype(found, dtype)
    try:
        built = build_with_labels(found.config, task=task, dtype=chosen, num_labels=num_labels)
    except MissingPackageError as error:
        if not found.checkpoint.tensors:
            raise MissingPackageError(f"{found.name}: {found.checkpoint.missing}.\n{_sentence(error)}") from None
        reason = "No class was built, as torch and transformers are not installed."
    except UnknownNameError as error:
        if not found.checkpoint.tensors or task is not None:
            raise
        reason = f"No class was built: {error}"
    else:
        return ModelSpec(
            name=found.name,
            source=found.source,
            task=built.task,
            model_class=built.model_class,
            dtype=chosen,
            table=built.table,
            config=found.config,
            assumptions=(*found.notes, *dtype_notes, *_checkpoint_notes(found, chosen, built.table, built.model_class)),
        )
    return spec_from_headers(
        found,
        task=task,
        dtype=chosen,
        dtype_asked=dtype != "auto",
        dtype_notes=dtype_notes,
        num_labels=num_labels,
        reason=reason,
    )


def _choose_dtype(found: FoundModel, dtype: str) -> tuple[str, tuple[str, ...]]:
    """Return the dtype of the weights and what was assumed.

    `auto` is what `from_pretrained(dtype="auto")` takes: the config's, else that of the first floating-point tensor
    (`_get_dtype`, modeling_utils.py:810 @transformers 5.24).
    """
    if dtype != "auto":
        return dtype, ()
    stated = config_dtype(found.config, found.where)
    stored = found.checkpoint.floating_dtypes
    if stated is None:
        if found.checkpoint.dtype is None:
            return "float32", ("The dtype of the weights is not known: float32 was taken; choose one with --dtype.",)
        stated = found.checkpoint.dtype
    if stored and stored != (stated,) and "quantization_config" not in found.config:
        note = (
            f'The checkpoint holds {" and ".join(stored)}: {stated} was taken, as from_pretrained(dtype="auto") does.'
        )
        return stated, (note,)
    return stated, ()


def _checkpoint_notes(found: FoundModel, dtype: str, table: ParameterTable, model_class: str) -> tuple[str, ...]:
    if "quantization_config" in found.config:
        return (
            f"The checkpoint is quantized: the table is of the same model unquantized, in {dtype}; its packed weights "
            "are not counted.",
        )
    if not found.checkpoint.tensors:
        return (f"No checkpoint was compared: {found.checkpoint.missing}.",)
    return checkpoint_notes(table, model_class, found.checkpoint)


def _sentence(error: Exception) -> str:
    text = str(error)
    return text[:1].upper() + text[1:]
