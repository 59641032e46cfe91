"""What a memory snapshot holds."""

from __future__ import annotations

from dataclasses import dataclass

from memsim.allocator.state import SegmentState
from memsim.errors import UsageError
from memsim.step import AllocatorSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A line of code that was running."""

    name: str
    """The function."""
    filename: str
    """The file."""
    line: int
    """The number of the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """One entry of PyTorch's history."""

    action: str
    """PyTorch's word: those of `TraceEvent`, and some that change nothing (`snapshot`)."""
    address: int
    """Address of the block or segment; 0 for `oom`."""
    nbytes: int
    """Requested bytes of a block, bytes of a segment."""
    stream: int
    """Handle of the CUDA stream."""
    time_us: int
    """When it happened, in microseconds; 0 in files of old versions."""
    frames: tuple[Frame, ...]
    """The Python code that ran, innermost first; empty where none was recorded, and in most threads of backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """The beginning or end of a span that the program or PyTorch named (`Optimizer.step#AdamW.step`)."""

    starts: bool
    """Whether it begins."""
    name: str
    """Its name."""
    device: int
    """The device that was current."""
    time_us: int
    """When, on the clock of the events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHistory:
    """The memory of one device."""

    index: int
    """Its number."""
    segments: tuple[SegmentState, ...]
    """What the allocator held when the file was written, by address."""
    events: tuple[LoggedEvent, ...]
    """What happened before, as far back as PyTorch kept it."""

    @property
    def is_empty(self) -> bool:
        """Whether the program did not use it."""
        return not self.segments and not self.events


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A file of `torch.cuda.memory._dump_snapshot`."""

    devices: tuple[DeviceHistory, ...]
    """Every device, by number."""
    settings: AllocatorSettings
    """What decides the size of a block."""
    alloc_conf: str
    """`PYTORCH_CUDA_ALLOC_CONF`, as far as the file tells."""
    annotations: tuple[Annotation, ...]
    """Named spans of time."""

    def device(self, index: int | None = None) -> DeviceHistory:
        """Return one device; without `index` the only one that was used.

        Raises:
            UsageError: there is no such device, or there are several and none is named.
        """
        used = [device for device in self.devices if not device.is_empty]
        known = ", ".join(str(device.index) for device in used)
        if index is not None:
            if not 0 <= index < len(self.devices):
                raise UsageError(f"the snapshot has no device {index}; it has {known or 'none that was used'}.")
            return self.devices[index]
        if len(used) != 1:
            raise UsageError(f"the snapshot has {len(used)} devices that were used ({known or 'none'}): name one.")
        return used[0]
