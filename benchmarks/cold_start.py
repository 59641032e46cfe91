"""Cold start of `memsim estimate` as a multiple of `python -c "import click, numpy"`.

    python benchmarks/cold_start.py [--runs 20]

Both commands run in turn, as whole processes, after one warm-up each; the ratio is that of the medians. Peak memory is
the kernel's figure for the finished process (`ru_maxrss`). The bar is 2.5 times and 150 MiB.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

BASELINE = [sys.executable, "-c", "import click, numpy"]
ESTIMATE = [sys.executable, "-m", "memsim", "estimate", "distilbert/distilbert-base-cased"]


class Run(NamedTuple):
    """One finished process."""

    wall_s: float
    cpu_s: float
    peak_rss_mib: float


def run(command: list[str]) -> Run:
    """Run a command to its end and return what the kernel says of it."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {process.returncode}")
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def main() -> None:
    """Print one line per command and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    measured: dict[str, list[Run]] = {"import click, numpy": [], "memsim estimate distilbert": []}
    for command in (BASELINE, ESTIMATE):
        run(command)
    for _ in range(runs):
        for name, command in zip(measured, (BASELINE, ESTIMATE), strict=True):
            measured[name].append(run(command))
    print("| command | wall s (median) | cpu s (median) | peak RSS MiB (max) |\n|---|---|---|---|")
    for name, results in measured.items():
        wall, cpu = (statistics.median(getattr(r, key) for r in results) for key in ("wall_s", "cpu_s"))
        print(f"| {name} | {wall:.3f} | {cpu:.3f} | {max(r.peak_rss_mib for r in results):.0f} |")
    base, ours = measured.values()
    for key in ("wall_s", "cpu_s"):
        ratio = statistics.median(getattr(r, key) for r in ours) / statistics.median(getattr(r, key) for r in base)
        print(f"{key} ratio: {ratio:.2f} (bar: 2.5)")


if __name__ == "__main__":
    main()
