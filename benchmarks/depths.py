"""Reduces the depth of a model of every model_type in the catalog, and prints what is left of which stack.

python benchmarks/depths.py                 one model of every type
python benchmarks/depths.py llama gemma3    some types
"""

from __future__ import annotations

import argparse
import time

from memsim import catalog
from memsim.catalog import CatalogEntry
from memsim.config import TrainingConfig
from memsim.errors import MemsimError
from memsim.record.depth import reduced_depth


def main() -> None:
    """Print a line for each model, and how many were reduced."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model_types", nargs="*", help="default: all")
    wanted = parser.parse_args().model_types
    first: dict[str, CatalogEntry] = {}
    for entry in catalog.entries():
        first.setdefault(entry.model_type, entry)
    chosen = {name: entry for name, entry in first.items() if not wanted or name in wanted}
    num_reduced = sum(_reduce(entry) for entry in chosen.values())
    print(f"{num_reduced} of {len(chosen)} model types reduced")


def _reduce(entry: CatalogEntry) -> bool:
    begun = time.perf_counter()
    try:
        found = reduced_depth(entry.config, TrainingConfig(task=entry.task, dtype="float32"))
        said = (
            "whole" if found is None else ", ".join(f"{s.prefix} {s.num_layers} -> {s.num_left}" for s in found.stacks)
        )
    except MemsimError as error:
        found, said = None, str(error).splitlines()[0]
    print(f"{entry.model_type:20} {time.perf_counter() - begun:6.2f} s  {entry.id}: {said}", flush=True)
    return found is not None


if __name__ == "__main__":
    main()
