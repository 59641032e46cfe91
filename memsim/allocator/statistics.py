"""What `torch.cuda.memory_stats()` counts, kept as plain integers.

A block that is handed out only adds to sums; whether that made a peak is looked up before the next block is freed, and
when somebody asks. Sums of what went up and what went down give the current value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorPeaks:
    """The largest values of what an allocator counts in bytes."""

    requested_bytes: int
    """`requested_bytes.all.peak`."""
    allocated_bytes: int
    """`allocated_bytes.all.peak`, the same as `torch.cuda.max_memory_allocated()`."""
    active_bytes: int
    """`active_bytes.all.peak`."""
    reserved_bytes: int
    """`reserved_bytes.all.peak`, the same as `torch.cuda.max_memory_reserved()`."""


class Gauge:
    """A value with its peak and the sum of its increases."""

    __slots__ = ("current", "increases", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.increases = 0

    def raise_by(self, amount: int) -> None:
        """Go up by `amount`."""
        self.increases += amount
        self.current = current = self.current + amount
        if current > self.peak:  # noqa: PLR1730 - `max` takes thrice the time, and this is hot
            self.peak = current

    def lower_by(self, amount: int) -> None:
        """Go down by `amount`."""
        self.current -= amount

    def reset_peak(self) -> None:
        """Forget the peak."""
        self.peak = self.current


class PoolStatistics:
    """The counts of the small or the large pool, or of both."""

    __slots__ = (
        "allocated_down",
        "allocated_up",
        "grew",
        "inactive_split",
        "inactive_split_bytes",
        "num_allocs",
        "num_frees",
        "num_pending",
        "peak_active",
        "peak_active_bytes",
        "peak_allocated",
        "peak_allocation",
        "peak_requested",
        "pending_bytes",
        "pending_requested",
        "requested_down",
        "requested_up",
        "reserved_bytes",
        "segment",
        "tells_active",
    )

    def __init__(self) -> None:
        self.grew = False
        """Whether a block was handed out since peaks were noted."""
        self.tells_active = False
        """Whether a block was ever freed while in use by another stream: before that, active is allocated."""
        self.num_allocs = self.num_frees = self.allocated_up = self.allocated_down = 0
        self.requested_up = self.requested_down = 0
        self.num_pending = self.pending_bytes = self.pending_requested = 0
        """Blocks freed but still in use by another stream."""
        self.peak_allocation = self.peak_allocated = self.peak_requested = self.peak_active = self.peak_active_bytes = 0
        self.inactive_split, self.inactive_split_bytes = Gauge(), Gauge()
        self.segment, self.reserved_bytes = Gauge(), Gauge()

    def note_peaks(self) -> None:
        """Raise the peaks to the current values."""
        self.grew = False
        allocation = self.num_allocs - self.num_frees
        allocated = self.allocated_up - self.allocated_down
        requested = self.requested_up - self.requested_down + self.pending_requested
        if allocation > self.peak_allocation:  # noqa: PLR1730
            self.peak_allocation = allocation
        if allocated > self.peak_allocated:  # noqa: PLR1730
            self.peak_allocated = allocated
        if requested > self.peak_requested:  # noqa: PLR1730
            self.peak_requested = requested
        if self.tells_active:
            self.peak_active = max(self.peak_active, allocation + self.num_pending)
            self.peak_active_bytes = max(self.peak_active_bytes, allocated + self.pending_bytes)

    @property
    def allocated_bytes(self) -> int:
        """Bytes that are handed out."""
        return self.allocated_up - self.allocated_down

    @property
    def active_bytes(self) -> int:
        """Bytes that are handed out or still used by another stream."""
        return self.allocated_up - self.allocated_down + self.pending_bytes

    @property
    def requested_bytes(self) -> int:
        """Bytes that were asked for, of what is active."""
        return self.requested_up - self.requested_down + self.pending_requested

    def tell_active(self) -> None:
        """Begin to count what is active apart from what is allocated."""
        self.tells_active = True
        self.peak_active, self.peak_active_bytes = self.peak_allocation, self.peak_allocated

    def reset_peaks(self) -> None:
        """Lower the peaks to the current values."""
        self.peak_allocation = self.peak_allocated = self.peak_requested = self.peak_active = self.peak_active_bytes = 0
        self.note_peaks()
        for gauge in (self.inactive_split, self.inactive_split_bytes, self.segment, self.reserved_bytes):
            gauge.reset_peak()

    def rows(self) -> Iterator[tuple[str, int, int, int]]:
        """Yield the name of each statistic with its peak, sum of increases and sum of decreases."""
        active = (self.peak_active, self.peak_active_bytes)
        count, nbytes = active if self.tells_active else (self.peak_allocation, self.peak_allocated)
        yield "allocation", self.peak_allocation, self.num_allocs, self.num_frees
        yield "active", count, self.num_allocs, self.num_frees - self.num_pending
        yield "allocated_bytes", self.peak_allocated, self.allocated_up, self.allocated_down
        yield "active_bytes", nbytes, self.allocated_up, self.allocated_down - self.pending_bytes
        yield "requested_bytes", self.peak_requested, self.requested_up, self.requested_down - self.pending_requested
        for name in ("inactive_split", "inactive_split_bytes", "segment", "reserved_bytes"):
            gauge: Gauge = getattr(self, name)
            yield name, gauge.peak, gauge.increases, gauge.increases - gauge.current


_SUMS = (
    "num_allocs",
    "num_frees",
    "allocated_up",
    "allocated_down",
    "requested_up",
    "requested_down",
    "num_pending",
    "pending_bytes",
    "pending_requested",
)


class Statistics:
    """All counts of an allocator."""

    __slots__ = (
        "_both",
        "large",
        "num_alloc_retries",
        "num_device_alloc",
        "num_device_free",
        "num_ooms",
        "num_sync_all_streams",
        "oversize_allocations",
        "oversize_segments",
        "small",
    )

    def __init__(self, small: PoolStatistics, large: PoolStatistics) -> None:
        self.small = small
        self.large = large
        self._both = PoolStatistics()
        self.oversize_allocations, self.oversize_segments = Gauge(), Gauge()
        self.num_alloc_retries = self.num_ooms = self.num_sync_all_streams = 0
        self.num_device_alloc = self.num_device_free = 0

    def note_peaks(self) -> None:
        """Raise the peaks to the current values; to be called before a block is freed."""
        small, large, both = self.small, self.large, self._both
        if small.grew:
            small.note_peaks()
        if large.grew:
            large.note_peaks()
        if both.tells_active:
            self.both.note_peaks()
            return
        allocation = small.num_allocs - small.num_frees + large.num_allocs - large.num_frees
        allocated = small.allocated_up - small.allocated_down + large.allocated_up - large.allocated_down
        requested = small.requested_up - small.requested_down + large.requested_up - large.requested_down
        if allocation > both.peak_allocation:  # noqa: PLR1730
            both.peak_allocation = allocation
        if allocated > both.peak_allocated:  # noqa: PLR1730
            both.peak_allocated = allocated
        if requested > both.peak_requested:  # noqa: PLR1730
            both.peak_requested = requested

    @property
    def inactive_split_bytes(self) -> Gauge:
        """Free bytes in split segments, of both pools."""
        return self._both.inactive_split_bytes

    @property
    def both(self) -> PoolStatistics:
        """Both pools together; its sums are made when it is asked for, its gauges are kept."""
        for name in _SUMS:
            setattr(self._both, name, getattr(self.small, name) + getattr(self.large, name))
        return self._both

    def tell_active(self) -> None:
        """Begin to count what is active apart from what is allocated."""
        if not self._both.tells_active:
            self.note_peaks()
            for statistics in (self.small, self.large, self._both):
                statistics.tell_active()

    def change_split(self, pool: PoolStatistics, count: int, nbytes: int) -> None:
        """Count a change of the free blocks in split segments."""
        both = self._both
        if nbytes > 0:
            pool.inactive_split_bytes.raise_by(nbytes)
            both.inactive_split_bytes.raise_by(nbytes)
        else:
            pool.inactive_split_bytes.current += nbytes
            both.inactive_split_bytes.current += nbytes
        if count > 0:
            pool.inactive_split.raise_by(count)
            both.inactive_split.raise_by(count)
        elif count:
            pool.inactive_split.current += count
            both.inactive_split.current += count

    def segment_came(self, pool: PoolStatistics, nbytes: int, *, oversize: bool) -> None:
        """Count a segment that the device gave."""
        self.memory_came(pool, nbytes)
        for statistics in (pool, self._both):
            statistics.segment.raise_by(1)
        if oversize:
            self.oversize_segments.raise_by(1)

    def segment_went(self, pool: PoolStatistics, nbytes: int, *, oversize: bool) -> None:
        """Count a segment that the device got back."""
        self.memory_went(pool, nbytes)
        for statistics in (pool, self._both):
            statistics.segment.lower_by(1)
        if oversize:
            self.oversize_segments.lower_by(1)

    def memory_came(self, pool: PoolStatistics, nbytes: int) -> None:
        """Count memory that the device gave."""
        self.num_device_alloc += 1
        for statistics in (pool, self._both):
            statistics.reserved_bytes.raise_by(nbytes)

    def memory_went(self, pool: PoolStatistics, nbytes: int) -> None:
        """Count memory that the device got back."""
        self.num_device_free += 1
        for statistics in (pool, self._both):
            statistics.reserved_bytes.lower_by(nbytes)

    def reset_peaks(self) -> None:
        """Lower all peaks to the current values."""
        for statistics in (self.small, self.large, self.both):
            statistics.reset_peaks()
        self.oversize_allocations.reset_peak()
        self.oversize_segments.reset_peak()

    def peaks(self) -> AllocatorPeaks:
        """Return the peaks of both pools together."""
        self.note_peaks()
        both = self._both
        return AllocatorPeaks(
            requested_bytes=both.peak_requested,
            allocated_bytes=both.peak_allocated,
            active_bytes=both.peak_active_bytes if both.tells_active else both.peak_allocated,
            reserved_bytes=both.reserved_bytes.peak,
        )

    def by_name(self, max_split_bytes: int | None) -> dict[str, int]:
        """Return the counts under the names of `torch.cuda.memory_stats()`."""
        self.note_peaks()
        counts = {
            "max_split_size": -1 if max_split_bytes is None else max_split_bytes,
            "num_alloc_retries": self.num_alloc_retries,
            "num_device_alloc": self.num_device_alloc,
            "num_device_free": self.num_device_free,
            "num_ooms": self.num_ooms,
            "num_sync_all_streams": self.num_sync_all_streams,
        }
        for pool, statistics in (("all", self.both), ("small_pool", self.small), ("large_pool", self.large)):
            for name, peak, increases, decreases in statistics.rows():
                counts |= _entries(f"{name}.{pool}", peak, increases, decreases)
        for name in ("oversize_allocations", "oversize_segments"):
            gauge: Gauge = getattr(self, name)
            counts |= _entries(name, gauge.peak, gauge.increases, gauge.increases - gauge.current)
        return counts


def _entries(name: str, peak: int, increases: int, decreases: int) -> dict[str, int]:
    return {
        f"{name}.allocated": increases,
        f"{name}.current": increases - decreases,
        f"{name}.freed": decreases,
        f"{name}.peak": peak,
    }
