"""Strict reader of safetensors headers: names, shapes and dtypes, never a byte of weights.

A file is 8 bytes little-endian header length, that many bytes of JSON, then the data
(huggingface/safetensors, README.md, "Format"). Nothing here trusts a claimed size: every number is checked against the
real length of the file before anything is read or built from it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from memsim.errors import CheckpointError, shown
from memsim.tensors import Shape, TensorSpec

MAX_HEADER_BYTES = 100_000_000
"""Largest header that the reference reader accepts (safetensors/src/tensor.rs:10, `MAX_HEADER_SIZE`)."""

LENGTH_BYTES = 8
"""Bytes of the header's length at the start of a file."""

MAX_DIMENSIONS = 64
"""Dimensions that PyTorch's operators handle (`dim_bitset_size`, ATen/WrapDimUtilsMulti.h of torch 2.13)."""

DTYPES: dict[str, tuple[str, int]] = {
    "BOOL": ("bool", 8),
    "F4": ("float4_e2m1fn_x2", 4),
    "F6_E2M3": ("", 6),
    "F6_E3M2": ("", 6),
    "U8": ("uint8", 8),
    "I8": ("int8", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "I16": ("int16", 16),
    "U16": ("uint16", 16),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "I32": ("int32", 32),
    "U32": ("uint32", 32),
    "F32": ("float32", 32),
    "C64": ("complex64", 64),
    "F64": ("float64", 64),
    "I64": ("int64", 64),
    "U64": ("uint64", 64),
}
"""Stored dtype -> (PyTorch's name, bits per element); an empty name is a dtype that PyTorch has not (safetensors 0.8,
`Dtype` in tensor.rs and `_TYPES` in bindings/python/py_src/safetensors/torch.py:427)."""


def header_length(prefix: bytes, file_bytes: int, where: str) -> int:
    """Return the length in bytes of the JSON header that follows the first 8 bytes of a file.

    Args:
        prefix: the first bytes of the file, at least 8 where the file has them.
        file_bytes: length of the whole file in bytes.
        where: the file's name for messages.

    Raises:
        CheckpointError: the file is shorter than its header claims, or the header is over `MAX_HEADER_BYTES`.
    """
    if len(prefix) < LENGTH_BYTES or file_bytes < LENGTH_BYTES:
        raise _damaged(where, f"it has {min(len(prefix), file_bytes)} bytes, and its first 8 are the header's length")
    length = int.from_bytes(prefix[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise _damaged(where, f"it claims a header of {length} bytes; safetensors allows {MAX_HEADER_BYTES}")
    if length > file_bytes - LENGTH_BYTES:
        raise _damaged(where, f"it claims a header of {length} bytes in a file of {file_bytes}")
    return length


def parse_header(header: bytes, file_bytes: int, where: str) -> dict[str, TensorSpec]:
    """Return every tensor of the file, sorted by name as `safetensors.safe_open(...).keys()` lists them.

    Args:
        header: the JSON header alone, as long as the file says.
        file_bytes: length of the whole file in bytes.
        where: the file's name for messages.

    Raises:
        CheckpointError: anything that a complete safetensors file cannot hold: no JSON object, a name twice, an unknown
            dtype, a bad shape, bytes that do not match it, overlapping or missing ranges, data that ends elsewhere than
            the file.
    """
    entries = [_entry(name, info, where) for name, info in _object(header, where).items() if name != "__metadata__"]
    position = 0
    for begin, end, name, _ in sorted(entries, key=lambda entry: entry[:2]):
        if begin != position:
            kind = "overlaps the tensor before it" if begin < position else "leaves a hole before it"
            raise _damaged(where, f"tensor {_short(name)} {kind} (data begins at {begin}, expected {position})")
        position = end
    data_bytes = file_bytes - LENGTH_BYTES - len(header)
    if position != data_bytes:
        raise _damaged(
            where, f"its tensors end at byte {position} of the data, but it holds {data_bytes} bytes of data"
        )
    return {name: tensor for _, _, name, tensor in sorted(entries, key=lambda entry: entry[2])}


def _object(header: bytes, where: str) -> dict[str, Any]:
    if not header.startswith(b"{"):
        raise _damaged(where, "its header does not begin with '{'")
    try:
        parsed = json.loads(header.decode("utf-8"), object_pairs_hook=_unique)
    except RecursionError:
        raise _damaged(where, "its header is nested too deeply") from None
    except ValueError as error:
        raise _damaged(where, f"its header is not JSON ({error})") from None
    if not isinstance(parsed, dict):
        raise _damaged(where, "its header is not a JSON object")
    return parsed


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError(f"the name {_short(_first_repeated(name for name, _ in pairs))} appears twice")
    return result


def _first_repeated(names: Iterable[str]) -> str:
    seen: set[str] = set()
    return next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]


def _entry(name: str, info: Any, where: str) -> tuple[int, int, str, TensorSpec]:
    # A lone surrogate or a control character cannot be a Python attribute and must not reach a terminal.
    if not name.isprintable():
        raise _damaged(where, f"the tensor name {_short(name)} has unprintable characters")
    if not isinstance(info, dict) or not {"dtype", "shape", "data_offsets"} <= info.keys():
        raise _damaged(where, f"tensor {_short(name)} lacks dtype, shape or data_offsets")
    dtype, shape, offsets = info["dtype"], info["shape"], info["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _damaged(
            where, f"tensor {_short(name)} has the unknown dtype {_short(dtype)}; known: {', '.join(DTYPES)}"
        )
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise _damaged(where, f"tensor {_short(name)} has the shape {_short(shape)}, not a list of sizes")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _damaged(where, f"tensor {_short(name)} has the data_offsets {_short(offsets)}, not [begin, end]")
    begin, end = offsets
    bits = math.prod(shape) * DTYPES[dtype][1]
    if (end - begin) * 8 != bits:
        raise _damaged(
            where,
            f"tensor {_short(name)} of shape {_short(shape)} and dtype {dtype} takes {_bytes(bits)}, not {end - begin}",
        )
    return begin, end, name, _tensor(name, dtype, tuple(shape), where)


def _tensor(name: str, dtype: str, shape: Shape, where: str) -> TensorSpec:
    torch_dtype, bits = DTYPES[dtype]
    if not torch_dtype:
        raise CheckpointError(
            f"{where}: tensor {_short(name)} has dtype {dtype}, which PyTorch cannot hold.\n"
            "Give a checkpoint in another format, or its config.json alone."
        )
    if bits < 8:
        # PyTorch's packed dtype counts pairs where the file counts elements; the last dimension is the packed one.
        if not shape or shape[-1] % 2:
            raise _damaged(where, f"tensor {_short(name)} packs two {dtype} in a byte, but its last dimension is odd")
        shape = (*shape[:-1], shape[-1] // 2)
    return TensorSpec(shape, torch_dtype)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 2**63 for v in value)


def _bytes(bits: int) -> str:
    """Return a size that may be beyond any float: 64 dimensions of 2**62."""
    if bits >= 2**80:
        return f"at least 2**{bits.bit_length() - 4} bytes"
    return f"{bits // 8}{'.5' if bits % 8 else ''} bytes" if bits % 4 == 0 else f"{bits} bits"


def _short(value: object) -> str:
    return shown(value, 60)


def _damaged(where: str, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{where} is not a complete safetensors file: {problem}.\n"
        "Download or save it again; memsim reads only its header."
    )
