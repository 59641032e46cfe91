"""Temporaries of `schedulefree`'s optimizers that `transformers.Trainer` builds, read at schedulefree 1.4.1.

Each `step()` loops over the groups itself, so that the last `denom` of one group lives into the next. The gradients are
changed in place.
"""

from __future__ import annotations

from collections.abc import Sequence

from memsim.model import ParameterSpec
from memsim.optimizers.rules import Arguments
from memsim.optimizers.step import Tape, register_step, register_unmodelled_step


@register_step("schedulefree.AdamWScheduleFree", source="schedulefree/adamw_schedulefree.py:103-213")
def adamw_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """Foreach (its default) and for-loop."""
    tape.create_state()
    _denominators(tape, parameters, args)


@register_step("schedulefree.RAdamScheduleFree", source="schedulefree/radam_schedulefree.py:107-235")
def radam_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """The same once the variance is tractable (`rho_t > 4`).

    Later steps are those after the fourth; earlier ones hold less.
    """
    tape.create_state()
    if not tape.first_step and 2 / (1 - args["betas"][1]) - 1 > 4:
        _denominators(tape, parameters, args)


@register_step("schedulefree.SGDScheduleFree", source="schedulefree/sgd_schedulefree.py:103-189")
def sgd_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:  # noqa: ARG001
    """Everything is in place."""
    tape.create_state()


def _denominators(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """`denom = exp_avg_sq.div(bias_correction2).sqrt_().add_(eps)`, or a list of them."""
    with tape.step_frame() as local:
        if args["foreach"]:
            if parameters:
                local.new_each("denom", parameters)
        else:
            for p in parameters:
                local.new("denom", p)


@register_step("schedulefree.AdamWScheduleFreePaper", source="schedulefree/adamw_schedulefree_paper.py:107-216")
def adamw_paper_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """As `AdamWScheduleFree`."""
    adamw_step(tape, parameters, args)


@register_step("schedulefree.AdamWScheduleFreeReference", source="schedulefree/adamw_schedulefree_reference.py:113-199")
def adamw_reference_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:  # noqa: ARG001
    """A denominator, which lives on, and the next point, which does not."""
    with tape.step_frame() as local:
        for p in parameters:
            tape.create_state(p)
            local.new("denom", p)
            local.brief(p, name="y")  # y.copy_(x.mul(beta1).add_(z, alpha=1 - beta1))


@register_step("schedulefree.SGDScheduleFreeReference", source="schedulefree/sgd_schedulefree_reference.py:102-178")
def sgd_reference_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:  # noqa: ARG001
    """The next point, which is copied."""
    with tape.step_frame() as local:
        for p in parameters:
            tape.create_state(p)
            local.brief(p, name="y")


for _name in ("AdamWScheduleFreeClosure", "RAdamScheduleFreeClosure", "SGDScheduleFreeClosure"):
    register_unmodelled_step(
        f"schedulefree.{_name}", "its step() runs the model's forward and backward inside itself, through a closure"
    )
