"""Memory snapshots of PyTorch that somebody else wrote: read without running them, and made a trace.

>>> from memsim.snapshot_file import read_snapshot, trace_of_snapshot
>>> found = trace_of_snapshot(read_snapshot("snapshot.pickle"))
>>> found.trace.stats.peak_allocated_bytes, found.notes
"""

from memsim.snapshot_file.plain_pickle import SnapshotFileError
from memsim.snapshot_file.reading import read_snapshot
from memsim.snapshot_file.snapshot import Annotation, DeviceHistory, Frame, LoggedEvent, Snapshot
from memsim.snapshot_file.trace import SnapshotTrace, trace_of_snapshot

__all__ = [
    "Annotation",
    "DeviceHistory",
    "Frame",
    "LoggedEvent",
    "Snapshot",
    "SnapshotFileError",
    "SnapshotTrace",
    "read_snapshot",
    "trace_of_snapshot",
]
