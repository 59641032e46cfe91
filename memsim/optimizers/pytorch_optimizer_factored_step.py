"""Temporaries of `pytorch_optimizer`'s AdaFactor, read at 4.1.0, and why Kron's are not known."""

from __future__ import annotations

from collections.abc import Sequence

from memsim.model import ParameterSpec
from memsim.optimizers.low_rank_step import larger
from memsim.optimizers.pytorch_optimizer_step import by_first_dtype
from memsim.optimizers.rules import Arguments
from memsim.optimizers.shape_tensor import ShapeTensor, StateTensors, each, weight
from memsim.optimizers.step import Tape, register_step, register_unmodelled_step

register_unmodelled_step(
    "pytorch_optimizer.Kron",
    "a random number and a schedule decide at each step whether the preconditioner is updated and balanced",
)


@register_step(
    "pytorch_optimizer.AdaFactor",
    source="pytorch_optimizer/optimizer/adafactor.py, AdaFactor.step",
    ignores="With scale_parameter, the weights' root mean square is assumed to be above eps2 (0.001).",
)
def adafactor_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """Foreach form (its choice wherever gradients are dense) and for-loop."""
    for p in parameters:
        for entry in tape.entries(p):
            if entry.name != "RMS":
                tape.create_state(p, entry.name)
    if args["foreach"] is False:
        _each(tape, parameters, args)
        return
    for group in by_first_dtype(parameters):
        _foreach([weight(tape, p) for p in group], [StateTensors(tape, p) for p in group], args)


def _each(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    lr = update = factor = None
    for p in parameters:
        grad, state = weight(tape, p), StateTensors(tape, p)
        state["RMS"] = grad.norm()
        if args["scale_parameter"]:
            larger(state["RMS"], args["eps2"])
            lr = state["RMS"] * 1.0
        if _decays(args) and lr is not None:
            1.0 - 0.1 * lr * 1.0
        update = grad.square()
        if len(grad.shape) >= 2:
            update.mean(dim=-1)
            update.mean(dim=-2)
            _factors(state)
        if args["ams_bound"]:
            1.0 / update
            state["exp_avg_sq_hat"] / 1.0
        factor = update.norm()
        update = _momentum(update, state)
    del lr, update, factor


def _decays(args: Arguments) -> bool:
    return bool(args["weight_decay"] != 0 and args["weight_decouple"] and not args["fixed_decay"])


def _momentum(update: ShapeTensor, state: StateTensors) -> ShapeTensor:
    """The momentum has a dtype of its own, or is itself the update."""
    if "exp_avg" not in state.names:
        return update
    update.to(state["exp_avg"].dtype)
    return state["exp_avg"].to(update.dtype)


def _factors(state: StateTensors) -> None:
    """`approximate_sq_grad` (base/optimizer.py): the product of the two is written over the update."""
    row = state["exp_avg_sq_row"]
    r_factor = row / row.mean(dim=-1, keepdim=True)
    c_factor = state["exp_avg_sq_col"].rsqrt()
    del r_factor, c_factor


def _factors_foreach(states: Sequence[StateTensors]) -> None:
    rows = [state["exp_avg_sq_row"] for state in states]
    row_means = [row.mean(dim=-1, keepdim=True) for row in rows]
    r_factors = each(ShapeTensor.div, rows, row_means)
    c_factors = [state["exp_avg_sq_col"].rsqrt() for state in states]
    del row_means, r_factors, c_factors


def _foreach(grads: list[ShapeTensor], states: list[StateTensors], args: Arguments) -> None:
    rms_values: list[ShapeTensor] = []
    lrs: list[ShapeTensor] = []
    if args["scale_parameter"]:
        rms_values = [grad.norm() for grad in grads]
        lrs = [rms.clamp() for rms in rms_values]
        if _decays(args):
            each(ShapeTensor.clone, lrs)
    updates = [grad.pow(2) for grad in grads]
    v = _Halves(grads, updates)
    v.factor(states)
    updates = v.joined()
    inv_updates: list[ShapeTensor] = []
    if args["ams_bound"]:
        inv_updates = [update.reciprocal() for update in updates]
        updates = [state["exp_avg_sq_hat"].div(1.0) for state in states]
    rms_values = [update.norm() for update in updates]
    updates = _momenta(updates, states)
    del rms_values, lrs, updates
    v.end()
    del inv_updates


class _Halves:
    """The local variables of `_step_foreach` for gradients of two dimensions or more, and for the others."""

    def __init__(self, grads: list[ShapeTensor], updates: list[ShapeTensor]) -> None:
        self.factored = [i for i, grad in enumerate(grads) if len(grad.shape) >= 2]
        self.others = [i for i, grad in enumerate(grads) if len(grad.shape) < 2]
        self.factored_updates = [updates[i] for i in self.factored]
        self.other_updates = [updates[i] for i in self.others]
        self.row_means: list[ShapeTensor] = []
        self.col_means: list[ShapeTensor] = []

    def factor(self, states: list[StateTensors]) -> None:
        """Update the second moments, and make the updates from them."""
        for update in self.factored_updates:
            self.row_means.append(update.mean(dim=-1))
            self.col_means.append(update.mean(dim=-2))
        if self.factored:
            _factors_foreach([states[i] for i in self.factored])
        if self.others:
            self.other_updates = [states[i]["exp_avg_sq"].rsqrt() for i in self.others]

    def joined(self) -> list[ShapeTensor]:
        """Return the updates in the parameters' order."""
        pairs = zip((*self.factored, *self.others), (*self.factored_updates, *self.other_updates), strict=True)
        return [update for _, update in sorted(pairs, key=lambda pair: pair[0])]

    def end(self) -> None:
        """Leave the function: the variables of its loops outlive the lists that they went through."""
        last_factored = self.factored_updates[-1:]
        last = (self.factored_updates + self.other_updates)[-1:]
        self.factored_updates.clear()
        self.other_updates.clear()
        self.row_means.clear()
        self.col_means.clear()
        del last_factored
        del last


def _momenta(updates: list[ShapeTensor], states: list[StateTensors]) -> list[ShapeTensor]:
    if "exp_avg" not in states[0].names:
        return updates
    dtype = updates[0].dtype
    exp_avgs = [state["exp_avg"] for state in states]
    if exp_avgs[0].dtype == dtype:
        return exp_avgs
    converted = [update.to(exp_avgs[0].dtype) for update in updates]
    updates.clear()  # the name is bound to the converted ones
    momenta = [exp_avg.to(dtype) for exp_avg in exp_avgs]
    del converted
    return momenta
