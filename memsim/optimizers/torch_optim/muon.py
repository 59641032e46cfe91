"""`torch.optim.Muon`: torch/optim/_muon.py @2.13.0."""

from __future__ import annotations

from collections.abc import Sequence

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like
from memsim.optimizers.step import Tape, register_step, scalar
from memsim.optimizers.step_event import StepEvent
from memsim.optimizers.torch_optim.forms import TORCH
from memsim.tensors import TensorSpec

_ARGUMENTS = {
    "lr": 1e-3,
    "weight_decay": 0.1,
    "momentum": 0.95,
    "nesterov": True,
    "ns_coefficients": (3.4445, -4.775, 2.0315),
    "eps": 1e-7,
    "ns_steps": 5,
    "adjust_lr_fn": Optional(str),
}


@register("torch.optim.Muon", arguments=_ARGUMENTS, source="torch/optim/_muon.py:129-160", **TORCH)
def muon(parameter: ParameterSpec, _: Arguments) -> Entries:
    """One momentum buffer and no step.

    Raises:
        UsageError: a parameter that is not a matrix, which the constructor refuses (_muon.py:129-133).
    """
    shape = parameter.tensor.shape
    if len(shape) != 2:
        raise UsageError(
            f"torch.optim.Muon takes 2-D parameters only; {parameter.name!r} has shape {shape}.\n"
            "Train the others with another optimizer (the Muon + AdamW split), or freeze them."
        )
    return (like("momentum_buffer", parameter),)


@register_step("torch.optim.Muon", source="torch/optim/_muon.py:31-70,308-345")
def muon_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """For-loop, the only form: the gradient in bfloat16, and Gram matrices of its shorter side."""
    tape.create_state()
    with tape.frame() as local:
        for p in parameters:
            if args["nesterov"]:
                local.new("update", p)  # grad.lerp(buf, momentum)
            else:
                local.forget("update")
            orthogonal = _orthogonalised(tape, p, args["ns_steps"])
            if orthogonal:
                local.receive("update", *orthogonal)


def _orthogonalised(tape: Tape, p: ParameterSpec, ns_steps: int) -> tuple[StepEvent, ...]:
    """`_zeropower_via_newtonschulz(update)`; nothing where it returns what it was given."""
    matrix = ParameterSpec(name=p.name, tensor=p.tensor.with_dtype("bfloat16"))
    side = min(p.tensor.shape)
    gram = ParameterSpec(name=p.name, tensor=TensorSpec((side, side), "bfloat16"))
    with tape.frame() as local:
        if p.tensor.dtype != "bfloat16":
            local.new("ortho_grad", matrix)
        norm = local.open(scalar("bfloat16"), parameter=p.name)
        clamped = local.open(scalar("bfloat16"), parameter=p.name)
        local.end(norm, clamped)
        for _ in range(ns_steps):
            local.new("gram_matrix", gram)
            local.new("gram_update", gram)
            local.new("ortho_grad", matrix)
        return local.result("ortho_grad")
