"""State of `transformers.optimization.Adafactor`: row and column means of the squared gradient, nothing of full size.

Read at transformers 5.24.0, transformers/optimization.py:1173-1294. It differs from `torch.optim.Adafactor` in
its keys, in keeping half-precision parameters' state in float32, and in the `RMS` scalar.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like, python_number, tensor
from memsim.optimizers.step import Frame, Tape, register_step
from memsim.tensors import TensorSpec

ADAFACTOR: dict[str, Any] = {
    "lr": Optional(float),
    "eps": (1e-30, 1e-3),
    "clip_threshold": 1.0,
    "decay_rate": -0.8,
    "beta1": Optional(float),
    "weight_decay": 0.0,
    "scale_parameter": True,
    "relative_step": True,
    "warmup_init": False,
}


@register(
    "transformers.optimization.Adafactor",
    arguments=ADAFACTOR,
    package="transformers",
    version="5.24.0",
    source="transformers/optimization.py:1219-1257",
    ignores="After a checkpoint with half-precision weights is loaded, the state has the weights' dtype until the "
    "next step makes it float32 again (torch/optim/optimizer.py, load_state_dict).",
)
def adafactor(parameter: ParameterSpec, args: Arguments) -> Entries:
    """One mean per row and one per column of the last two dimensions; vectors and scalars keep every square.

    Nothing depends on the size: a (1, 768) weight is factored too, into more elements than it has. `exp_avg` exists
    only with `beta1`. `RMS` is a scalar tensor from the first step on. All are float32 for float16 and bfloat16
    parameters, since the gradient is converted first, and of the gradient's dtype otherwise.
    """
    shape, state_dtype = parameter.tensor.shape, _work_dtype(parameter)
    momentum = (like("exp_avg", parameter, state_dtype),) if args["beta1"] is not None else ()
    if len(shape) >= 2:
        squares: Entries = (
            tensor("exp_avg_sq_row", shape[:-1], state_dtype),
            tensor("exp_avg_sq_col", shape[:-2] + shape[-1:], state_dtype),
        )
    else:
        squares = (like("exp_avg_sq", parameter, state_dtype),)
    return (python_number("step"), *momentum, *squares, tensor("RMS", (), state_dtype))


def _work_dtype(parameter: ParameterSpec) -> str:
    dtype = parameter.tensor.dtype
    return "float32" if dtype in {"float16", "bfloat16"} else dtype


@register_step("transformers.optimization.Adafactor", source="transformers/optimization.py:1202-1294")
def adafactor_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """One parameter after the other; the last tensors of one are alive while those of the next are made.

    With `scale_parameter` the learning rate is a scalar tensor, as for every parameter whose root mean square is above
    `eps[1]` (0.001); below it, as for zeros, Python takes the number instead and makes one scalar less.
    """
    with tape.step_frame() as local:
        for p in parameters:
            work = TensorSpec(p.tensor.shape, _work_dtype(p))
            converted = work.dtype != p.tensor.dtype
            local.forget("grad")
            if converted:
                local.new("grad", work, parameter=p.name)
            _create_state(tape, local, p, args)
            local.forget("p_data_fp32")
            if converted:
                local.new("p_data_fp32", work, parameter=p.name)
            _root_mean_square(tape, local, p, work)
            _learning_rate(local, p, work, args)
            _update(local, p, work)
            if args["beta1"] is not None:
                local.forget("update")  # update = exp_avg
            if args["weight_decay"] != 0 and args["scale_parameter"] and work.numel:
                local.brief(_scalar(work), parameter=p.name, name="alpha")  # -weight_decay * lr
            local.brief(work, parameter=p.name, name="-update")


def _scalar(work: TensorSpec) -> TensorSpec:
    return TensorSpec((), work.dtype)


def _create_state(tape: Tape, local: Frame, p: ParameterSpec, args: Arguments) -> None:
    """`torch.zeros(shape).to(grad)` makes the row and column means on the host in float32 first."""
    if not tape.first_step:
        return
    for entry in adafactor(p, args):
        if entry.name in {"step", "RMS"}:
            continue
        zeros = []
        if entry.name in {"exp_avg_sq_row", "exp_avg_sq_col"} and not (tape.on_cpu and entry.tensor.dtype == "float32"):
            on_host = TensorSpec(entry.tensor.shape, "float32", "host")
            zeros.append(local.open(on_host, parameter=p.name, name="zeros"))
        tape.allocate(entry.tensor, p.name, entry.name, "optimizer_state")
        local.end(*zeros)


def _root_mean_square(tape: Tape, local: Frame, p: ParameterSpec, work: TensorSpec) -> None:
    """`state["RMS"] = p.norm(2) / numel**0.5`: a new tensor at every step, and the old one dies.

    From the second step on the events end the new one instead of the old, which has the same size.
    """
    norm = local.open(_scalar(work), parameter=p.name, name="norm")
    rms = tape.allocate(_scalar(work), p.name, "RMS", "optimizer_state" if tape.first_step else "temporary")
    local.end(norm)
    if not tape.first_step:
        local.end(rms)


def _learning_rate(local: Frame, p: ParameterSpec, work: TensorSpec, args: Arguments) -> None:
    """`max(eps[1], state["RMS"]) * lr`, or a number. An empty parameter's RMS is not a number: `max` takes eps."""
    if args["scale_parameter"]:
        local.brief(TensorSpec((), "bool"), parameter=p.name, name="RMS > eps")
    if args["scale_parameter"] and work.numel:
        local.new("lr", _scalar(work), parameter=p.name)
    else:
        local.forget("lr")


def _update(local: Frame, p: ParameterSpec, work: TensorSpec) -> None:
    local.new("update", work, work, parameter=p.name)  # (grad**2) + eps[0]
    if len(work.shape) >= 2:
        row = TensorSpec(work.shape[:-1], work.dtype)
        column = TensorSpec(work.shape[:-2] + work.shape[-1:], work.dtype)
        local.brief(row, parameter=p.name, name="update.mean(dim=-1)")
        local.brief(column, parameter=p.name, name="update.mean(dim=-2)")
        mean = local.open(TensorSpec((*row.shape[:-1], 1), work.dtype), parameter=p.name, name="exp_avg_sq_row.mean")
        r_factor = local.open(row, parameter=p.name, name="r_factor")
        local.end(mean)
        c_factor = local.open(column, parameter=p.name, name="c_factor")
        product = local.open(work, parameter=p.name, name="update")
        local.end(r_factor, c_factor)
        local.receive("update", product)
    else:
        local.new("update", work, parameter=p.name)  # exp_avg_sq.rsqrt().mul_(grad)
    # (rms(update) / clip_threshold).clamp_(min=1.0)
    local.brief(_scalar(work), _scalar(work), _scalar(work), parameter=p.name, name="clip")
