"""`AllocatorConfig`: what `PYTORCH_ALLOC_CONF` says, read as PyTorch reads it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from memsim.block_sizes import LARGE_SEGMENT_BYTES, MIN_LARGE_BYTES, NUM_DIVISIONS
from memsim.errors import UnknownNameError, UsageError, shown
from memsim.units import MIB

WITHOUT_EFFECT = (
    "graph_capture_record_stream_reuse",
    "pinned_free_catch_all",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
)
"""Keys of PyTorch for host memory, locks and the capture of graphs: no block on the device is larger for them."""

MODELLED = (
    "backend",
    "expandable_segments",
    "garbage_collection_threshold",
    "large_segment_size_mb",
    "max_non_split_rounding_mb",
    "max_split_size_mb",
    "per_process_memory_fraction",
    "roundup_power2_divisions",
    "throw_on_cudamalloc_oom",
)
"""Keys that decide something here."""

_PAIR = re.compile(r"([^:,\[\]]+):([^:,\[\]]+|\[[^\[\]]*\])(?:,|$)")
_MOST_MB = (2**63 - 1) // MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorConfig:
    """The settings of the caching allocator; the defaults are PyTorch's."""

    max_split_bytes: int | None = None
    """Blocks of this size and more are never split (`max_split_size_mb`); `None`: all may be."""
    max_non_split_rounding_bytes: int = 20 * MIB
    """A block that is not to be split may be larger than the request by less than this."""
    roundup_power2_divisions: tuple[int, ...] = ()
    """16 divisions for requests from 1 MiB to 32 GiB, by powers of two; empty or 0: rounded up to 512 bytes."""
    garbage_collection_threshold: float = 0.0
    """Share of the allowed memory above which old free segments are given back; 0: never. Needs a memory fraction."""
    expandable_segments: bool = False
    """Whether segments grow by mapping pages."""
    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    """Segment of blocks below 10 MiB, and page of expandable segments (`large_segment_size_mb`)."""
    per_process_memory_fraction: float = 1.0
    """Share of the device that the allocator may hold; 1: all."""

    def __post_init__(self) -> None:
        if self.large_segment_bytes <= MIN_LARGE_BYTES or self.large_segment_bytes % MIB:
            raise _outside("large_segment_size_mb", self.large_segment_bytes / MIB, "a whole number above 10")
        if self.expandable_segments and self.large_segment_bytes % (2 * MIB):
            raise _outside(
                "large_segment_size_mb",
                self.large_segment_bytes // MIB,
                "an even number with expandable_segments, because CUDA maps units of 2 MiB",
            )
        if self.max_split_bytes is not None and self.max_split_bytes < 20 * MIB:
            raise _outside("max_split_size_mb", self.max_split_bytes / MIB, "20 or more")
        if self.max_non_split_rounding_bytes < 20 * MIB:
            raise _outside("max_non_split_rounding_mb", self.max_non_split_rounding_bytes / MIB, "20 or more")
        if not 0 <= self.garbage_collection_threshold < 1:
            raise _outside("garbage_collection_threshold", self.garbage_collection_threshold, "between 0 and 1")
        if not 0 <= self.per_process_memory_fraction <= 1:
            raise _outside("per_process_memory_fraction", self.per_process_memory_fraction, "from 0 to 1")
        if len(self.roundup_power2_divisions) not in (0, NUM_DIVISIONS) or not all(
            _is_power_or_zero(value) for value in self.roundup_power2_divisions
        ):
            raise _outside(
                "roundup_power2_divisions", self.roundup_power2_divisions, f"{NUM_DIVISIONS} powers of two or zeros"
            )

    @classmethod
    def parse(cls, text: str) -> AllocatorConfig:
        """Return the settings that a value of `PYTORCH_ALLOC_CONF` makes: `"expandable_segments:True,..."`.

        PyTorch's own limits hold (`AcceleratorAllocatorConfig::parseArgs`, c10/core/AllocatorConfig.cpp @2.13); what it
        passes over silently, such as `64.5` for a whole number, is refused.

        Raises:
            UsageError: a key that PyTorch does not know, a value that it does not take, or another allocator.
        """
        config = cls()
        for key, value in _pairs(text):
            if key not in MODELLED and key not in WITHOUT_EFFECT:
                raise UnknownNameError(
                    "allocator setting", key, (*MODELLED, *WITHOUT_EFFECT), f"Known are {', '.join(MODELLED)}."
                )
            if key in MODELLED:
                config = _changed(config, key, value)
        return config


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield key and value; white space counts nowhere."""
    packed = "".join(text.split())
    position = 0
    while position < len(packed):
        match = _PAIR.match(packed, position)
        if match is None:
            raise UsageError(
                f"cannot read the allocator settings {shown(text)} at {shown(packed[position : position + 30])}: "
                "give KEY:VALUE,KEY:VALUE, as in 'expandable_segments:True,max_split_size_mb:128'."
            )
        yield match[1], match[2]
        position = match.end()


def _changed(config: AllocatorConfig, key: str, value: str) -> AllocatorConfig:
    """Return the settings with one of the modelled ones changed."""
    if key.endswith("_mb"):
        name = {"large_segment_size_mb": "large_segment_bytes", "max_split_size_mb": "max_split_bytes"}.get(
            key, "max_non_split_rounding_bytes"
        )
        own = key == "large_segment_size_mb"
        smallest = MIN_LARGE_BYTES // MIB + 1 if own else config.large_segment_bytes // MIB
        changes: dict[str, Any] = {name: _megabytes(key, value, smallest)}
    elif key == "roundup_power2_divisions":
        changes = {key: _divisions(key, value)}
    elif key == "expandable_segments":
        changes = {key: _boolean(key, value)}
    elif key in {"per_process_memory_fraction", "garbage_collection_threshold"}:
        changes = {key: _number(key, value)}
        if key == "garbage_collection_threshold" and not changes[key]:
            raise _outside(key, value, "between 0 and 1")
    else:
        _check_other(key, value)
        changes = {}
    return replace(config, **changes)


def _check_other(key: str, value: str) -> None:
    """Refuse what would need another allocator."""
    if key == "throw_on_cudamalloc_oom" and _boolean(key, value):
        raise UsageError(
            "throw_on_cudamalloc_oom:True is not modelled: it fails requests that would fit once cached memory was "
            "given back.\nLeave it out, or bound the memory with per_process_memory_fraction."
        )
    if key == "backend" and value != "native":
        raise UsageError(
            f"backend:{value[:40]} is not PyTorch's caching allocator, and only that one is modelled: "
            "leave it out or give backend:native."
        )


def _megabytes(key: str, value: str, smallest: int) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 20 or not smallest <= int(value) <= _MOST_MB:
        raise _outside(key, value, f"a whole number of {smallest} or more (MiB)")
    return int(value) * MIB


def _boolean(key: str, value: str) -> bool:
    if value not in {"True", "False"}:
        raise _outside(key, value, "True or False")
    return value == "True"


def _number(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise _outside(key, value, "a number from 0 to 1")
    return number


def _divisions(key: str, value: str) -> tuple[int, ...]:
    """Return the 16 divisions of `4`, or of a list by MiB: `[256:1,512:2,>:8]`."""
    if not value.startswith("["):
        return (_division(key, value, zero=False),) * NUM_DIVISIONS
    table = [0] * NUM_DIVISIONS
    last, first = 0, True
    for item in filter(None, value[1:-1].split(",")):
        bound, _, text = item.partition(":")
        division = _division(key, text, zero=True)
        if bound == ">":
            table[last + 1 :] = [division] * (NUM_DIVISIONS - last - 1)
            continue
        last = min(_division(key, bound, zero=False).bit_length() - 1, NUM_DIVISIONS - 1)
        if first:
            table[:last] = [division] * last
        table[last], first = division, False
    return tuple(table) if any(table) else ()


def _division(key: str, text: str, *, zero: bool) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else -1
    if not _is_power_or_zero(number) or (number == 0 and not zero):
        raise _outside(key, text, "made of powers of two, as in 4 or [256:1,512:2,>:8]")
    return number


def _is_power_or_zero(number: int) -> bool:
    return number >= 0 and number & (number - 1) == 0


def _outside(key: str, value: object, allowed: str) -> UsageError:
    return UsageError(f"{key} must be {allowed}, not {shown(value)}.")
