"""Temporaries of Muon and of the splits with Adam, read at the versions of muon.py."""

from __future__ import annotations

from collections.abc import Sequence

from memsim.model import ParameterSpec
from memsim.optimizers.muon import takes_muon
from memsim.optimizers.registry import resolve_optimizer
from memsim.optimizers.rules import Arguments
from memsim.optimizers.shape_tensor import ShapeTensor, StateTensors, weight
from memsim.optimizers.step import Tape, register_step, register_unmodelled_step, step_events

register_unmodelled_step(
    "moonlight.examples.toy_train.Muon", "its Newton-Schulz iteration is compiled: TorchInductor decides what is made"
)


@register_step("muon.SingleDeviceMuon", source="muon.py:5-31,34-41,96-105")
def single_device_muon_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:  # noqa: ARG001
    """One parameter after the other; the update of one lives until the next one's is there."""
    for p in parameters:
        state = StateTensors(tape, p).create()
        tape.variables.update = _orthogonalised(weight(tape, p))
        del state


@register_step("muon.SingleDeviceMuonWithAuxAdam", source="muon.py:5-31,108-113,215-238")
def muon_with_adam_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """The same, with an Adam step for what Muon does not take."""
    for p in parameters:
        state = StateTensors(tape, p).create()
        muon = takes_muon(p, args)
        tape.variables.update = _orthogonalised(weight(tape, p)) if muon else _adam_update(weight(tape, p), state)


@register_step("Muon+AdamW", source="torch/optim/_muon.py:31-70,308-345, torch/optim/adam.py:347-900")
def torch_muon_and_adamw_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """The step of `torch.optim.Muon`, then that of `torch.optim.AdamW`."""
    by_muon = [p for p in parameters if len(p.tensor.shape) == 2 and takes_muon(p, args)]
    others = [p for p in parameters if p not in by_muon]
    adamw = resolve_optimizer("torch.optim.AdamW", {"fused": True} if args["fused"] else {})
    for optimizer, taken in ((resolve_optimizer("torch.optim.Muon"), by_muon), (adamw, others)):
        if taken:
            tape.replay(step_events(optimizer, taken, first_step=tape.first_step, on_cpu=tape.on_cpu))


def _orthogonalised(update: ShapeTensor) -> ShapeTensor:
    """`zeropower_via_newtonschulz5(update, steps=5)`: Gram matrices of the shorter side, in bfloat16."""
    x = update.to("bfloat16")
    tall = update.shape[-2] > update.shape[-1]
    if tall:
        x = x.t()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.t()
        b = 1.0 * a + (1.0 * a) @ a
        x = 1.0 * x + b @ x
    return x.t() if tall else x


def _adam_update(grad: ShapeTensor, state: StateTensors) -> ShapeTensor:
    grad.square()
    buf1c = state["exp_avg"] / 1.0
    buf2c = state["exp_avg_sq"] / 1.0
    return buf1c / (buf2c.sqrt() + 1e-10)
