"""Temporaries of `lion_pytorch`'s two optimizers, read at the version of their state rule (simple_packages.py)."""

from __future__ import annotations

from collections.abc import Sequence

from memsim.model import ParameterSpec
from memsim.optimizers.rules import Arguments
from memsim.optimizers.step import Tape, register_step


def _triton(args: Arguments) -> str:
    return "the Triton kernel of lion_pytorch has not been read" if args["use_triton"] else ""


@register_step("lion_pytorch.Lion", source="lion_pytorch/lion_pytorch.py:60-98", refuses=_triton)
def lion_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:  # noqa: ARG001
    """One parameter after the other, in a function of its own: `exp_avg.clone().mul_(beta1).add(grad).sgn_()`."""
    for p in parameters:
        tape.create_state(p)
        with tape.frame() as local:
            local.new("update", p, p)


@register_step("lion_pytorch.foreach.Lion", source="lion_pytorch/foreach.py:38-96")
def foreach_lion_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:  # noqa: ARG001
    """Copies of all momenta of a group, which live until the next group's are made."""
    tape.create_state()
    with tape.step_frame() as local:
        local.new_each("updates", parameters)
