"""`torch.optim.Adafactor`: torch/optim/_adafactor.py @2.13.0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like, step_tensor, tensor
from memsim.optimizers.step import Frame, Tape, by_dtype, register_step, scalar
from memsim.optimizers.torch_optim.forms import TORCH
from memsim.optimizers.torch_optim.tape import count_steps, negate_and_decay, negate_each
from memsim.tensors import TensorSpec

_ARGUMENTS = {
    "lr": 1e-2,
    "beta2_decay": -0.8,
    "eps": (None, 1e-3),
    "d": 1.0,
    "weight_decay": 0.0,
    "foreach": Optional(bool),
    "maximize": False,
}


@register("torch.optim.Adafactor", arguments=_ARGUMENTS, source="torch/optim/_adafactor.py:95-116", **TORCH)
def adafactor(parameter: ParameterSpec, _: Arguments) -> Entries:
    """A row and a column of the last two dimensions; the whole second moment for vectors. All in the gradient's dtype.

    Raises:
        UsageError: a parameter without elements, by whose number the step divides (_adafactor.py:390).
    """
    spec = parameter.tensor
    if not spec.numel:
        raise UsageError(
            f"torch.optim.Adafactor cannot step {parameter.name!r}, which has no elements (shape {spec.shape}):\n"
            "it divides by their number. Freeze it or leave it out."
        )
    step = step_tensor(on_device=False)
    if len(spec.shape) < 2:
        return (step, like("variance", parameter))
    row, col = (*spec.shape[:-1], 1), (*spec.shape[:-2], 1, spec.shape[-1])
    return (step, tensor("row_var", row, spec.dtype), tensor("col_var", col, spec.dtype))


@register_step("torch.optim.Adafactor", source="torch/optim/_adafactor.py:330-658")
def adafactor_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """For-loop, which it prefers on every device, and foreach."""
    tape.create_state()
    if args["foreach"]:
        _multi(tape, parameters, args)
    else:
        _single(tape, parameters, args)


def _reduced(p: ParameterSpec, *dims: int) -> TensorSpec:
    """Return the parameter's tensor with the given dimensions, counted from the end, of size 1."""
    shape = list(p.tensor.shape)
    for dim in dims:
        shape[dim] = 1
    return TensorSpec(tuple(shape), p.tensor.dtype)


def _single(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    with tape.frame("grad", "row_mean", "col_mean", "var_estimate", "grad_squared", "update") as local:
        for p in parameters:
            negate_and_decay(local, p, args, decay=False)
            local.brief(scalar(p.tensor.dtype), parameter=p.name)  # param.norm(2).item()
            if len(p.tensor.shape) > 1:
                local.new("row_mean", _reduced(p, -1), parameter=p.name)
                local.new("col_mean", _reduced(p, -2), parameter=p.name)
                local.new("var_estimate", p)
                local.brief(_reduced(p, -1, -2), parameter=p.name)
            else:
                local.new("grad_squared", p)
                local.new("var_estimate", p)
            local.alias("update", "var_estimate")
            local.brief(scalar(p.tensor.dtype), parameter=p.name)  # update.norm(2).item()


def _multi(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    with tape.frame() as local:
        for group in _by_dtype_and_rank(parameters):
            negate_each(local, group, args)
            count_steps(tape, local, on_device=False)
            for p in group:
                local.brief(scalar(p.tensor.dtype), parameter=p.name)
            if len(group[0].tensor.shape) > 1:
                _factored_estimates(local, group)
            else:
                local.new_each("grads_squared", group)
                local.forget("grads_squared")
                local.new_each("var_estimates", group)
            local.alias("updates", "var_estimates")
            for p in group:
                local.brief(scalar(p.tensor.dtype), parameter=p.name)


def _factored_estimates(local: Frame, group: Sequence[ParameterSpec]) -> None:
    for name, dim in (("row_means", -1), ("col_means", -2)):
        local.new_each(name, [_reduced(p, dim) for p in group])
        local.forget(name)
    local.new_each("var_estimates", group)
    local.new_each("row_var_means", [_reduced(p, -1, -2) for p in group])
    local.forget("row_var_means")


def _by_dtype_and_rank(parameters: Sequence[ParameterSpec]) -> Iterator[list[ParameterSpec]]:
    """`_group_tensors_by_device_dtype_and_is_multidim` (_adafactor.py:419): matrices and vectors apart."""
    for group in by_dtype(parameters):
        parts: dict[bool, list[ParameterSpec]] = {}
        for p in group:
            parts.setdefault(len(p.tensor.shape) > 1, []).append(p)
        yield from parts.values()
