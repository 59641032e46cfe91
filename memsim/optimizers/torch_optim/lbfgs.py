"""`torch.optim.LBFGS`: torch/optim/lbfgs.py @2.13.0.

`N` is the number of elements of all parameters together: everything is kept flat, under the first parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, StateEntry, python_number, tensor
from memsim.optimizers.torch_optim.forms import TORCH

_ARGUMENTS = {
    "lr": 1.0,
    "max_iter": 20,
    "max_eval": Optional(int),
    "tolerance_grad": 1e-7,
    "tolerance_change": 1e-9,
    "history_size": 100,
    "line_search_fn": Optional(str),
}
_OWN = {"num_iterations": Optional(int)}


MAX_HISTORY = 10_000
"""Each remembered iteration is two entries as large as the model; more than this is a typing error."""


def num_iterations(args: Arguments) -> int:
    """Return the inner iterations so far: as given, or as many as fill the history.

    Raises:
        UsageError: fewer than one, or no history at all.
    """
    given, history = args["num_iterations"], args["history_size"]
    iterations = history + 1 if given is None else given
    for name, value in (("history_size", history), ("num_iterations", iterations)):
        if not 1 <= value <= MAX_HISTORY + 1:
            raise UsageError(f"torch.optim.LBFGS: {name} must be from 1 to {MAX_HISTORY:,}, not {value}.")
    return int(iterations)


@register(
    "torch.optim.LBFGS",
    arguments=_ARGUMENTS,
    own_arguments=_OWN,
    whole=True,
    source="torch/optim/lbfgs.py:352-523",
    ignores="Iterations that learn nothing (y.s <= 1e-10) add no pair to the history: assumed that none is.",
    **TORCH,
)
def lbfgs(parameters: Sequence[ParameterSpec], args: Arguments) -> Iterable[tuple[ParameterSpec, Entries]]:
    """Direction and gradient of size N, and two vectors of size N for every remembered iteration.

    `num_iterations` (memsim's own argument) says how many inner iterations have run; by default the history is full,
    which is where training ends up after `history_size` iterations.
    """
    if not parameters:
        return []
    dtypes = {p.tensor.dtype for p in parameters}
    if len(dtypes) > 1:
        raise UsageError(
            f"torch.optim.LBFGS joins all gradients into one vector, so memsim wants one dtype, not {sorted(dtypes)}.\n"
            "Give all weights the same (--dtype)."
        )
    return [(parameters[0], _entries(sum(p.tensor.numel for p in parameters), dtypes.pop(), args))]


def _entries(numel: int, dtype: str, args: Arguments) -> Entries:
    def flat(name: str) -> StateEntry:
        return tensor(name, (numel,), dtype)

    def scalar(name: str) -> StateEntry:
        return tensor(name, (), dtype)

    iterations, history = num_iterations(args), args["history_size"]
    pairs = min(iterations - 1, history)
    counters = (python_number("func_evals"), python_number("n_iter"))
    # lbfgs.py:418: `H_diag = 1` until the first pair; :399: `al` has a slot for every pair there may ever be.
    first = iterations == 1
    slots = () if first else tuple(scalar(f"al[{i}]") if i < pairs else _none(f"al[{i}]") for i in range(history))
    # The first step length is divided by the sum of the gradients, taken to be above 1; after that it is lr, whose
    # default is an integer (lbfgs.py:448-451).
    step_length = scalar("t") if first else python_number("t", "int" if args["lr"] == 1 else "float")
    return (
        *counters,
        *slots,
        flat("d"),
        step_length,
        *(flat(f"old_dirs[{i}]") for i in range(pairs)),
        *(flat(f"old_stps[{i}]") for i in range(pairs)),
        *(scalar(f"ro[{i}]") for i in range(pairs)),
        python_number("H_diag") if first else scalar("H_diag"),
        flat("prev_flat_grad"),
        python_number("prev_loss", "float"),
    )


def _none(name: str) -> StateEntry:
    return python_number(name, "none")
