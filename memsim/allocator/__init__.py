"""PyTorch's caching allocator of CUDA memory in plain Python: what a sequence of requests really takes.

>>> from memsim.allocator import AllocatorConfig, CachingAllocator
>>> allocator = CachingAllocator(AllocatorConfig.parse("expandable_segments:True"), total_bytes=80 * 2**30)
>>> address = allocator.malloc(1000)
"""

from memsim.allocator.allocator import CachingAllocator, DeviceOutOfMemory
from memsim.allocator.config import AllocatorConfig
from memsim.allocator.driver import DeviceMemory, Driver
from memsim.allocator.state import BlockState, SegmentState

__all__ = [
    "AllocatorConfig",
    "BlockState",
    "CachingAllocator",
    "DeviceMemory",
    "DeviceOutOfMemory",
    "Driver",
    "SegmentState",
]
