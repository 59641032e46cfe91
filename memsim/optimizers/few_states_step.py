"""Temporaries of CAME and Adam-mini, read at the versions of few_states.py."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from memsim.model import ParameterSpec
from memsim.optimizers.low_rank_step import approx_sq_grad, factored_state, rms
from memsim.optimizers.rules import Arguments
from memsim.optimizers.shape_tensor import ShapeTensor, StateTensors, new, variables, weight
from memsim.optimizers.step import Tape, register_step
from memsim.tensors import TensorSpec


@register_step("came_pytorch.CAME", source="came_pytorch/CAME.py:70-174")
def came_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """One parameter after the other, in float32."""
    v = variables(tape, "grad", "update", "res", "res_approx")
    for p in parameters:
        v.grad = weight(tape, p)
        if p.tensor.dtype in {"float16", "bfloat16"}:
            v.grad = v.grad.float()
        names = ("exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_res_row", "exp_avg_res_col")
        state = factored_state(tape, p, v.grad, *names)
        state["RMS"] = rms(weight(tape, p))
        v.update = (v.grad**2) + args["eps"][0]
        factored = len(v.grad.shape) >= 2
        if factored:
            v.update.mean(dim=-1)
            v.update.mean(dim=-2)
            v.update = approx_sq_grad(state["exp_avg_sq_row"], state["exp_avg_sq_col"])
        else:
            v.update = state["exp_avg_sq"].rsqrt()
        (rms(v.update) / args["clip_threshold"]).clamp_()
        v.res = (v.update - state["exp_avg"]) ** 2 + args["eps"][1]
        if factored:
            v.res.mean(dim=-1)
            v.res.mean(dim=-2)
            v.res_approx = approx_sq_grad(state["exp_avg_res_row"], state["exp_avg_res_col"])
            v.update = v.res_approx
        else:
            v.update = state["exp_avg"].clone()
        v.update.neg()


@register_step("adam_mini.Adam_mini", source="adam_mini/adam_mini.py:211-404")
def adam_mini_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:  # noqa: ARG001
    """One parameter after the other: a bias as in Adam, a matrix by its rows or heads, all else as one block."""
    v = variables(tape, "h", "stepsize", "tmp_lr", "update", "block_numel")
    for p in parameters:
        grad, state = weight(tape, p), StateTensors(tape, p)
        if "v" in state.names:
            state.create("m", "v")
            v.h = state["v"].sqrt() / 1.0
            v.stepsize = None  # a number
        elif len(tape.entries(p)[-1].tensor.shape) == 2:
            state.create("m", "vmean")
            _by_rows(v, grad, state)
        else:
            _as_one_block(tape, v, grad, state)


def _by_rows(v: SimpleNamespace, grad: ShapeTensor, state: StateTensors) -> None:
    rows = state["m"].shape[0]
    v.tmp_lr = (grad * grad).view(rows, -1).mean(dim=1, keepdim=True)
    v.h = state["vmean"].sqrt() / 1.0
    v.stepsize = 1.0 / v.h
    v.update = state["m"] * v.stepsize
    v.update.neg()


def _as_one_block(tape: Tape, v: SimpleNamespace, grad: ShapeTensor, state: StateTensors) -> None:
    if tape.creates_state:
        v.block_numel = new(tape, TensorSpec((), "int64", "host"), grad.parameter).to("float32")
        v.block_numel = v.block_numel.to(device="host" if tape.on_cpu else "device")
        state.create("m")
        state["vmean"] = (grad * grad).sum().like()
    v.tmp_lr = (grad * grad).sum()
    v.tmp_lr = v.tmp_lr / 1.0
    v.h = state["vmean"].sqrt() / 1.0
    v.stepsize = 1.0 / v.h
    v.update = state["m"] * v.stepsize
    v.update.neg()
