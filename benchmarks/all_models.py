"""Every catalog model with three optimizers in one process (bar: under 5 s).

python benchmarks/all_models.py
"""

from __future__ import annotations

import resource
import time

import memsim
from memsim import catalog

OPTIMIZERS = ("adamw_torch", "adafactor", "adamw_bnb_8bit")


def main() -> None:
    """Print how long it took and the peak memory of the process."""
    start = time.perf_counter()
    num_models = 0
    for entry in catalog.entries():
        memsim.compare(entry.id, OPTIMIZERS)
        num_models += 1
    seconds = time.perf_counter() - start
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{num_models} models x {len(OPTIMIZERS)} optimizers: {seconds:.2f} s, peak RSS {peak_mib:.0f} MiB")


if __name__ == "__main__":
    main()
