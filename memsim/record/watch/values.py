"""True values where they decide sizes: small integer and boolean tensors are computed on the host as well.

No kernel runs on the imaginary GPU, so a mask would be false everywhere: no padding and all padding, one image token
and none would look alike, and PyTorch would choose other kernels than on a real GPU. Token ids, masks, lengths and
positions are small, and copies of small tensors really move bytes. For the operators that such values pass through,
the real kernel runs first (it allocates what it allocates), then the same operator on the CPU, and its result is
copied into the device's. Values of floating-point tensors stay zero.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

LIMIT_BYTES = 2**20
"""Larger tensors are left alone: longer copies to the device leave zeros behind (IGPU_COPY_LIMIT, csrc/device.h)."""

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_OPERATORS = (
    *(f"{name}.{kind}" for name in _COMPARISONS for kind in ("Scalar", "Tensor")),
    *(f"bitwise_{name}.{kind}" for name in ("and", "or", "xor") for kind in ("Tensor", "Scalar")),
    *(f"bitwise_{name}_.Tensor" for name in ("and", "or")),
    *(f"logical_{name}" for name in ("and", "or", "xor", "not")),
    *(f"{name}.{kind}" for name in ("all", "any") for kind in ("default", "dim")),
    *(f"{name}.Tensor" for name in ("add", "sub", "mul", "floor_divide", "remainder", "clamp")),
    *(f"{name}_.Tensor" for name in ("add", "sub", "mul")),
    *("bitwise_not", "neg", "abs", "floor_divide", "remainder.Scalar", "clamp", "minimum", "maximum"),
    *(
        "sum",
        "sum.dim_IntList",
        "prod",
        "prod.dim_int",
        "cumsum",
        "max",
        "min",
        "max.dim",
        "min.dim",
        "argmax",
        "argmin",
    ),
    *(
        "fill_.Scalar",
        "fill_.Tensor",
        "copy_",
        "masked_fill_.Scalar",
        "scatter_.value",
        "scatter.value",
        "scatter_.src",
    ),
    *("arange.start_out", "cat", "where.self", "gather", "index_select", "index.Tensor", "index_put_"),
    *("_index_put_impl_", "flip", "roll", "repeat", "tril", "triu", "constant_pad_nd", "bincount"),
    *("sort", "sort.stable", "repeat_interleave.Tensor", "masked_select", "isin.Tensor_Tensor", "bucketize.Tensor"),
    *("nonzero", "_unique2", "unique_consecutive", "count_nonzero", "count_nonzero.dim_IntList"),
)
"""Those whose integer or boolean results are used as sizes, masks or conditions."""


class Values:
    """The operators that compute on the host too, for as long as this object lives."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._kinds = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
        self.num_operators = 0
        """Operators that were taken over; 0 in a torch before 2.9, which does not give its kernels away."""
        self._library = torch.library.Library("aten", "IMPL")
        if hasattr(torch.library, "get_kernel"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that kernels are replaced
                for name in _OPERATORS:
                    self._take_over(name)

    def _take_over(self, name: str) -> None:
        packet, _, overload = name.partition(".")
        try:
            operator = getattr(getattr(self._torch.ops.aten, packet), overload or "default")
            kernel = self._torch.library.get_kernel(operator, "CUDA")
        except (AttributeError, RuntimeError):  # another torch has no such operator, or makes it of others
            return
        arguments = operator._schema.arguments
        written = [place for place, one in enumerate(arguments) if one.alias_info and one.alias_info.is_write]
        tensors = [place for place, one in enumerate(arguments) if str(one.type) == "Tensor"]
        place = written[0] if written else None
        run = functools.partial(self._run, operator, kernel.call_boxed, place, tensors)
        self._library.impl(operator, run, "CUDA", with_keyset=True, allow_override=True)
        self.num_operators += 1

    def _run(
        self,
        operator: Any,
        kernel: Callable[..., Any],
        written: int | None,
        tensors: Sequence[int],
        keys: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        for place in tensors:  # PyTorch's dispatcher hands a number over as it came, and does not take it back
            if place < len(args) and isinstance(args[place], (bool, int, float, complex)):
                number = self._torch.tensor(args[place], device="cpu")
                args = (*args[:place], number, *args[place + 1 :])
        if not self._is_small(args, kwargs):
            return kernel(keys, *args, **kwargs)
        host_args = [self._on_host(value) for value in args]
        host_kwargs = {name: self._on_host(value) for name, value in kwargs.items()}
        if "device" in host_kwargs:
            host_kwargs["device"] = self._torch.device("cpu")
        results = kernel(keys, *args, **kwargs)
        host_results = operator(*host_args, **host_kwargs)
        if written is None or written >= len(args):
            pairs = zip(_each(results), _each(host_results), strict=True)
        else:
            pairs = zip([args[written]], [host_args[written]], strict=True)
        for result, host in pairs:
            self._bring_back(host, result)
        return results

    def _is_small(self, args: Any, kwargs: Any) -> bool:
        """Whether every tensor is of integers or booleans, small, and on the device (or a number)."""
        on_device = 0
        for value in _each((*args, *kwargs.values())):
            if not isinstance(value, self._torch.Tensor):
                continue
            if value.dtype not in self._kinds or not (value.is_cuda or value.dim() == 0):
                return False
            on_device += value.is_cuda
            if _span(value) * value.element_size() > LIMIT_BYTES:
                return False
        return on_device > 0

    def _on_host(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._on_host(item) for item in value]
        if not isinstance(value, self._torch.Tensor) or not value.is_cuda:
            return value
        return self._read(value).as_strided(value.size(), value.stride())

    def _read(self, tensor: Any) -> Any:
        """Return the memory from the tensor's first element to its last."""
        memory = self._torch.empty(_span(tensor), dtype=tensor.dtype, device="cpu")
        return memory.copy_(tensor.as_strided((_span(tensor),), (1,)))

    def _bring_back(self, host: Any, result: Any) -> None:
        if not isinstance(result, self._torch.Tensor) or not result.is_cuda or result.dtype != host.dtype:
            return
        if result.shape != host.shape:
            result.resize_(host.shape)
        if not result.numel() or _span(result) * result.element_size() > LIMIT_BYTES:
            return
        memory = self._read(result)
        memory.as_strided(result.size(), result.stride()).copy_(host)
        result.as_strided((_span(result),), (1,)).copy_(memory)


def _span(tensor: Any) -> int:
    """Return the number of elements from the tensor's first to its last in memory."""
    if not tensor.numel():
        return 0
    last: int = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return last + 1


def _each(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _each(item)
    else:
        yield value
