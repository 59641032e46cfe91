"""The scratch memory of PyTorch's reductions (sums of gradients over tokens, norms, means) on a CUDA device.

Whether a reduction spreads over several thread blocks, and then needs memory for their partial results and a semaphore
per output block, depends on how many values it has to add: no polynomial in batch size and length, but an exact rule.

Source: ATen/native/cuda/Reduce.cuh:71-190 (`ReduceConfig`), 1039-1155 (`setReduceConfig`), 1201-1290
(`gpu_reduce_kernel`) @2.13.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MAX_THREADS = 512
"""`mnt_wrapper<T>::MAX_NUM_THREADS`, of all types but complex double."""
WARP = 32
MIN_VALUES = 16
"""Values that a thread adds at least before a reduction is spread over blocks."""
MAX_VALUES = 256
"""Values per thread from which on it is spread."""
MAX_OFFSET = 2**31 - 1
"""Bytes up to which a kernel reaches with 32-bit offsets."""
VECTORIZED_FROM = 128
"""Contiguous values from which on a thread loads several at once."""

_THREADS_PER_MULTIPROCESSOR = {
    "7.5": 1024,
    "8.6": 1536,
    "8.7": 1536,
    "8.9": 1536,
    "11.0": 1536,
    "12.0": 1536,
    "12.1": 1536,
}
"""Resident threads where they are not 2048. CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute
Capability"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """What a device can run at once."""

    num_multiprocessors: int
    """Its streaming multiprocessors."""
    compute_capability: str
    """`"8.0"`."""

    @property
    def threads_per_multiprocessor(self) -> int:
        """Threads that one multiprocessor holds."""
        return _THREADS_PER_MULTIPROCESSOR.get(self.compute_capability, 2048)


class Scratch(NamedTuple):
    """What one launch takes and gives back at once."""

    partial_bytes: int
    """Partial results."""
    semaphore_bytes: int
    """Counters of finished blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionForm:
    """What about a reduction does not depend on its sizes."""

    value_bytes: int
    """Bytes of one value (`sizeof(scalar_t)`)."""
    accumulator_bytes: int
    """Bytes of one partial result (`sizeof(arg_t)`)."""
    contiguous: bool
    """Whether the values of one result lie side by side; else those of neighbouring results do."""
    vector: int
    """Values that a thread loads at once (1, 2, 4, 8): of one result if `contiguous`, else of as many results."""


def scratch(num_outputs: int, num_inputs: int, form: ReductionForm, processors: Processors) -> tuple[Scratch, ...]:
    """Return the scratch memory of a reduction of `num_inputs` values for each of `num_outputs` results.

    A tensor whose bytes cannot be counted in 31 bits is reduced in pieces, one launch after the other
    (`TensorIteratorBase::with_32bit_indexing`, aten/src/ATen/TensorIterator.cpp @2.13).
    """
    if num_outputs * num_inputs * form.value_bytes > MAX_OFFSET + form.value_bytes - 1 and num_inputs > 1:
        half = num_inputs // 2
        return (
            *scratch(num_outputs, half, form, processors),
            *scratch(num_outputs, num_inputs - half, form, processors),
        )
    found = _launch(num_outputs, num_inputs, form, processors)
    return () if found is None else (found,)


def _launch(num_outputs: int, num_inputs: int, form: ReductionForm, processors: Processors) -> Scratch | None:
    output_vector = 1 if form.contiguous else form.vector
    while num_outputs % output_vector:
        output_vector //= 2  # `get_output_vec_size`
    dim0, dim1 = (num_inputs, num_outputs) if form.contiguous else (num_outputs // output_vector, num_inputs)
    if form.contiguous and dim0 >= VECTORIZED_FROM:
        dim0 //= form.vector
    width, height = _block(dim0, dim1, MAX_THREADS // output_vector)
    step_input, step_output = (width, 1) if form.contiguous else (1, width)
    split_warps = -(-num_inputs // step_input) >= min(height * 16, MAX_VALUES)
    if not split_warps:
        return None
    step_input *= height
    values = -(-num_inputs // step_input)
    target = processors.num_multiprocessors * (processors.threads_per_multiprocessor // (width * height))
    grid = -(-(num_outputs // output_vector) // step_output)
    if values < MAX_VALUES or grid > target:
        return None
    blocks = max(min(-(-target // grid), -(-values // MIN_VALUES)), -(-values // MAX_VALUES))
    if blocks <= 1:
        return None
    partial = form.accumulator_bytes * num_outputs * blocks
    return Scratch(partial if form.contiguous else partial * width * output_vector, 4 * grid)


def _block(dim0: int, dim1: int, most: int) -> tuple[int, int]:
    """Return the width and height of a thread block (`set_block_dimension`)."""
    power0, power1 = _last_power(dim0, most), _last_power(dim1, most)
    width = min(power0, WARP)
    height = min(power1, most // width)
    return min(power0, most // height), height


def _last_power(value: int, most: int) -> int:
    return most if value >= most else 1 << max(value.bit_length() - 1, 0)
