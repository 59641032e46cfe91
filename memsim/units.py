"""Bytes to text and back: the only module that knows 1024."""

from __future__ import annotations

import re

from memsim.errors import UsageError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB

_BINARY = (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB))
_UNITS = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB}
_UNITS |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def format_bytes(num_bytes: int) -> str:
    """Return `num_bytes` with a binary unit: `"501.89 MiB"`; below 1 KiB as `"416 B"`.

    The unit is the largest that leaves at least one whole unit. Negative differences keep their sign.
    """
    for unit, factor in _BINARY:
        if abs(num_bytes) >= factor:
            return f"{num_bytes / factor:,.2f} {unit}"
    return f"{num_bytes} B"


def parse_bytes(text: str) -> int:
    """Return the bytes that `text` names: `"24GiB"` is 24 * 2**30, `"24GB"` is 24 * 10**9, `"512"` is 512.

    Raises:
        UsageError: `text` is not a number with one of the units B, KiB, MiB, GiB, TiB, kB, MB, GB, TB.
    """
    match = _SIZE.fullmatch(text)
    factor = _UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(
            f"{text!r} is not a size: give a number with B, KiB, MiB, GiB, TiB, kB, MB, GB or TB, as in '24GiB'."
        )
    return round(float(match[1]) * factor)
