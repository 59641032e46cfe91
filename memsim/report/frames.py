"""Rows to a pandas DataFrame; pandas is imported only when a frame is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def frame_of(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the rows as a DataFrame, columns in the order of the first row's keys."""
    import pandas as pd

    frame: pd.DataFrame = pd.DataFrame(list(rows))
    return frame
