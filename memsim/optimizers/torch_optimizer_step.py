"""Temporaries of `torch_optimizer` (jettify's package of 2021), read at the version of torch_optimizer.py.

Each class goes over its groups and parameters inside one `step()`: `v` holds the variables of that function that a
tensor may be in, and a body is what it does with one parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

from memsim.model import ParameterSpec
from memsim.optimizers.low_rank_step import factored_state, larger, rms
from memsim.optimizers.rules import Arguments
from memsim.optimizers.shape_tensor import ShapeTensor, StateTensors, new, variables, weight
from memsim.optimizers.step import Tape, register_step, register_unmodelled_step
from memsim.tensors import Device, TensorSpec

Body = Callable[[SimpleNamespace, ShapeTensor, StateTensors, Arguments, Tape], None]
_LATER = "A later step is one whose variance is rectified: with the default betas, from the sixth on."

for _name, _reason in {
    "Adahessian": "its step() runs a second backward inside itself for the diagonal of the Hessian",
    "AdamP": "whether an update is projected, and from which side, depends on the direction of the gradient",
    "SGDP": "whether an update is projected, and from which side, depends on the direction of the gradient",
    "SWATS": "the gradients decide at which step it turns from Adam to SGD",
    "Shampoo": "its matrix powers go through torch.svd on the host, whose temporaries are not modelled",
    "A2GradExp": "copy.deepcopy makes its state: what that makes on the way is not modelled",
    "A2GradInc": "copy.deepcopy makes its state: what that makes on the way is not modelled",
    "A2GradUni": "copy.deepcopy makes its state: what that makes on the way is not modelled",
    "AccSGD": "copy.deepcopy makes its state: what that makes on the way is not modelled",
}.items():
    register_unmodelled_step(f"torch_optimizer.{_name}", _reason)


def _each(
    name: str, source: str, *order: str, ignores: str = "", refuses: Callable[[Arguments], str] = lambda _: ""
) -> Callable[[Body], Body]:
    """Register a body; `order` is that of the variables in the real code, in which they die."""

    def decorate(body: Body) -> Body:
        def rule(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
            v = variables(tape, *order)
            for p in parameters:
                body(v, weight(tape, p), StateTensors(tape, p), args, tape)

        register_step(f"torch_optimizer.{name}", source=source, ignores=ignores, refuses=refuses)(rule)
        return body

    return decorate


@_each("AdaBelief", "torch_optimizer/adabelief.py:100-220", "grad_residual", "denom")
def _adabelief(v: SimpleNamespace, grad: ShapeTensor, state: StateTensors, args: Arguments, _: Tape) -> None:
    state.create()
    v.grad_residual = grad - state["exp_avg"]
    v.denom = state["max_exp_avg_var" if args["amsgrad"] else "exp_avg_var"].sqrt() / 1.0


@_each("AdaBound", "torch_optimizer/adabound.py:94-183", "grad", "denom", "step_size")
def _adabound(v: SimpleNamespace, grad: ShapeTensor, state: StateTensors, args: Arguments, _: Tape) -> None:
    v.grad = None
    state.create()
    if args["weight_decay"] != 0:
        v.grad = grad.add(grad)
    v.denom = state["max_exp_avg_sq" if args["amsbound"] else "exp_avg_sq"].sqrt()
    v.step_size = None  # a number
    v.step_size = v.denom.like()
    v.step_size.neg()


@_each("AdaMod", "torch_optimizer/adamod.py:74-152", "denom", "step_size")
def _adamod(v: SimpleNamespace, _: ShapeTensor, state: StateTensors, __: Arguments, ___: Tape) -> None:
    state.create()
    v.denom = state["exp_avg_sq"].sqrt()
    v.step_size = None  # a number
    v.step_size = v.denom.like()
    v.step_size = v.step_size.minimum(state["exp_avg_lr"])
    v.step_size.neg()


@_each(
    "Adafactor",
    "torch_optimizer/adafactor.py:123-218",
    "lr",
    "update",
    ignores="With scale_parameter, the weights' root mean square is assumed to be above eps2[1] (0.001).",
)
def _adafactor(v: SimpleNamespace, grad: ShapeTensor, state: StateTensors, args: Arguments, tape: Tape) -> None:
    state = factored_state(tape, state.parameter, grad, "exp_avg_sq_row", "exp_avg_sq_col")
    state["RMS"] = rms(grad)
    if args["scale_parameter"]:
        larger(state["RMS"], args["eps2"][1])
    v.lr = state["RMS"] * 1e-2 if args["scale_parameter"] else None
    v.update = grad**2 + args["eps2"][0]
    if len(grad.shape) >= 2:
        v.update.mean(dim=-1)
        v.update.mean(dim=-2)
        _factors(state["exp_avg_sq_row"], state["exp_avg_sq_col"])
    larger(rms(v.update) / args["clip_threshold"], 1.0)
    if args["beta1"] is not None:
        v.update = state["exp_avg"]
    if args["weight_decay"] != 0 and v.lr is not None:
        v.lr.mul(args["weight_decay"])
    v.update.neg()


def _factors(row: ShapeTensor, column: ShapeTensor) -> None:
    """The product of the two is written over the update."""
    r_factor = (row / row.mean(dim=-1)).unsqueeze(-1)
    c_factor = column.unsqueeze(-2).rsqrt()
    del r_factor, c_factor


@_each("AggMo", "torch_optimizer/aggmo.py:71-105")
def _aggmo(_: SimpleNamespace, __: ShapeTensor, state: StateTensors, ___: Arguments, ____: Tape) -> None:
    state.create()


def _keeps_graph(args: Arguments) -> str:
    if args["weight_decay"] == 0:
        return ""
    return "with weight_decay it adds the parameter itself outside no_grad, so that autograd keeps every step's graph"


@_each("Apollo", "torch_optimizer/apollo.py:76-158", "delta_grad", "denom", "v_sq", "delta", refuses=_keeps_graph)
def _apollo(v: SimpleNamespace, grad: ShapeTensor, state: StateTensors, args: Arguments, _: Tape) -> None:
    state.create()
    v.delta_grad = grad - state["exp_avg_grad"]
    v.denom = state["update"].norm(p=4).add(args["eps"])
    v.v_sq = state["update"].mul(state["update"])
    v.delta = v.delta_grad.sum().mul(-1.0) - state["approx_hessian"].mul(v.v_sq).sum()
    v.denom = state["approx_hessian"].abs()
    state["exp_avg_grad"].div(v.denom)


@_each("DiffGrad", "torch_optimizer/diffgrad.py:68-145", "previous_grad", "denom", "diff", "dfc", "exp_avg1")
def _diffgrad(v: SimpleNamespace, grad: ShapeTensor, state: StateTensors, _: Arguments, __: Tape) -> None:
    state.create()
    v.previous_grad = state["previous_grad"]
    v.denom = state["exp_avg_sq"].sqrt()
    v.diff = (v.previous_grad - grad).abs()
    v.dfc = (1.0 + v.diff.neg().exp()).div(1.0)
    state["previous_grad"] = grad.clone()
    v.exp_avg1 = state["exp_avg"] * v.dfc


@_each("LARS", "torch_optimizer/lars.py:112-166", "d_p", "p_norm", "g_norm", "lars_lr")
def _lars(v: SimpleNamespace, grad: ShapeTensor, state: StateTensors, args: Arguments, tape: Tape) -> None:
    v.d_p = grad
    v.p_norm = grad.norm()
    v.g_norm = grad.norm()
    if args["weight_decay"] != 0:
        v.p_norm.ne(0)
        v.g_norm.ne(0)
        v.lars_lr = v.p_norm / (v.g_norm + v.p_norm * args["weight_decay"] + args["eps"])
        v.d_p = grad.add(grad)
    _momentum(v, state, args, tape)


def _momentum(v: SimpleNamespace, state: StateTensors, args: Arguments, tape: Tape) -> None:
    """The buffer is a copy of the first update."""
    if args["momentum"] == 0:
        return
    if tape.creates_state:
        state["momentum_buffer"] = v.d_p.clone()
    v.d_p = v.d_p.add(state["momentum_buffer"]) if args["nesterov"] else state["momentum_buffer"]


@_each("SGDW", "torch_optimizer/sgdw.py:74-122", "d_p")
def _sgdw(v: SimpleNamespace, grad: ShapeTensor, state: StateTensors, args: Arguments, tape: Tape) -> None:
    v.d_p = grad
    _momentum(v, state, args, tape)


@_each(
    "Lamb",
    "torch_optimizer/lamb.py:82-158",
    "weight_norm",
    "adam_step",
    "adam_norm",
    "trust_ratio",
    ignores="Neither weights nor updates whose norm is zero.",
)
def _lamb(v: SimpleNamespace, grad: ShapeTensor, state: StateTensors, args: Arguments, _: Tape) -> None:
    state.create("exp_avg", "exp_avg_sq")
    v.weight_norm = grad.norm().clamp()
    v.adam_step = state["exp_avg"] / state["exp_avg_sq"].sqrt().add(args["eps"])
    v.adam_norm = v.adam_step.norm()
    v.weight_norm.eq(0)
    v.adam_norm.eq(0)
    v.trust_ratio = v.weight_norm / v.adam_norm
    state["weight_norm"] = v.weight_norm
    state["adam_norm"] = v.adam_norm
    state["trust_ratio"] = v.trust_ratio
    if args["adam"]:
        v.trust_ratio = None  # a number
    else:
        v.trust_ratio.mul(-1.0)


@_each("MADGRAD", "torch_optimizer/madgrad.py:78-185", "rms", "x0", "z", ignores="The constructor makes the state.")
def _madgrad(v: SimpleNamespace, grad: ShapeTensor, state: StateTensors, args: Arguments, _: Tape) -> None:
    if args["momentum"] == 0:
        v.rms = state["grad_sum_sq"].pow(1 / 3)
        v.x0 = grad.addcdiv(state["s"], v.rms)
        v.rms = state["grad_sum_sq"].pow(1 / 3)
        v.x0.addcdiv(state["s"], v.rms)
        return
    v.rms = state["grad_sum_sq"].pow(1 / 3)
    v.z = state["x0"].addcdiv(state["s"], v.rms)


@_each("NovoGrad", "torch_optimizer/novograd.py:86-161", "norm", "denom")
def _novograd(v: SimpleNamespace, grad: ShapeTensor, state: StateTensors, args: Arguments, tape: Tape) -> None:
    state.create("exp_avg")
    for name in ("exp_avg_sq", "max_exp_avg_sq"):
        if tape.creates_state and name in state.names:
            place: Device = "device" if tape.on_cpu else "host"
            state[name] = new(tape, TensorSpec((), "float32", place), grad.parameter).to(device="device")
    v.norm = grad.pow(2).sum()
    state["exp_avg_sq"].eq(0)
    v.denom = state["max_exp_avg_sq" if args["amsgrad"] else "exp_avg_sq"].sqrt()


@_each("PID", "torch_optimizer/pid.py:71-125", "g_buf")
def _pid(v: SimpleNamespace, grad: ShapeTensor, state: StateTensors, args: Arguments, tape: Tape) -> None:
    if args["momentum"] == 0:
        return
    state.create()
    v.g_buf = grad if tape.creates_state else state["grad_buffer"]
    grad.sub(v.g_buf)
    if not tape.creates_state:
        state["grad_buffer"] = grad.clone()


@_each("QHAdam", "torch_optimizer/qhadam.py:78-153", "d_p_sq", "avg_grad", "avg_grad_rms")
@_each("RangerQH", "pytorch_ranger/rangerqh.py:90-176", "d_p_sq", "avg_grad", "avg_grad_rms")
def _qhadam(v: SimpleNamespace, grad: ShapeTensor, state: StateTensors, _: Arguments, __: Tape) -> None:
    v.d_p_sq = grad.mul(grad)
    state.create()
    v.avg_grad = state["exp_avg"].mul(1.0)
    v.avg_grad_rms = state["exp_avg_sq"].mul(1.0)


@_each("QHM", "torch_optimizer/qhm.py:78-118")
def _qhm(_: SimpleNamespace, __: ShapeTensor, state: StateTensors, ___: Arguments, ____: Tape) -> None:
    state.create()


@_each("RAdam", "torch_optimizer/radam.py:89-184", "grad", "p_data_fp32", "denom", ignores=_LATER)
@_each("Ranger", "pytorch_ranger/ranger.py:121-216", "grad", "p_data_fp32", "denom", ignores=_LATER)
def _radam(v: SimpleNamespace, grad: ShapeTensor, state: StateTensors, _: Arguments, tape: Tape) -> None:
    v.grad = grad.float()
    v.p_data_fp32 = grad.float()
    state.create()
    if not tape.first_step:
        v.denom = state["exp_avg_sq"].sqrt()


@_each(
    "RangerVA", "pytorch_ranger/ranger913A.py:78-202", "grad", "p_data_fp32", "grad_tmp", "denomc", "denomf", "denom"
)
def _ranger_va(v: SimpleNamespace, grad: ShapeTensor, state: StateTensors, args: Arguments, _: Tape) -> None:
    v.grad = grad.float()
    v.p_data_fp32 = grad.float()
    state.create("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "slow_buffer")
    v.grad_tmp = v.grad**2
    v.grad_tmp.mul(1.0)
    v.denomc = state["max_exp_avg_sq" if args["amsgrad"] else "exp_avg_sq"].clone()
    if args["transformer"] == "softplus":
        v.denomf = v.denomc.softplus()
    else:
        v.denom = state["exp_avg_sq"].sqrt()


@_each("Yogi", "torch_optimizer/yogi.py:76-148", "grad", "grad_squared", "denom")
def _yogi(v: SimpleNamespace, grad: ShapeTensor, state: StateTensors, args: Arguments, _: Tape) -> None:
    v.grad = None
    state.create()
    if args["weight_decay"] != 0:
        v.grad = grad.add(grad)
    v.grad_squared = grad.mul(grad)
    (state["exp_avg_sq"] - v.grad_squared).sign()
    v.denom = state["exp_avg_sq"].sqrt() / 1.0
