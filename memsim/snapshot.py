"""A recorded step as a memory snapshot that PyTorch's own tools read: pytorch.org/memory_viz, torch.cuda._memory_viz.

The format is that of `torch.cuda.memory._snapshot()`; what the tools need of it was read from torch/cuda/_memory_viz.py
and MemoryViz.js @2.13.
"""

from __future__ import annotations

import pickle
from typing import Any

from memsim.errors import MemsimError
from memsim.step import StepTrace, TraceEvent
from memsim.step.blocks import Block, Segment, block_replay_of, has_segments

_PROTOCOL = 4
"""The viewer in the browser reads pickles of protocol 2 to 4."""


def snapshot_of(trace: StepTrace) -> dict[str, Any]:
    """Return a snapshot of plain lists, dicts, numbers and strings: every event, and the segments after the last one.

    Raises:
        MemsimError: the trace is not whole, or of a device without a caching allocator.
    """
    if trace.events and not has_segments(trace):
        raise MemsimError(
            "a snapshot shows the segments of CUDA's allocator: this run was on the CPU and has no segments."
        )
    replay = block_replay_of(trace)
    for event in trace.events:
        replay.apply(event)
    divisions = trace.settings.roundup_power2_divisions or (0,) * 16
    return {
        "segments": [_segment(segment) for segment in replay.segments()],
        "device_traces": [[_entry(event, index) for index, event in enumerate(trace.events)]],
        "allocator_settings": {
            "max_split_size": trace.settings.max_split_bytes or -1,
            "roundup_power2_divisions": {str(2**power): value for power, value in enumerate(divisions)},
        },
        "external_annotations": [],
    }


def snapshot_bytes(trace: StepTrace) -> bytes:
    """Return the snapshot as the pickle that `torch.cuda.memory._dump_snapshot` would write.

    Raises:
        MemsimError: the trace is not whole.
    """
    return pickle.dumps(snapshot_of(trace), protocol=_PROTOCOL)


def _segment(segment: Segment) -> dict[str, Any]:
    blocks = list(segment.in_order())
    active = [block for block in blocks if block.state != "inactive"]
    return {
        "device": 0,
        "address": segment.address,
        "total_size": segment.nbytes,
        "allocated_size": sum(block.nbytes for block in active if block.state == "active_allocated"),
        "active_size": sum(block.nbytes for block in active),
        "requested_size": sum(block.requested_bytes for block in active),
        "stream": segment.stream,
        "segment_type": "small" if segment.small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": segment.expandable,
        "frames": [],
        "blocks": [_block(block) for block in blocks],
    }


def _block(block: Block) -> dict[str, Any]:
    return {
        "address": block.address,
        "size": block.nbytes,
        "requested_size": block.requested_bytes,
        "state": block.state,
        "frames": _frames(block.event) if block.event is not None else [],
    }


def _entry(event: TraceEvent, index: int) -> dict[str, Any]:
    entry = {
        "action": event.action,
        "addr": event.address,
        "size": event.nbytes,
        "stream": event.stream,
        "time_us": index,  # the order is what counts; the viewer wants a number
        "compile_context": "N/A",
        "user_metadata": f"step {event.step}, {event.phase.value}",
        "pool_id": (0, 0),
        "frames": _frames(event) if event.action == "alloc" else [],
    }
    if event.action == "oom":
        del entry["addr"]
        entry["device_free"] = 0
    return entry


def _frames(event: TraceEvent) -> list[dict[str, Any]]:
    """Return what is known of an allocation as frames: what it was for, then the lines of code."""
    holder = event.holder
    if holder is None:
        return []
    what = " ".join(filter(None, (holder.name or holder.op, holder.dtype, str(list(holder.shape or ())))))
    frames = [{"name": what, "filename": f"{holder.category.value} of {holder.module or 'no module'}", "line": 0}]
    for text in dict.fromkeys((holder.library_line, holder.line)):
        place, _, name = text.partition(" in ")
        filename, _, line = place.rpartition(":")
        if line.isdigit():
            frames.append({"name": name, "filename": filename, "line": int(line)})
    return frames
