"""Rows to a pandas DataFrame; pandas is imported only when a frame is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memsim.ledger import Category
from memsim.step.peaks import PhasePeak

if TYPE_CHECKING:
    import pandas as pd


def frame_of(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the rows as a DataFrame, columns in the order of the first row's keys."""
    import pandas as pd

    frame: pd.DataFrame = pd.DataFrame(list(rows))
    return frame


def phase_row(phase: PhasePeak) -> dict[str, Any]:
    """Return a phase as a row: its peaks, and a column for every category."""
    return {
        "step": phase.step,
        "phase": phase.phase.value,
        "peak_allocated_bytes": phase.peak_allocated_bytes,
        "end_allocated_bytes": phase.end_allocated_bytes,
        "peak_reserved_bytes": phase.peak_reserved_bytes,
        **{f"{category.value}_bytes": phase.by_category.get(category.value, 0) for category in Category},
    }
