"""Speed of the caching allocator in plain Python (bar: 300,000 events a second; an event is a malloc or a free).

    python benchmarks/allocator.py [--layers 32] [--steps 5]

The requests are those of training steps of a decoder: every layer's activations wait for its backward, temporaries come
and go, gradients appear and are freed, as in logs of real GPUs. Where the folder ../shared is there, the ten logs in it
are timed too, and the reference model of the allocator beside ours. Each figure is the least CPU time of three runs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

from memsim.allocator import AllocatorConfig, CachingAllocator

BAR = 300_000
TOTAL_BYTES = 80 * 2**30
SHARED = Path(__file__).resolve().parents[2] / "shared"

Operation = tuple[int, int]
"""A request's number with its bytes, or with -1 for its free."""


def training(num_layers: int, num_steps: int) -> list[Operation]:
    """Return the requests of a decoder with `num_layers` layers: hidden size 1024, batch 4, 512 tokens, float32."""
    sizes = Sizes()
    weights = [sizes.new(nbytes) for _ in range(num_layers) for nbytes in (4 << 20, 4 << 20, 16 << 20, 16 << 20, 4096)]
    for _ in range(num_steps):
        saved = [_forward(sizes) for _ in range(num_layers)]
        gradients: list[int] = []
        for kept in reversed(saved):
            gradients += _backward(sizes, kept)
        for number in gradients:
            sizes.free(sizes.new(sizes.nbytes[number]))
        for number in gradients:
            sizes.free(number)
    assert weights
    return sizes.operations


class Sizes:
    """Operations while they are made."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.nbytes: list[int] = []

    def new(self, nbytes: int) -> int:
        """Ask for a block and return its number."""
        self.nbytes.append(nbytes)
        self.operations.append((len(self.nbytes) - 1, nbytes))
        return len(self.nbytes) - 1

    def free(self, number: int) -> None:
        """Give a block back."""
        self.operations.append((number, -1))


def _forward(sizes: Sizes) -> list[int]:
    kept = []
    for _ in range(12):
        kept.append(sizes.new(8 << 20))
        sizes.free(sizes.new(8 << 20))
        kept.append(sizes.new(8192))
        sizes.free(sizes.new(4096))
    return kept


def _backward(sizes: Sizes, kept: list[int]) -> Iterator[int]:
    running = sizes.new(8 << 20)
    for index, number in enumerate(reversed(kept)):
        following = sizes.new(8 << 20)
        sizes.free(sizes.new(32 << 10))
        sizes.free(running)
        sizes.free(number)
        running = following
        if index % 6 == 0:
            yield sizes.new((4 << 20, 16 << 20, 4096, 16 << 20)[index // 6])
    sizes.free(running)


def logged(path: Path) -> list[Operation]:
    """Return the requests of a real GPU's log, after those for what was there when it began."""
    log = json.loads(path.read_text(encoding="utf-8"))
    sizes = Sizes()
    number_of: dict[int, int] = {}
    for _, _, _, blocks in log["start_segments"]:
        number_of |= {address: sizes.new(asked) for address, _, asked in blocks if asked is not None}
    for kind, address, nbytes in log["events"]:
        if kind == "a":
            number_of[address] = sizes.new(nbytes)
        elif kind == "f":
            sizes.free(number_of.pop(address))
    return sizes.operations


def seconds(operations: list[Operation], malloc: Callable[[int], int], free: Callable[[int], None]) -> float:
    """Return the CPU time of all operations."""
    addresses = [0] * len(operations)
    start = time.process_time()
    for number, nbytes in operations:
        if nbytes < 0:
            free(addresses[number])
        else:
            addresses[number] = malloc(nbytes)
    return time.process_time() - start


def events_per_second(operations: list[Operation], conf: str) -> float:
    """Return the best of three runs."""
    best = float("inf")
    for _ in range(3):
        allocator = CachingAllocator(AllocatorConfig.parse(conf), total_bytes=TOTAL_BYTES)
        best = min(best, seconds(operations, allocator.malloc, allocator.free))
    return len(operations) / best


def reference() -> ModuleType | None:
    """Return the reference model, if it is there."""
    path = SHARED / "reference" / "alloc_model.py"
    if not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location("alloc_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Print events a second and the memory that it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    streams = {f"{arguments.steps} steps of {arguments.layers} layers": training(arguments.layers, arguments.steps)}
    for path in sorted((SHARED / "ground_truth" / "replay").glob("*.json")):
        streams[path.stem[-40:]] = logged(path)
    model = reference()
    slowest = float("inf")
    print(
        "| requests | events | default, events/s | expandable, events/s | times the reference |\n|---|---|---|---|---|"
    )
    for name, operations in streams.items():
        plain, expandable = events_per_second(operations, ""), events_per_second(operations, "expandable_segments:True")
        slowest = min(slowest, plain, expandable)
        ratio = ""
        if model is not None:
            theirs = model.CachingAllocator(TOTAL_BYTES)
            ratio = f"{plain * seconds(operations, theirs.malloc, theirs.free) / len(operations):.1f}"
        print(f"| {name} | {len(operations):,} | {plain:,.0f} | {expandable:,.0f} | {ratio} |")
    print(f"slowest: {slowest:,.0f} events/s, {'over' if slowest >= BAR else 'UNDER'} the bar of {BAR:,}")
    print(f"peak resident memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
