"""Reading back whatever memsim saved."""

from __future__ import annotations

import json
from pathlib import Path

from memsim.comparison import KIND as COMPARISON
from memsim.comparison import Comparison, comparison_of
from memsim.dry_run.result import KIND as DRY_RUN
from memsim.dry_run.result import DryRun, dry_run_of
from memsim.errors import OutputError, UsageError, shown
from memsim.results import SCHEMA, Estimate, Estimates, estimates_of
from memsim.simulated_run import KIND as SIMULATION
from memsim.simulated_run import SimulatedRun, simulated_run_of


def load(path: str | Path) -> Estimate | Estimates | DryRun | Comparison | SimulatedRun:
    """Read back what `save` wrote.

    Raises:
        OutputError: there is no such file, or it does not hold a result of this schema.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OutputError(f"cannot read {str(path)!r}: {error.strerror or error}.") from error
    except TypeError as error:
        raise OutputError(f"a file name must be a text or a Path, not {shown(path)}.") from error
    except (ValueError, RecursionError) as error:
        raise OutputError(f"{str(path)!r} is not JSON ({error}): give a file that memsim saved.") from error
    if not isinstance(data, dict) or "schema" not in data:
        raise OutputError(f"{str(path)!r} is not a result that memsim saved: it has no schema.")
    try:
        if data["schema"] != SCHEMA:
            raise OutputError(f"{str(path)!r} has schema {shown(data['schema'])}; this memsim reads schema {SCHEMA}.")
        if data.get("kind") == COMPARISON:
            return comparison_of(data)
        if data.get("kind") == SIMULATION:
            return simulated_run_of(data)
        return dry_run_of(data) if data.get("kind") == DRY_RUN else estimates_of(data)
    except (KeyError, TypeError, AttributeError) as error:
        raise OutputError(f"{str(path)!r} is not a result that memsim saved: {error!r} is missing or wrong.") from error
    except (ValueError, UsageError) as error:
        raise OutputError(f"{str(path)!r} is not a result that memsim saved: {error}.") from error
