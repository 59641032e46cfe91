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
    start, start_cpu = time.perf_counter(), time.process_time()
    num_models = 0
    for entry in catalog.entries():
        memsim.compare(entry.id, OPTIMIZERS)
        num_models += 1
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{num_models} models x {len(OPTIMIZERS)} optimizers, peak RSS {peak_mib:.0f} MiB")
    print(f"{seconds:.2f} s, of them {cpu_seconds:.2f} s of CPU (bar: 5 s)")


if __name__ == "__main__":
    main()
