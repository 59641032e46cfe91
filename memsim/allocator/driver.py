"""What the allocator asks of the CUDA driver: memory in segments, and addresses into which pages are mapped."""

from __future__ import annotations

from bisect import insort
from typing import Protocol

from memsim.units import GIB, MIB

GRANULE_BYTES = 2 * MIB
"""The unit in which a device gives memory away."""
FIRST_ADDRESS = 1 << 45
"""Where addresses begin; any multiple of the granule would do."""
RESERVATIONS_OFFSET = 16 * 1024 * GIB
"""Reserved addresses begin this far above those of whole segments, so that the two never meet."""


class Driver(Protocol):
    """A device's memory."""

    def malloc(self, nbytes: int) -> int | None:
        """Return the address of a new segment (`cudaMalloc`), or `None` when the device is full."""

    def free(self, address: int, nbytes: int) -> None:
        """Take a segment back (`cudaFree`)."""

    def reserve(self, nbytes: int) -> int:
        """Return the address of a new range without memory (`cuMemAddressReserve`)."""

    def unreserve(self, address: int, nbytes: int) -> None:
        """Take a reserved range back (`cuMemAddressFree`)."""

    def map_pages(self, nbytes: int) -> bool:
        """Put memory behind reserved addresses (`cuMemCreate`, `cuMemMap`); `False` when the device is full."""

    def unmap_pages(self, nbytes: int) -> None:
        """Take mapped memory back (`cuMemUnmap`, `cuMemRelease`)."""

    @property
    def free_bytes(self) -> int:
        """What the device has left."""


class _Addresses:
    """Ranges of addresses, the lowest free one first."""

    def __init__(self, start: int) -> None:
        self._end = start
        self._holes: list[tuple[int, int]] = []

    def take(self, nbytes: int) -> int:
        for index, (start, hole) in enumerate(self._holes):
            if hole >= nbytes:
                if hole == nbytes:
                    del self._holes[index]
                else:
                    self._holes[index] = (start + nbytes, hole - nbytes)
                return start
        self._end += nbytes
        return self._end - nbytes

    def give_back(self, start: int, nbytes: int) -> None:
        insort(self._holes, (start, nbytes))
        index = self._holes.index((start, nbytes))
        if index + 1 < len(self._holes) and self._holes[index + 1][0] == start + nbytes:
            nbytes += self._holes.pop(index + 1)[1]
        if index > 0 and sum(self._holes[index - 1]) == start:
            start, nbytes = self._holes[index - 1][0], nbytes + self._holes.pop(index - 1)[1]
            index -= 1
        self._holes[index] = (start, nbytes)
        if start + nbytes == self._end:
            self._end = start
            del self._holes[index]


class DeviceMemory:
    """A device of `total_bytes` that gives the lowest free address; its pages never fragment.

    `outside_bytes` are held by others from the start: the CUDA context, other processes.
    """

    def __init__(self, total_bytes: int, *, outside_bytes: int = 0, first_address: int = FIRST_ADDRESS) -> None:
        self._free_bytes = total_bytes - outside_bytes
        self._segments = _Addresses(first_address)
        self._reservations = _Addresses(first_address + RESERVATIONS_OFFSET)

    @property
    def free_bytes(self) -> int:
        """What is left."""
        return self._free_bytes

    def malloc(self, nbytes: int) -> int | None:
        """Return the lowest free address for `nbytes`, or `None` when the device is full."""
        charged = _in_granules(nbytes)
        if charged > self._free_bytes:
            return None
        self._free_bytes -= charged
        return self._segments.take(charged)

    def free(self, address: int, nbytes: int) -> None:
        """Take a segment back."""
        charged = _in_granules(nbytes)
        self._free_bytes += charged
        self._segments.give_back(address, charged)

    def reserve(self, nbytes: int) -> int:
        """Return the lowest free range of addresses."""
        return self._reservations.take(_in_granules(nbytes))

    def unreserve(self, address: int, nbytes: int) -> None:
        """Take a range of addresses back."""
        self._reservations.give_back(address, _in_granules(nbytes))

    def map_pages(self, nbytes: int) -> bool:
        """Count `nbytes` as used, if they are there."""
        if nbytes > self._free_bytes:
            return False
        self._free_bytes -= nbytes
        return True

    def unmap_pages(self, nbytes: int) -> None:
        """Count `nbytes` as free again."""
        self._free_bytes += nbytes


def _in_granules(nbytes: int) -> int:
    return -(-nbytes // GRANULE_BYTES) * GRANULE_BYTES
