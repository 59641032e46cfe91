"""Temporaries of `optimi` (torch-optimi), read at the version of optimi.py.

Each class has the same forms: one parameter after the other, in a function of its own; foreach, which works in the
memory of the gradients; and Triton kernels, which make nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from memsim.model import ParameterSpec
from memsim.optimizers.rules import Arguments
from memsim.optimizers.shape_tensor import ShapeTensor, StateTensors, each, new, weight
from memsim.optimizers.step import Tape, by_dtype, register_step
from memsim.tensors import TensorSpec

_TRITON = (
    "On an accelerator, triton=None is taken for True: what optimi does where triton is installed and foreach open."
)
_RECTIFIED = " A later step is one whose variance is rectified: with the default betas, from the sixth on."
_LOOKAHEAD = " Every k-th step makes one more tensor of the weight's size after the others are gone."

Single = Callable[[ShapeTensor, StateTensors, Tape], None]
Foreach = Callable[[Tape, Sequence[ParameterSpec]], None]


def _step(
    single: Single, foreach: Foreach, counter: str, tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments
) -> None:
    """`counter` says whether the group's step counter is made before the state, after it, or never."""
    triton = args["triton"] or (args["triton"] is None and args["foreach"] is None and not tape.on_cpu)
    if args["gradient_release"]:
        for p in parameters:
            state = StateTensors(tape, p).create()
            if not triton:
                single(weight(tape, p), state, tape)
        return
    _create(tape, counter)
    if triton:
        return
    if args["foreach"]:
        foreach(tape, parameters)
        return
    for p in parameters:
        single(weight(tape, p), StateTensors(tape, p), tape)


def _create(tape: Tape, counter: str) -> None:
    for moment in ("before", "state", "after"):
        if moment == "state":
            tape.create_state()
        elif moment == counter and tape.first_step:
            new(tape, TensorSpec((), "int32", "host"), name="step").becomes_state("step")


def _adam(_: ShapeTensor, state: StateTensors, __: Tape) -> None:
    state["exp_avg_sq"].sqrt()


def _rectified_adam(_: ShapeTensor, state: StateTensors, tape: Tape) -> None:
    if not tape.first_step:
        state["exp_avg_sq"].sqrt()


def _lion(_: ShapeTensor, state: StateTensors, __: Tape) -> None:
    state["exp_avg"].lerp()


def _nothing(*_: object) -> None:
    """Everything is in place."""


def _stable_adamw(grad: ShapeTensor, state: StateTensors, _: Tape) -> None:
    rms = grad.pow(2).div_(state["exp_avg_sq"].maximum(state["eps_sq"])).mean().sqrt()
    rms.item()
    state["exp_avg_sq"].sqrt()


def _each_lion(tape: Tape, parameters: Sequence[ParameterSpec]) -> None:
    dev_updates: tuple[ShapeTensor, ...] = ()
    for group in by_dtype(parameters):
        dev_updates = each(ShapeTensor.lerp, [StateTensors(tape, p)["exp_avg"] for p in group])
    del dev_updates


def _each_stable_adamw(tape: Tape, parameters: Sequence[ParameterSpec]) -> None:
    for group in by_dtype(parameters):
        states = [StateTensors(tape, p) for p in group]
        each(ShapeTensor.maximum, [s["exp_avg_sq"] for s in states], [s["eps_sq"] for s in states])
        for p in group:
            weight(tape, p).mean().sqrt().item()


_CLASSES: tuple[tuple[str, str, Single, Foreach, str, str], ...] = (
    ("Adam", "adam.py:95-453", _adam, _nothing, "after", ""),
    ("AdamW", "adamw.py, adam.py:95-453", _adam, _nothing, "after", ""),
    ("Adan", "adan.py:104-546", _adam, _nothing, "after", ""),
    ("RAdam", "radam.py:96-479", _rectified_adam, _nothing, "after", _RECTIFIED),
    ("Ranger", "ranger.py:102-561", _rectified_adam, _nothing, "after", _RECTIFIED + _LOOKAHEAD),
    ("Lion", "lion.py:89-380", _lion, _each_lion, "", ""),
    ("SGD", "sgd.py:99-421", _nothing, _nothing, "", ""),
    ("StableAdamW", "stableadamw.py:115-544", _stable_adamw, _each_stable_adamw, "before", ""),
)

for _name, _lines, _single, _foreach, _counter, _ignored in _CLASSES:
    register_step(f"optimi.{_name}", source=f"optimi/{_lines}", ignores=_TRITON + _ignored)(
        partial(_step, _single, _foreach, _counter)
    )
