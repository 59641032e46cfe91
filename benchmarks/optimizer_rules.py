"""Every optimizer rule over the parameter table of a 405B model (bar: state under 50 ms for any of them).

    python benchmarks/optimizer_rules.py [--model meta-llama/Llama-3.1-405B] [--all]

The state is derived and its bytes are summed; the events of a first step are timed beside it. Each figure is the least
CPU time of three runs. Optimizers that refuse some of the parameters (Muon takes matrices only) get those they take.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers import derive_state, resolve_optimizer, rules, step_events, step_source
from memsim.resolve import resolve

STATE_BAR_MS = 50.0


def best_ms(work: Callable[[], object]) -> float:
    """Return the least CPU time of three runs, in milliseconds."""
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times) * 1000


def measure(class_path: str, parameters: tuple[ParameterSpec, ...]) -> tuple[float, float | None]:
    """Return the milliseconds of the state, and of the step's events where they are modelled."""
    optimizer = resolve_optimizer(class_path)
    try:
        derive_state(optimizer, parameters)
    except UsageError:
        parameters = tuple(p for p in parameters if len(p.tensor.shape) == 2)
    state = best_ms(lambda: derive_state(optimizer, parameters).total_bytes)
    if step_source(optimizer).rule is None:
        return state, None
    return state, best_ms(lambda: step_events(optimizer, parameters, first_step=True))


def main() -> None:
    """Print the slowest rules, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="meta-llama/Llama-3.1-405B")
    parser.add_argument("--all", action="store_true", help="print every optimizer, not the ten slowest")
    arguments = parser.parse_args()
    parameters = resolve(arguments.model).table.trainable
    measured = {path: measure(path, parameters) for path in rules()}
    slowest = sorted(measured.items(), key=lambda item: -item[1][0])
    print(f"{len(measured)} optimizers, {len(parameters)} parameter tensors of {arguments.model}")
    print("| optimizer | state ms | step events ms |\n|---|---|---|")
    for path, (state, events) in slowest if arguments.all else slowest[:10]:
        print(f"| {path} | {state:.1f} | {'not modelled' if events is None else f'{events:.1f}'} |")
    over = [path for path, (state, _) in measured.items() if state > STATE_BAR_MS]
    print(f"over {STATE_BAR_MS:.0f} ms: {', '.join(over) or 'none'}")


if __name__ == "__main__":
    main()
