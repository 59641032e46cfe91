"""Random requests to PyTorch's allocator and to memsim's, compared after every one; runs on an imaginary GPU.

The environment's `CASES` is a list of `{"name", "conf", "total_bytes", "num_operations", "seed"}` and options;
`model_conf` and `model_version` make memsim's allocator another one. Each case runs in a fork of its own, as PyTorch
takes some settings only before its allocator is made. Prints a JSON object: what each case saw, or its first
difference.
"""

import contextlib
import ctypes
import json
import os
import random
import re
import traceback

import torch

from memsim.allocator import AllocatorConfig, CachingAllocator, DeviceMemory, DeviceOutOfMemory

MIB = 2**20
EDGES = (1, 511, 512, 513, MIB - 1, MIB, MIB + 1, 2 * MIB, 10 * MIB - 512, 10 * MIB, 10 * MIB + 1)
EDGES += (19 * MIB - 512, 19 * MIB, 20 * MIB, 20 * MIB + 1)


class Both:
    """The two allocators, and what they have handed out."""

    def __init__(self, case):
        self.random = random.Random(case["seed"])
        self.records = case.get("records", False)
        self.is_other_version = "model_version" in case
        self.most_bytes = case.get("most_bytes", 200 * MIB)
        self.device = ctypes.CDLL("libmemsim_device.so")
        self.device.igpu_arena.restype = ctypes.c_size_t
        torch.cuda.init()
        torch.cuda.memory._record_memory_history(context=None, max_entries=10**6)
        num_streams = case.get("num_streams", 1)
        self.streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(num_streams - 1))]
        total = torch.cuda.get_device_properties(0).total_memory
        self.memory = DeviceMemory(total, first_address=self.device.igpu_arena())
        self.events = []
        self.model = CachingAllocator(
            AllocatorConfig.parse(case.get("model_conf", case["conf"])),
            total_bytes=total,
            torch_version=case.get("model_version", torch.__version__),
            driver=self.memory,
            sink=lambda *event: self.events.append(event),
        )
        self.live = []

    def num_bytes(self):
        kind = self.random.random()
        if kind < 0.35:
            return self.random.randint(1, MIB)
        if kind < 0.45:
            return self.random.choice(EDGES)
        if kind < 0.75:
            return self.random.randint(MIB, 10 * MIB)
        return self.random.randint(10 * MIB, self.most_bytes)

    def malloc(self):
        nbytes, stream = self.num_bytes(), self.random.choice(self.streams)
        tensor = address = None
        with torch.cuda.stream(stream), contextlib.suppress(torch.OutOfMemoryError):
            tensor = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        with contextlib.suppress(DeviceOutOfMemory):
            address = self.model.malloc(nbytes, stream.cuda_stream)
        assert (None if tensor is None else tensor.data_ptr()) == address, ("address", nbytes)
        if address is not None:
            self.live.append((tensor, address))

    def free(self):
        tensor, address = self.live.pop(self.random.randrange(len(self.live)))
        del tensor
        self.model.free(address)

    def record_stream(self):
        tensor, address = self.random.choice(self.live)
        stream = self.random.choice(self.streams)
        tensor.record_stream(stream)
        self.model.record_stream(address, stream.cuda_stream)

    def toggle_events(self):
        self.model.events_pending = not self.model.events_pending
        self.device.igpu_events_hold(int(self.model.events_pending))

    def empty_cache(self):
        torch.cuda.empty_cache()
        self.model.empty_cache()

    def reset_peaks(self):
        torch.cuda.reset_peak_memory_stats()
        self.model.reset_peak_memory_stats()

    def operate(self):
        choices = {self.malloc: 56, self.free: 42, self.empty_cache: 1, self.reset_peaks: 1}
        if self.records:
            choices |= {self.record_stream: 12, self.toggle_events: 3}
        operation = self.random.choices(list(choices), list(choices.values()))[0] if self.live else self.malloc
        operation()
        return operation.__name__

    def compare(self):
        real, mine = dict(torch.cuda.memory_stats()), self.model.memory_stats()
        if self.is_other_version:  # torch 2.11 does not count them
            del real["num_oom_rejections"]
            mine.pop("num_oom_rejections", None)
        # PyTorch goes through the streams in the order of a hash table: which of two waiting neighbours is freed first
        # decides how the count of split blocks gets to where it ends.
        loose = re.compile(r"inactive_split.*\.(peak|allocated|freed)") if self.records else re.compile("never")
        found = [
            (name, real.get(name), mine.get(name))
            for name in sorted({*real, *mine})
            if real.get(name) != mine.get(name) and not loose.match(name)
        ]
        assert not found, found[:5]
        assert torch.cuda.mem_get_info()[0] == self.memory.free_bytes, "free bytes of the device"

    def compare_state(self):
        real = [
            [
                (s["address"], s["total_size"], s["stream"], s["segment_type"] == "small", s["is_expandable"]),
                [(b["address"], b["size"], b["state"]) for b in s["blocks"]],
            ]
            for s in torch.cuda.memory_snapshot()
        ]
        mine = [
            [
                (s.address, s.nbytes, s.stream, s.small, s.expandable),
                [(b.address, b.nbytes, b.state) for b in s.blocks],
            ]
            for s in self.model.segments()
        ]
        assert sorted(real) == mine, "segments"
        history = torch.cuda.memory._snapshot()["device_traces"][0]
        told = [(e["action"], e.get("addr", 0), e["size"], e["stream"]) for e in history if e["action"] != "snapshot"]
        if self.records:
            told, self.events = sorted(told), sorted(self.events)
        assert told == self.events, "events"


def run(case):
    os.environ["MEMSIM_GPU"] = re.sub(r"memory=\d+", f"memory={case['total_bytes']}", os.environ["MEMSIM_GPU"])
    torch.cuda.memory._set_allocator_settings(case["conf"])
    both = Both(case)
    for number in range(case["num_operations"]):
        what = both.operate()
        try:
            both.compare()
        except AssertionError as error:
            raise AssertionError(number, what, *error.args) from error
    both.compare_state()
    counts = both.model.memory_stats()
    return {name: counts[name] for name in ("num_ooms", "num_alloc_retries", "num_device_free", "segment.all.freed")}


def main():
    results = {}
    for case in json.loads(os.environ["CASES"]):
        reading, writing = os.pipe()
        if os.fork() == 0:
            try:
                answer = run(case)
            except BaseException:
                answer = traceback.format_exc()[-1500:]
            os.write(writing, json.dumps(answer).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            results[case["name"]] = json.load(pipe)
        os.wait()
    print(json.dumps(results))


main()
