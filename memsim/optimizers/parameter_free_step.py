"""Temporaries of Prodigy and D-Adaptation, read at the versions of parameter_free.py.

Each goes through all groups once to measure and once more to update. A number is read of each parameter, and the rules
take for granted that it is not zero, in which case the real step ends early.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from memsim.model import ParameterSpec
from memsim.optimizers.rules import Arguments
from memsim.optimizers.shape_tensor import ShapeTensor, StateTensors, variables, weight
from memsim.optimizers.step import Tape, register_step, register_unmodelled_step

register_unmodelled_step(
    "prodigyplus.ProdigyPlusScheduleFree",
    "its stochastic rounding, its dimensions by size and its per-group sums have not been read for temporaries yet",
)

States = list[tuple[ShapeTensor, StateTensors]]
"""Parameters (or gradients) with their state."""


def _states(tape: Tape, parameters: Sequence[ParameterSpec]) -> States:
    return [(weight(tape, p), StateTensors(tape, p)) for p in parameters]


@register_step("prodigyopt.Prodigy", source="prodigyopt/prodigy.py:101-272")
def prodigy_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:  # noqa: ARG001
    """One parameter after the other."""
    states = _states(tape, parameters)
    for grad, state in states:
        if tape.creates_state:
            state.create("s")
            grad.any()
            state.create()
        grad.dot(state["p0"] - grad.narrow(*state["s"].shape))
        state["s"].abs().sum()
    tape.after_groups(1, partial(_denominators, tape, states))


def _denominators(tape: Tape, states: States) -> None:
    for _, state in states:
        tape.variables.denom = state["exp_avg_sq"].sqrt()


@register_step("dadaptation.DAdaptAdam", source="dadaptation/dadapt_adam.py:104-253")
def dadapt_adam_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:  # noqa: ARG001
    """One parameter after the other; both loops share the denominator."""
    states = _states(tape, parameters)
    for grad, state in states:
        state.create()
        tape.variables.denom = state["exp_avg_sq"].sqrt()
        grad.dot(state["s"].div(tape.variables.denom))
        state["s"].abs().sum()
    tape.after_groups(1, partial(_denominators, tape, states))


@register_step("dadaptation.DAdaptSGD", source="dadaptation/dadapt_sgd.py:70-204")
def dadapt_sgd_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """Three loops at the first step, whose first one squares the gradients; two at later steps."""
    states = _states(tape, parameters)
    if tape.first_step:
        for grad, _ in states:
            if args["weight_decay"] != 0:
                grad.add(grad)
            (grad * grad).sum()
    tape.after_groups(1, partial(_measure_sgd, states))
    tape.after_groups(2, partial(_update_sgd, states))


def _measure_sgd(states: States) -> None:
    for _, state in states:
        state.create()
        state["s"].dot(state["s"])
        (state["s"] * state["s"]).sum()


def _update_sgd(states: States) -> None:
    for _, state in states:
        state["x0"].sub(state["s"])


@register_step("dadaptation.DAdaptLion", source="dadaptation/dadapt_lion.py:66-158")
def dadapt_lion_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:  # noqa: ARG001
    """One loop."""
    for _, state in _states(tape, parameters):
        state.create()
        tape.variables.update = state["exp_avg"].clone()
        state["s"].dot(state["s"])
        state["s"].abs().sum()


@register_step("dadaptation.DAdaptAdan", source="dadaptation/dadapt_adan.py:113-243")
def dadapt_adan_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """One parameter after the other; both loops share the denominator and the update."""
    v = variables(tape, "grad_diff", "grad_grad", "update", "update_update", "denom")
    states = _states(tape, parameters)
    for grad, state in states:
        state.create()
        v.grad_diff = grad - state["pre_grad"]
        v.grad_grad = grad * grad
        v.update = grad + args["betas"][1] * v.grad_diff
        v.update_update = v.update * v.update
        v.denom = state["exp_avg_sq"].sqrt()
        v.grad_grad.sum()
        (state["s"] * state["s"]).sum()
        state["s"].abs().sum()
    tape.after_groups(1, partial(_update_adan, tape, states))


def _update_adan(tape: Tape, states: States) -> None:
    v = tape.variables
    for _, state in states:
        v.denom = state["exp_avg_sq"].sqrt()
        v.update = state["exp_avg"] + 0.9 * state["exp_avg_diff"]


@register_step("dadaptation.DAdaptAdaGrad", source="dadaptation/dadapt_adagrad.py:79-262")
def dadapt_adagrad_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """One parameter after the other, of dense gradients."""
    states = _states(tape, parameters)
    for grad, state in states:
        state.create()
        sk, alphak = state["sk"], state["alphak"]
        (sk * sk).div(alphak.sqrt() + args["eps"]).sum()
        sk.abs().sum()
        grad.mul(grad)
        (grad * grad).div(alphak.sqrt() + args["eps"]).sum()
        (sk * sk).div(alphak.sqrt() + args["eps"]).sum()
        sk.abs().sum()
    tape.after_groups(1, partial(_update_adagrad, tape, states))


def _update_adagrad(tape: Tape, states: States) -> None:
    for _, state in states:
        tape.variables.z = state["x0"] - state["sk"].div(state["alphak"].sqrt() + 1.0)
