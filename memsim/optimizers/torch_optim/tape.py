"""Lines that the steps of `torch.optim` have in common, written on a frame.

`p` is one parameter, `group` the parameters of one dtype; a name in quotes is the variable in PyTorch's code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memsim.model import ParameterSpec
from memsim.optimizers.rules import Arguments
from memsim.optimizers.step import Frame, StepRule, Tape, register_step, scalar
from memsim.optimizers.torch_optim.forms import Form, chosen_form
from memsim.tensors import TensorSpec

F32 = scalar("float32")
"""What arithmetic with a `step` on the device makes."""
QUOTIENT = (F32, F32)
"""`number / tensor`: `Tensor.__rdiv__` makes `tensor.reciprocal()` and multiplies it."""
ONE_MINUS_POWER = (F32, F32)
"""`1 - beta**step`."""


def form_of(tape: Tape, args: Arguments) -> Form:
    """Return the form of `step()`; where the arguments leave it open it is foreach, and for-loop on the CPU.

    PyTorch also falls back to the for-loop if one of the parameters is of a tensor subclass, which is not seen here.
    """
    return chosen_form(args, default="for-loop" if tape.on_cpu else "foreach")


def register_forms(class_path: str, *, source: str, single: StepRule, multi: StepRule, ignores: str = "") -> None:
    """Register the step of a class that creates its state first and has a for-loop and a foreach form.

    Where it has a fused form too, that kernel updates everything in place.
    """
    forms = {"for-loop": single, "foreach": multi}

    @register_step(class_path, source=source, ignores=ignores)
    def step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
        tape.create_state()
        rule = forms.get(form_of(tape, args))
        if rule is not None:
            rule(tape, parameters, args)


def scalars(group: Sequence[ParameterSpec]) -> list[TensorSpec]:
    """Return one float32 scalar on the device for each parameter, as `step` with `capturable` is."""
    return [F32] * len(group)


def count_steps(tape: Tape, local: Frame, *, on_device: bool) -> None:
    """`torch._foreach_add_(device_state_steps, torch.tensor(1.0, device="cpu"), alpha=1.0)` for steps on the host."""
    if tape.on_cpu or not on_device:
        local.brief(scalar(device="host"), name="step")


def negate_and_decay(local: Frame, p: ParameterSpec, args: Arguments, *, decay: bool = True) -> None:
    """`grad = grads[i] if not maximize else -grads[i]`, then `grad = grad.add(param, alpha=weight_decay)`."""
    if args["maximize"]:
        local.new("grad", p)
    else:
        local.forget("grad")
    if decay and args.get("weight_decay"):
        local.new("grad", p)


def negate_each(local: Frame, group: Sequence[ParameterSpec], args: Arguments, *, name: str = "device_grads") -> None:
    """`device_grads = torch._foreach_neg(device_grads)` with `maximize`."""
    local.forget(name)
    if args["maximize"]:
        local.new_each(name, group)


def decay_each(local: Frame, group: Sequence[ParameterSpec], args: Arguments, *, name: str = "device_grads") -> None:
    """`device_grads = torch._foreach_add(device_grads, device_params, alpha=weight_decay)`, in place if negated."""
    if args["weight_decay"] and not args["maximize"]:
        local.new_each(name, group)


def promoted(p: ParameterSpec) -> ParameterSpec:
    """Return what an operation of `p` with a float32 scalar makes: a parameter without dimensions takes its dtype."""
    tensor = p.tensor
    return p if tensor.shape or tensor.itemsize >= F32.itemsize else replace(p, tensor=F32)


def where_number(local: Frame, p: ParameterSpec, name: str) -> None:
    """`x.copy_(torch.where(x.gt(0), number, x))`: the mask, the number as a tensor, and the result."""
    mask = local.open(TensorSpec(p.tensor.shape, "bool"), parameter=p.name, name=name)
    number = local.open(scalar(p.tensor.dtype), parameter=p.name, name=name)
    chosen = local.open(p, name=name)
    local.end(number, mask, chosen)


def assign_where(local: Frame, p: ParameterSpec, name: str, *, chosen: bool) -> None:
    """`x[x.gt(0)] = number`: the mask on the device, and the number as a tensor on the host.

    Where `x` has no dimensions, PyTorch makes an index of the mask: of one element if it is true (`chosen`), or none.
    """
    mask = local.open(TensorSpec(p.tensor.shape, "bool"), parameter=p.name, name=name)
    number = local.open(scalar(p.tensor.dtype, "host"), parameter=p.name, name=name)
    if not p.tensor.shape:
        local.brief(TensorSpec((int(chosen),), "int64"), parameter=p.name, name=name)
    local.end(number, mask)
