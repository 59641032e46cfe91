"""The allocator against the logs of real GPUs: every address, every segment, every total."""

import json

import pytest
from conftest import SHARED, needs_shared

from memsim.allocator import AllocatorConfig, BlockState, CachingAllocator, SegmentState

MIB = 2**20
GIB = 2**30
FOLDER = SHARED / "ground_truth" / "replay"
NAMES = sorted(path.name for path in FOLDER.glob("*.json")) if FOLDER.is_dir() else ["none"]
ACTIONS = {"a": "alloc", "r": "free_requested", "f": "free_completed", "S": "segment_alloc", "F": "segment_free"}


class LoggedAddresses:
    """A driver that gives the addresses that the real one gave: they are all that cannot be known beforehand."""

    free_bytes = 0

    def __init__(self, addresses):
        self.addresses = iter(addresses)

    def malloc(self, nbytes):
        return next(self.addresses)

    def free(self, address, nbytes):
        pass


class Books:
    """The totals after each event of a log, from the addresses in it: nothing is searched."""

    def __init__(self, start_segments):
        self.size, self.live, self.small = {}, {}, {}
        self.reserved = self.allocated = 0
        self.segments = {}
        for address, nbytes, kind, blocks in start_segments:
            self.segment(address, nbytes, kind == "small")
            del self.size[address]
            for block, block_bytes, asked in blocks:
                self.size[block], self.small[block] = block_bytes, kind == "small"
                self.live[block] = asked is not None
                self.allocated += block_bytes if asked is not None else 0

    def segment(self, address, nbytes, small):
        self.reserved += nbytes
        self.segments[address] = nbytes
        self.size[address], self.live[address], self.small[address] = nbytes, False, small

    def take(self, action, address, nbytes):
        if action == "segment_alloc":
            self.segment(address, nbytes, nbytes == 2 * MIB)
        elif action == "segment_free":
            assert self.size.pop(address) == self.segments.pop(address) == nbytes
            assert not self.live[address]
            self.reserved -= nbytes
        elif action == "alloc":
            self.alloc(address, max(-(-nbytes // 512) * 512, 512))
        elif action == "free_requested":
            self.allocated -= self.size[address]
        else:
            self.free(address)

    def alloc(self, address, rounded):
        assert not self.live[address]
        rest, small = self.size[address] - rounded, self.small[address]
        assert rest >= 0
        if rest >= 512 if small else rest > MIB:
            self.size[address], self.size[address + rounded] = rounded, rest
            self.live[address + rounded], self.small[address + rounded] = False, small
        self.live[address] = True
        self.allocated += self.size[address]

    def free(self, address):
        self.live[address] = False
        after = address + self.size[address]
        if after in self.size and after not in self.segments and not self.live[after]:
            self.size[address] += self.size.pop(after)
        if address not in self.segments:
            before = max(start for start in self.size if start < address)
            if not self.live[before]:
                self.size[before] += self.size.pop(address)


def start_state(log):
    for address, nbytes, kind, blocks in log["start_segments"]:
        yield SegmentState(
            address=address,
            nbytes=nbytes,
            stream=log["stream"],
            small=kind == "small",
            blocks=tuple(
                BlockState(
                    address=block,
                    nbytes=block_bytes,
                    requested_bytes=asked or 0,
                    state="inactive" if asked is None else "active_allocated",
                )
                for block, block_bytes, asked in blocks
            ),
        )


@needs_shared
@pytest.mark.parametrize("name", NAMES)
def test_every_address_segment_and_total_of_a_real_gpus_log_comes_out(name):
    log = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    events = [(ACTIONS[kind], address, nbytes) for kind, address, nbytes in log["events"]]
    made = []
    allocator = CachingAllocator(
        AllocatorConfig(),
        total_bytes=80 * GIB,
        torch_version="2.6" if name.startswith("kkaitlyn111") else "2.11",
        driver=LoggedAddresses(address for action, address, _ in events if action == "segment_alloc"),
        segments=start_state(log),
        sink=lambda action, address, nbytes, stream: made.append((action, address, nbytes)),
    )
    books = Books(log["start_segments"])
    for index, event in enumerate(events):
        if len(made) == index:  # else it was told together with the one before it
            action, address, nbytes = event
            if action == "free_requested":
                allocator.free(address)
            elif action == "segment_free":
                allocator.empty_cache()
            else:
                assert action in {"alloc", "segment_alloc"}
                allocator.malloc(nbytes if action == "alloc" else events[index + 1][2])
        assert made[index] == event, index
        books.take(*event)
        if len(made) == index + 1:
            assert (allocator.allocated_bytes, allocator.reserved_bytes) == (books.allocated, books.reserved), index
    assert len(made) == len(events)
    expected = log["expected"]
    assert allocator.reserved_bytes == expected["reserved_end"]
    assert allocator.allocated_bytes == expected["allocated_end"]
    assert allocator.peaks.allocated_bytes == expected["peak_allocated"]
    assert allocator.peaks.reserved_bytes == expected["peak_reserved"]
