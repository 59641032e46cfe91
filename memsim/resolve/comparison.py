"""Differences between a built model and the checkpoint it would be loaded from, as sentences for the user."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from memsim.model import ParameterTable
from memsim.resolve.checkpoint import Checkpoint
from memsim.resolve.header_table import both_stored_note
from memsim.resolve.naming import canonical_name, is_buffer, shown_name
from memsim.tensors import TensorSpec

_SHOWN = 3


def checkpoint_notes(table: ParameterTable, model_class: str, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return what the checkpoint has otherwise than the `table` of `model_class`: missing, unused, other shapes.

    The table stands: these are the tensors that training holds. A stored shape that differs makes `from_pretrained`
    fail unless told to ignore it, and then it keeps the class's own shape too.
    """
    stored = _aligned({canonical_name(name): t for name, t in checkpoint.tensors.items()}, table)
    groups: dict[str, list[str]] = defaultdict(list)
    for parameter in table.parameters:
        groups[parameter.tied_to or parameter.name].append(parameter.name)
    built = {p.name: p.tensor for p in table.parameters}
    known = built.keys() | {b.name for b in table.buffers}
    missing = {first: built[first] for first, names in groups.items() if not any(n in stored for n in names)}
    unused = {
        name: tensor
        for name, tensor in stored.items()
        if name not in known and not is_buffer(name, tensor, quantized=False)
    }
    return (
        *_shape_notes(built, stored),
        *_name_notes(missing, unused, model_class),
        *(
            both_stored_note(p.name, p.tied_to, p.tensor)
            for p in table.parameters
            if p.tied_to is not None and {p.tied_to, p.name} <= stored.keys()
        ),
    )


def _shape_notes(built: Mapping[str, TensorSpec], stored: Mapping[str, TensorSpec]) -> Iterator[str]:
    other = [n for n, tensor in built.items() if n in stored and stored[n].shape != tensor.shape]
    if other:
        first = other[0]
        yield (
            f"{_count(other, 'tensor has', 'tensors have')} another shape in the checkpoint ({shown_name(first)}: "
            f"{list(stored[first].shape)} there, {list(built[first].shape)} here): the model's own was taken; "
            "from_pretrained needs ignore_mismatched_sizes=True."
        )


def _name_notes(missing: Mapping[str, TensorSpec], unused: Mapping[str, TensorSpec], model_class: str) -> Iterator[str]:
    if missing and unused and _numel(missing) == _numel(unused):
        yield (
            f"The checkpoint stores {_count(unused, 'tensor', 'tensors')} under other names or split otherwise "
            f"({_listed(unused)}), with as many elements as the {len(missing)} of {model_class} that it lacks."
        )
        return
    if missing:
        are = _count(missing, "tensor is", "tensors are")
        yield f"{are} not in the checkpoint and would start untrained: {_listed(missing)}."
    if unused:
        tensors = _count(unused, "tensor", "tensors")
        yield f"{tensors} of the checkpoint would not be used by {model_class}: {_listed(unused)}."


def _aligned(stored: Mapping[str, TensorSpec], table: ParameterTable) -> Mapping[str, TensorSpec]:
    """Return `stored` under the names of the table.

    A base model's checkpoint lacks the prefix of the head's class (`bert.`) and the other way round; transformers adds
    or drops it on loading (`base_model_prefix`).
    """
    names = {p.name for p in table.parameters}
    candidates = [
        dict(stored),
        *({n.removeprefix(prefix): t for n, t in stored.items()} for prefix in _first_parts(stored)),
        *({n if n in names else prefix + n: t for n, t in stored.items()} for prefix in _first_parts(names)),
    ]
    return max(candidates, key=lambda candidate: len(names & candidate.keys()))


def _first_parts(names: Iterable[str]) -> list[str]:
    return sorted({name.partition(".")[0] + "." for name in names if "." in name})


def _numel(tensors: Mapping[str, TensorSpec]) -> int:
    return sum(tensor.numel for tensor in tensors.values())


def _count(names: Collection[str], one: str, many: str) -> str:
    return f"{len(names)} {one if len(names) == 1 else many}"


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(shown_name(name) for name in list(names)[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
