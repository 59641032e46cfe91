"""What the classes of `torch.optim` have in common: the package, the form of `step()`, the place of `step`."""

from __future__ import annotations

from typing import Literal

from memsim.errors import UsageError
from memsim.optimizers.rules import Arguments, StateEntry, step_tensor

TORCH = {"package": "torch", "version": "2.13.0"}

Form = Literal["foreach", "fused", "for-loop"]


def chosen_form(args: Arguments, *, default: Form) -> Form:
    """Return the form of `step()` that the arguments ask for; `default` where they leave it open.

    PyTorch chooses by itself only where neither `foreach` nor `fused` is given, and `differentiable` rules foreach out
    (`_default_to_fused_or_foreach`, torch/optim/optimizer.py:161-186 @2.13.0).

    Raises:
        UsageError: `foreach` and `fused` together, or one of them with `differentiable`.
    """
    foreach, fused, differentiable = args.get("foreach"), args.get("fused"), args.get("differentiable")
    if foreach and fused:
        raise UsageError("foreach=True and fused=True exclude each other: give one of them.")
    if differentiable and (foreach or fused):
        form = "foreach" if foreach else "fused"
        raise UsageError(f"differentiable=True has no {form} form: leave {form} out.")
    if fused:
        return "fused"
    if foreach:
        return "foreach"
    return default if foreach is None and fused is None and not differentiable else "for-loop"


def step_entry(args: Arguments, name: str = "step") -> StateEntry:
    """Return the entry `step`, after checking the form: on the device where `capturable` or `fused` asks for it."""
    form = chosen_form(args, default="for-loop")
    return step_tensor(on_device=form == "fused" or bool(args.get("capturable")), name=name)
