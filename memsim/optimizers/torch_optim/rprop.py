"""`torch.optim.Rprop`: torch/optim/rprop.py @2.13.0."""

from __future__ import annotations

from collections.abc import Sequence

from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like
from memsim.optimizers.step import Frame, Tape, by_dtype
from memsim.optimizers.torch_optim.forms import TORCH, step_entry
from memsim.optimizers.torch_optim.tape import assign_where, count_steps, negate_and_decay, register_forms, where_number

_ARGUMENTS = {
    "lr": 1e-2,
    "etas": (0.5, 1.2),
    "step_sizes": (1e-6, 50),
    "capturable": False,
    "foreach": Optional(bool),
    "maximize": False,
    "differentiable": False,
}


@register("torch.optim.Rprop", arguments=_ARGUMENTS, source="torch/optim/rprop.py:95-115", **TORCH)
def rprop(parameter: ParameterSpec, args: Arguments) -> Entries:
    """The previous gradient and a step size for every element."""
    return (step_entry(args), like("prev", parameter), like("step_size", parameter))


def _single(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    with tape.frame() as local:
        for p in parameters:
            local.forget("grad")
            negate_and_decay(local, p, args)
            local.new("sign", p, p)  # grad.mul(prev).sign()
            _scale_signs(tape, local, p, args)
            local.new("grad", p)  # grad.clone()
            if args["capturable"]:
                where_number(local, p, "grad")
            else:
                assign_where(local, p, "grad", chosen=False)
            local.brief(p, name="grad_sign")


def _scale_signs(tape: Tape, local: Frame, p: ParameterSpec, args: Arguments) -> None:
    # The first product is with the zeros in `prev`, so that the third mask (sign == 0) is the true one.
    for chosen in (not tape.first_step, False, tape.first_step):
        if args["capturable"]:
            where_number(local, p, "sign")
        else:
            assign_where(local, p, "sign", chosen=chosen)


def _multi(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    with tape.frame() as local:
        for group in by_dtype(parameters):
            count_steps(tape, local, on_device=args["capturable"])
            local.new_each("signs", group)
            for index, p in enumerate(group):
                local.alias("sign", "signs", index)
                _scale_signs(tape, local, p, args)
            for p in group:
                where_number(local, p, "grad")
            local.forget("signs")
            local.new_each("grad_signs", group)


register_forms(
    "torch.optim.Rprop",
    source="torch/optim/rprop.py:223-410",
    single=_single,
    multi=_multi,
    ignores="A parameter without dimensions takes 8 bytes that depend on how its gradient's sign changes: "
    "it is assumed to stay.",
)
