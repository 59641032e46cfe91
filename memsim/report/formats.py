"""The export formats: JSON and, through pandas, csv, parquet, markdown, html and xlsx."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memsim.errors import MissingPackageError, UsageError

if TYPE_CHECKING:
    import pandas as pd

    from memsim.report.chart import Chart

FORMATS = ("table", "json", "csv", "parquet", "markdown", "html", "xlsx")
"""Values of `--format`; `table` is for people, the others are for files and programs."""
BINARY_FORMATS = ("parquet", "xlsx")
SUFFIXES = {
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".xlsx": "xlsx",
    ".txt": "table",
    ".pickle": "snapshot",
    ".png": "png",
    ".svg": "svg",
}
"""Format by suffix; `snapshot`, for pytorch.org/memory_viz, and pictures are only there for results that hold events.
"""
PICTURES = ("png", "svg")


def format_of_suffix(suffix: str) -> str:
    """Return the format that a file name's suffix stands for.

    Raises:
        UsageError: the suffix stands for none.
    """
    if suffix.lower() not in SUFFIXES:
        raise UsageError(f"no format has the suffix {suffix!r}: use {', '.join(SUFFIXES)}, or say which with --format.")
    return SUFFIXES[suffix.lower()]


def render_json(data: Any) -> str:
    """Return indented JSON with a closing newline."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def render_frame(frame: pd.DataFrame, file_format: str) -> bytes:
    """Return a DataFrame as csv, parquet, markdown, html or xlsx.

    Raises:
        MissingPackageError: parquet without pyarrow, xlsx without openpyxl.
    """
    try:
        return _RENDERERS[file_format](frame)
    except ImportError as error:
        raise MissingPackageError(
            f"{file_format} needs the package {error.name or 'pyarrow'!r}: pip install 'memsim[export]'."
        ) from error


def render_picture(chart: Chart, file_format: str) -> bytes:
    """Return a chart as svg or png.

    Raises:
        MissingPackageError: png without matplotlib.
    """
    if file_format == "svg":
        from memsim.report.chart_svg import render_svg

        return render_svg(chart).encode()
    from memsim.report.chart_png import render_png

    return render_png(chart)


def _csv(frame: pd.DataFrame) -> bytes:
    return frame.to_csv(index=False).encode()


def _markdown(frame: pd.DataFrame) -> bytes:
    return (frame.to_markdown(index=False, disable_numparse=True) + "\n").encode()


def _html(frame: pd.DataFrame) -> bytes:
    return (frame.to_html(index=False) + "\n").encode()


def _parquet(frame: pd.DataFrame) -> bytes:
    import pyarrow  # noqa: F401  (pandas would try fastparquet too and name both in its error)

    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False, engine="pyarrow")
    return buffer.getvalue()


def _xlsx(frame: pd.DataFrame) -> bytes:
    import openpyxl  # noqa: F401  (pandas' own error names no package)

    buffer = io.BytesIO()
    frame.to_excel(buffer, index=False, engine="openpyxl")
    return buffer.getvalue()


_RENDERERS: dict[str, Callable[[pd.DataFrame], bytes]] = {
    "csv": _csv,
    "parquet": _parquet,
    "markdown": _markdown,
    "html": _html,
    "xlsx": _xlsx,
}
