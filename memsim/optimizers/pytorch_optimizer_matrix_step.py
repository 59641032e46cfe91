"""Temporaries of the classes of `pytorch_optimizer` that make numbers or matrices besides, read at 4.1.0.

SOAP and Shampoo precondition each dimension; StableAdamW, MARS and LaProp scale each update by numbers of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from memsim.model import ParameterSpec
from memsim.optimizers.pytorch_optimizer_step import by_first_dtype
from memsim.optimizers.rules import Arguments
from memsim.optimizers.shape_tensor import ShapeTensor, StateTensors, each, new, variables, weight
from memsim.optimizers.step import Tape, register_step
from memsim.tensors import Device, TensorSpec

_HALVES = ("float16", "bfloat16")


@register_step("pytorch_optimizer.StableAdamW", source="pytorch_optimizer/optimizer/adamw.py, StableAdamW.step")
def stable_adamw_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """Foreach form (its choice wherever gradients are dense) and for-loop."""
    tape.create_state()
    if args["foreach"] is False:
        _stable_adamw_each(tape, parameters, args)
        return
    v = variables(tape, "de_noms")
    for group in by_first_dtype(parameters):
        v.de_noms = _stable_adamw_foreach(tape, group, args)


def _stable_adamw_foreach(tape: Tape, group: list[ParameterSpec], args: Arguments) -> tuple[ShapeTensor, ...]:
    grads = [weight(tape, p) for p in group]
    exp_avg_sqs = [StateTensors(tape, p)["exp_avg_sq"] for p in group]
    stats_grads = [grad.float() for grad in grads] if grads[0].dtype == "float16" else grads
    step_sizes = [1.0 / _stable_rms(grad, square) for grad, square in zip(stats_grads, exp_avg_sqs, strict=True)]
    wd_step_sizes = []
    if args["weight_decay"] != 0 and args["weight_decouple"]:
        wd_step_sizes = [1.0 + 0.1 * step_size for step_size in step_sizes]
    de_noms = each(ShapeTensor.sqrt, exp_avg_sqs)
    de_noms = tuple(de_nom.to(step_size.dtype) for de_nom, step_size in zip(de_noms, step_sizes, strict=True))
    del stats_grads, step_sizes, wd_step_sizes
    return de_noms


def _stable_adamw_each(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    stats_grad = lr = de_nom = None
    for p in parameters:
        grad, square = weight(tape, p), StateTensors(tape, p)["exp_avg_sq"]
        stats_grad = grad.float() if grad.dtype == "float16" else grad
        lr = 1.0 / _stable_rms(stats_grad, square)
        if args["weight_decay"] != 0 and args["weight_decouple"]:
            1.0 - 0.1 * lr * 1.0
        made = square.sqrt().to(lr.dtype)
        lr.neg()
        de_nom = made
        del made
    del stats_grad, lr, de_nom


def _stable_rms(grad: ShapeTensor, square: ShapeTensor) -> ShapeTensor:
    """`get_stable_adamw_rms` (base/optimizer.py)."""
    if grad.dtype in _HALVES:
        grad, square = grad.float(), square.float()
    ratio = grad.pow(2)
    square.clamp()
    mean = ratio.mean()
    del ratio
    del grad, square
    return mean


def _refuses_mars(args: Arguments) -> str:
    if args["cautious"] or args["mars_type"] != "adamw":
        return "its step has been read for cautious=False and mars_type='adamw' only"
    return ""


@register_step("pytorch_optimizer.MARS", source="pytorch_optimizer/optimizer/mars.py, MARS.step", refuses=_refuses_mars)
def mars_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """Matrices (and with `optimize_1d` vectors) by the corrected gradient, vectors as Adam does."""
    tape.create_state()
    if args["foreach"] is False:
        v = variables(tape, "update")
        for p in parameters:
            v.update = _mars_update(weight(tape, p), mixed=_is_mixed(p, args))
        return
    for mixed in (True, False):
        chosen = [p for p in parameters if _is_mixed(p, args) == mixed]
        for group in by_first_dtype(chosen):
            _mars_foreach([weight(tape, p) for p in group], mixed=mixed)


def _is_mixed(p: ParameterSpec, args: Arguments) -> bool:
    return bool(args["optimize_1d"]) or len(p.tensor.shape) >= 2


def _mars_update(grad: ShapeTensor, *, mixed: bool) -> ShapeTensor:
    c_t = c_t_norm = None
    if mixed:
        c_t = grad - grad
        c_t_norm = c_t.norm()
        c_t_norm.gt(1.0)
    update = grad.clone()
    de_nom = grad.add(1e-15)
    del c_t, c_t_norm, de_nom
    return update


def _mars_foreach(grads: list[ShapeTensor], *, mixed: bool) -> None:
    corrections: tuple[ShapeTensor, ...] = ()
    norms: list[ShapeTensor] = []
    if mixed:
        corrections = each(ShapeTensor.sub, grads, grads)
        norms = [norm.clamp() for norm in each(ShapeTensor.norm, corrections)]
    updates = [grad.clone() for grad in grads]
    de_noms = each(ShapeTensor.clone, grads)
    del corrections, norms, updates, de_noms


def _refuses_laprop(args: Arguments) -> str:
    return "its step has been read for centered=False only" if args["centered"] else ""


@register_step(
    "pytorch_optimizer.LaProp", source="pytorch_optimizer/optimizer/laprop.py, LaProp.step", refuses=_refuses_laprop
)
def laprop_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """In foreach form the step sizes of all parameters are one tensor, made on the host."""
    tape.create_state()
    if args["foreach"] is False:
        v = variables(tape, "de_nom")
        for p in parameters:
            v.de_nom = weight(tape, p).add(1e-15)
        return
    v = variables(tape, "step_sizes")
    place: Device = "device" if tape.on_cpu else "host"
    for group in by_first_dtype(parameters):
        v.step_sizes = new(tape, TensorSpec((len(group),), "float32", place), name="step_sizes").to(device="device")
        de_noms = each(ShapeTensor.clone, [weight(tape, p) for p in group])
        del de_noms


@register_step(
    "pytorch_optimizer.SOAP",
    source="pytorch_optimizer/optimizer/soap.py, SOAP.step",
    refuses=lambda args: (
        "with precondition_frequency=1 every step decomposes, which has not been read"
        if args["precondition_frequency"] == 1
        else ""
    ),
    ignores=(
        "A later step is one that does not decompose: every precondition_frequency-th does, and holds more. Of a "
        "tensor of three dimensions or more none is longer than max_precondition_dim, or all are."
    ),
)
def soap_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """The first step makes the state and leaves the weights."""
    if tape.creates_state:
        for p in parameters:
            _soap_state(weight(tape, p), StateTensors(tape, p))
        return
    v = variables(tape, "grad_projected", "de_nom", "exp_avg_projected", "norm_grad")
    for p in parameters:
        grad, state = weight(tape, p), StateTensors(tape, p)
        v.grad_projected = _soap_project(grad, state)
        v.grad_projected.square()
        v.de_nom = state["exp_avg_sq"].sqrt()
        v.exp_avg_projected = _soap_project(state["exp_avg"], state)
        v.norm_grad = _soap_project(v.exp_avg_projected / v.de_nom, state)
        if args["normalize_gradient"]:
            v.norm_grad.square().mean()
        _soap_covariances(grad, state)


def _soap_state(grad: ShapeTensor, state: StateTensors) -> None:
    state.create("exp_avg", "exp_avg_sq", *_dimensions("GG", grad, state))
    last = _soap_covariances(grad, state)
    _soap_bases(grad, state)
    del last


def _dimensions(kind: str, grad: ShapeTensor, state: StateTensors) -> list[str]:
    return [name for i in range(len(grad.shape)) if (name := f"{kind}[{i}]") in state.names]


def _soap_project(grad: ShapeTensor, state: StateTensors) -> ShapeTensor:
    """`torch.tensordot` with each basis: the first dimension goes in and comes out last."""
    for i, size in enumerate(grad.shape):
        if f"Q[{i}]" in state.names:
            summed = grad.clone() if size == 1 else grad
            product = grad.clone()
            del summed
            grad = product
            del product
    return grad


def _soap_covariances(grad: ShapeTensor, state: StateTensors) -> ShapeTensor | None:
    """`update_pre_conditioner`.

    `torch.tensordot` sums its first operand over each dimension of size 1 (aten/src/ATen/native/Linear.cpp), and
    copies both operands for a dimension in the middle.
    """
    outer_product = None
    for i, size in enumerate(grad.shape):
        if f"GG[{i}]" not in state.names:
            continue
        first = second = grad
        for _ in [d for j, d in enumerate(grad.shape) if j != i and d == 1 and len(grad.shape) > 1]:
            first = grad.clone()
        if _is_inside(grad, i):
            first = grad.clone()
            second = grad.clone()
        product = grad.make("outer_product", (size, size))
        del first, second
        if len(grad.shape) > 1:
            outer_product = product
        del product
    return outer_product


def _is_inside(grad: ShapeTensor, i: int) -> bool:
    """Return whether the other dimensions of a contiguous tensor cannot be seen as one."""
    return grad.shape[i] > 1 and prod(grad.shape[:i]) > 1 and prod(grad.shape[i + 1 :]) > 1


def _soap_bases(grad: ShapeTensor, state: StateTensors) -> None:
    """`get_orthogonal_matrix`, which decomposes halves in float64 once their own dtype has failed.

    What the failed try passed is alive until its exception is handled.
    """
    values = vectors = None
    for name in _dimensions("Q", grad, state):
        m = state[name.replace("Q", "GG")]
        wide = m + 1e-30 * m.like()
        tried = None
        if m.dtype in _HALVES:
            tried = wide
            wide = m.to("float64") + 1e-30 * m.like("float64")
        made, vectors = wide.make("L", m.shape[:1]), wide.like()
        del wide
        values = made
        del made
        vectors = vectors.to(m.dtype)
        del tried
        vectors = vectors.clone()
        state[name] = vectors
    del values, vectors


@register_step(
    "pytorch_optimizer.Shampoo",
    source="pytorch_optimizer/optimizer/shampoo.py, Shampoo.step; utils/matrix.py, compute_power_svd",
    refuses=lambda args: (
        "" if args["preconditioning_compute_steps"] == 1 else "its step has been read for roots at every step only"
    ),
)
def shampoo_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """Each dimension in turn comes first, and its matrix is decomposed in float32."""
    states = [StateTensors(tape, p) for p in parameters]
    if tape.creates_state:
        for p, state in zip(parameters, states, strict=True):
            _shampoo_state(weight(tape, p), state, args)
    v = variables(tape, "grad", "unfolded_grad", "grad_t")
    for p, state in zip(parameters, states, strict=True):
        v.grad = grad = weight(tape, p)
        for i, size in enumerate(p.tensor.shape):
            v.unfolded_grad = grad.clone() if _is_inside(grad, i) else grad
            v.grad = _first(v.grad, i)
            transposed = v.grad.shape
            v.grad_t = v.grad
            _inverse_root(state[f"pre_cond_{i}"])
            v.grad = v.grad.make("matmul", transposed)
            if i == len(p.tensor.shape) - 1:
                v.grad = v.grad.view(*p.tensor.shape)
            assert size == transposed[0]
        state["momentum_buffer"] = v.grad


def _shampoo_state(grad: ShapeTensor, state: StateTensors, args: Arguments) -> None:
    if args["momentum"] > 0:
        state.create("momentum_buffer")
    for i, size in enumerate(grad.shape):
        state[f"pre_cond_{i}"] = grad.make("eye", (size, size), "float32").to(grad.dtype)
        state.create(f"inv_pre_cond_{i}")


def _first(grad: ShapeTensor, i: int) -> ShapeTensor:
    """`grad.transpose_(0, i).contiguous()` of a contiguous tensor."""
    order = [*range(len(grad.shape))]
    order[0], order[i] = i, 0
    shape = tuple(grad.shape[d] for d in order)
    moved = [d for d in order if grad.shape[d] != 1]
    return grad.view(*shape) if moved == sorted(moved) else grad.make("contiguous", shape)


def _inverse_root(matrix: ShapeTensor) -> None:
    """`inv_pre_cond.copy_(compute_power_svd(pre_cond, ...))`."""
    wide = matrix.float()
    u, s, vh = wide.like(), wide.make("s", wide.shape[:1]), wide.like()
    del wide
    root = (u * 1.0) @ vh
    root = root.to(matrix.dtype)
    del u, s, vh
    del root
