"""Recorded steps: every alloc and free with its holder, replayed into blocks, peaks and phases, without torch."""

from memsim.step.trace import (
    AllocatorSettings,
    AllocatorStats,
    Holder,
    OutOfMemory,
    SectionStart,
    Span,
    StepTrace,
    TraceDevice,
    TraceEvent,
    trace_of,
)

__all__ = [
    "AllocatorSettings",
    "AllocatorStats",
    "Holder",
    "OutOfMemory",
    "SectionStart",
    "Span",
    "StepTrace",
    "TraceDevice",
    "TraceEvent",
    "trace_of",
]
