"""`TensorSpec`: the shape, dtype and place of a tensor, and the only source of its bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from memsim.errors import UnknownNameError

Shape = tuple[int, ...]
Device = Literal["device", "host", "managed"]
"""`device`: the accelerator that holds the parameters; `host`: CPU memory; `managed`: CUDA unified memory."""

ITEMSIZES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
    # Plain Python numbers that optimizers keep beside their tensors: no tensor storage.
    "python:int": 0,
    "python:float": 0,
    "python:bool": 0,
    "python:none": 0,
}
"""Bytes per element by PyTorch's dtype names (c10/core/ScalarType.h of torch 2.13)."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that is never allocated."""

    shape: Shape
    """Sizes; `()` is a scalar."""
    dtype: str
    """PyTorch's dtype name without `torch.`, or `python:int` and the like for a plain Python number."""
    device: Device = "device"
    """Where its storage lives."""

    def __post_init__(self) -> None:
        if self.dtype not in ITEMSIZES:
            raise UnknownNameError("dtype", self.dtype, ITEMSIZES)

    @property
    def numel(self) -> int:
        """Number of elements; 1 for a scalar or a Python number, 0 for `None`."""
        return 0 if self.dtype == "python:none" else math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return ITEMSIZES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of a contiguous storage of this shape and dtype."""
        return self.numel * self.itemsize

    @property
    def is_python_number(self) -> bool:
        """Whether it is a plain Python value without a tensor."""
        return self.dtype.startswith("python:")

    @property
    def is_floating_point(self) -> bool:
        """Whether `.to(dtype)` of a module would convert this tensor."""
        return self.dtype.startswith(("float", "bfloat"))

    def with_dtype(self, dtype: str) -> TensorSpec:
        """Return the same tensor in another dtype."""
        return self if dtype == self.dtype else TensorSpec(self.shape, dtype, self.device)
