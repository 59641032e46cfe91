"""`Peak` and `Held`: the most memory of a step or run, and whose it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from memsim.ledger import Phase
from memsim.step.peaks import HeldTensor, ModuleMemory, by_category, by_module

NUM_TENSORS = 10
"""Tensors that a result lists."""

Moment = Literal["peak", "out_of_memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The most memory of a step or run; every figure is a maximum of its own."""

    step: int
    """Step of the peak of allocated bytes, from 1."""
    phase: Phase
    """Phase of the peak of allocated bytes."""
    requested_bytes: int
    """Most that live tensors asked for."""
    allocated_bytes: int
    """Most that they took, rounded to blocks: `torch.cuda.max_memory_allocated()`."""
    reserved_bytes: int
    """Most that the allocator held of the device: `torch.cuda.max_memory_reserved()`."""
    device_bytes: int
    """What nvidia-smi would show: reserved, and the CUDA context where it is modelled."""
    by_category: dict[str, int]
    """Allocated bytes per category at the peak of allocated bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Who held memory at one moment."""

    moment: Moment
    """The peak, or the failed allocation that ended the run."""
    allocated_bytes: int
    """Bytes of all live blocks at that moment."""
    by_category: dict[str, int]
    """The same per category; they add up to it."""
    modules: tuple[ModuleMemory, ...]
    """The same per kind of module, equal layers folded; they add up to it."""
    tensors: tuple[HeldTensor, ...]
    """The ten largest."""


def held(tensors: Sequence[HeldTensor], moment: Moment) -> Held:
    """Return who held memory, from everything that was alive, largest first."""
    return Held(
        moment=moment,
        allocated_bytes=sum(tensor.allocated_bytes for tensor in tensors),
        by_category=by_category(tensors),
        modules=by_module(tensors),
        tensors=tuple(tensors[:NUM_TENSORS]),
    )
