"""The runs behind the logs of real GPUs: `logged_programs` as their scripts ran them, with every request."""

import gc
from contextlib import nullcontext

import torch
from logged_programs import CUDA, LARGE, MEDIUM, CourseAdamW, LanguageModel, OwnAdamW, course_loss, own_loss


class Recording:
    """The requests of one run to the allocator, from an empty one on; and what PyTorch said it held."""

    def __init__(self):
        torch.cuda.init()
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 0
        torch.cuda.memory._record_memory_history(None)  # forgets what there was
        torch.cuda.memory._record_memory_history(context=None, max_entries=10**6)
        self.num_earlier = _num_requests()

    def start(self):
        """Begin with what the log shows."""
        torch.cuda.reset_peak_memory_stats()
        self.num_before = _num_requests() - self.num_earlier
        self.allocated_start = torch.cuda.memory_allocated()

    def stop(self, *, empties_cache):
        """Return the requests as [key, bytes], 0 bytes for a free, and what was held from `start` on."""
        keys, requests = {}, []
        for event in torch.cuda.memory._snapshot()["device_traces"][0]:
            if event["action"] == "alloc":
                keys[event["addr"]] = len(requests)
                requests.append([len(requests), event["size"]])
            elif event["action"] == "free_requested":
                requests.append([keys.pop(event["addr"]), 0])
        return {
            "requests": requests,
            "num_before": self.num_before,
            "empties_cache": empties_cache,
            "allocated_start": self.allocated_start,
            "allocated_end": torch.cuda.memory_allocated(),
            "peak_allocated": torch.cuda.max_memory_allocated(),
            "peak_reserved": torch.cuda.max_memory_reserved(),
        }


def _num_requests():
    stats = torch.cuda.memory_stats()
    return stats["allocation.all.allocated"] + stats["allocation.all.freed"]


def _ids(*shape):
    return torch.zeros(*shape, dtype=torch.long, device=CUDA)


def _autocast(enabled):
    return torch.autocast("cuda", dtype=torch.bfloat16, enabled=enabled)


def medium(length, *, train, autocast):
    """Five warm-ups, then the run of the log."""
    recording = Recording()
    model = LanguageModel(MEDIUM, length, own=False)
    optimizer = CourseAdamW(model.parameters())
    warm_ids, ids = _ids(5, MEDIUM.B, length), _ids(1, MEDIUM.B, length)
    if not train:
        with torch.inference_mode():
            for place in range(6):
                if place == 5:
                    recording.start()
                with _autocast(autocast):
                    model((warm_ids if place < 5 else ids)[place % 5])
        return recording.stop(empties_cache=False)
    warm_targets, targets = _ids(5, MEDIUM.B, length), _ids(1, MEDIUM.B, length)
    for place in range(5):
        with _autocast(autocast):
            logits = model(warm_ids[place])
            loss = course_loss(logits, warm_targets[place])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    del logits, loss
    recording.start()
    with _autocast(autocast):
        logits = model(ids[0])
        loss = course_loss(logits, targets[0])
    loss.backward()
    optimizer.step()
    return recording.stop(empties_cache=False)


def large(length=128, *, train, autocast=False, after_forward=False):
    """The first step of a new model; `after_forward`: of a second one in a process that has run a forward pass."""
    recording = Recording()
    if after_forward:
        LanguageModel(LARGE, length, own=True)(_ids(LARGE.B, length))
    model = LanguageModel(LARGE, length, own=True)
    optimizer = OwnAdamW(model.parameters())
    batch = _ids(LARGE.B, length)
    with _autocast(True) if autocast else nullcontext():
        recording.start()
        torch.cuda.empty_cache()
        optimizer.zero_grad()
        logits = model(batch)
        if train:
            loss = own_loss(logits, batch)
            loss.backward()
            optimizer.step()
    return recording.stop(empties_cache=True)


def record(runs):
    """Return what each of `runs`, a function's name and its arguments, asked for."""
    torch.set_float32_matmul_precision("high")
    return {
        "torch": torch.__version__,
        "runs": [{"medium": medium, "large": large}[name](**arguments) for name, arguments in runs],
    }
