"""Temporaries of the optimizers that project gradients: GaLore, APOLLO, Fira; read at the versions of galore.py.

A later step is one that keeps its projector. Each `update_proj_gap` steps it is made anew, which takes what it takes at
the first step. What `torch.linalg.svd` allocates inside itself is not here: on CUDA that is a copy of the matrix and
cuSOLVER's workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

from memsim.model import ParameterSpec
from memsim.optimizers.low_rank import Side, chosen_side, is_projected
from memsim.optimizers.rules import Arguments
from memsim.optimizers.shape_tensor import ShapeTensor, StateTensors, new, weight
from memsim.optimizers.step import Tape, register_step, register_unmodelled_step
from memsim.tensors import TensorSpec

_SVD = "Workspace of the singular value decomposition, and that each update_proj_gap steps the projector is made anew."
_GROWTH = " The norm-growth limiter is assumed to limit (a scalar less where it does not)."

register_unmodelled_step(
    "galore_torch.GaLoreAdamW8bit",
    "it puts the projected gradient into p.grad, and weights of its shape into p.data, so that the storages of the "
    "model's own weights and gradients end and begin inside step()",
)


@register_step("galore_torch.GaLoreAdamW", source="galore_torch/adamw.py:66-142, galore_projector.py", ignores=_SVD)
def galore_adamw_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """One parameter after the other."""
    for p, v in _each(tape, parameters, args):
        projector = _project(tape, v, p, args, _by_singular_values)
        _adam(v, StateTensors(tape, p).create("exp_avg", "exp_avg_sq"))
        if projector:
            v.norm_grad = _back(v.norm_grad, projector, args)


@register_step(
    "galore_torch.GaLoreAdafactor", source="galore_torch/adafactor.py:160-267, galore_projector.py", ignores=_SVD
)
def galore_adafactor_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """One parameter after the other; the learning rate is assumed to be a tensor as in `adafactor.adafactor_step`."""
    for p, v in _each(tape, parameters, args):
        v.grad = weight(tape, p)
        if p.tensor.dtype in {"float16", "bfloat16"}:
            v.grad = v.grad.float()
        projector = _project(tape, v, p, args, _by_singular_values, grad=v.grad)
        state = factored_state(tape, p, v.grad, "exp_avg_sq_row", "exp_avg_sq_col")
        v.p_data_fp32 = weight(tape, p)
        v.p_data_fp32 = v.p_data_fp32.to(v.grad.dtype)
        state["RMS"] = rms(v.p_data_fp32)
        if args["scale_parameter"]:
            larger(state["RMS"], args["eps"][1])
        v.lr = state["RMS"] * 1e-2 if args["scale_parameter"] else None
        v.update = (v.grad**2) + args["eps"][0]
        if len(v.grad.shape) >= 2:
            v.update.mean(dim=-1)
            v.update.mean(dim=-2)
            v.update = approx_sq_grad(state["exp_avg_sq_row"], state["exp_avg_sq_col"])
        else:
            v.update = state["exp_avg_sq"].rsqrt()
        (rms(v.update) / args["clip_threshold"]).clamp_()
        if args["beta1"] is not None:
            v.update = state["exp_avg"]
        if projector:
            v.update = _back(v.update, projector, args)
        if args["weight_decay"] != 0 and v.lr is not None:
            v.lr.mul(-args["weight_decay"])
        v.p_data_fp32.add_(-v.update)


@register_step(
    "apollo_torch.APOLLOAdamW",
    source="apollo_torch/apollo.py:104-219, random_projector.py, svd_projector.py",
    ignores=_SVD + _GROWTH,
)
def apollo_adamw_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """One parameter after the other; a weight is scaled by channel or as a whole."""
    make = _by_singular_values if args["proj"] == "svd" else _by_chance
    for p, v in _each(tape, parameters, args):
        projector = _project(tape, v, p, args, make)
        state = StateTensors(tape, p).create("exp_avg", "exp_avg_sq")
        _adam(v, state)
        if not projector:
            continue
        v.grad_scaling_factor = _scaling_factor(v, args["scale_type"] == "channel", p.tensor.shape)
        v.scaled_grad = weight(tape, p) * v.grad_scaling_factor
        if not args["disable_nl"]:
            _limit_growth(v, state, "scaled_grad")
        v.norm_grad = v.scaled_grad


@register_step("fira.FiraAdamW", source="fira/fira_adamw.py:65-166, gradient_projection.py", ignores=_SVD + _GROWTH)
def fira_adamw_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """One parameter after the other; what the projection leaves out is scaled and added."""
    for p, v in _each(tape, parameters, args):
        projector = _project(tape, v, p, args, _by_orthogonal_factors)
        state = StateTensors(tape, p).create("exp_avg", "exp_avg_sq")
        _adam(v, state)
        if not projector:
            continue
        v.subgrad = _back(v.grad, projector, args)
        v.scaling_factor = _scaling_factor(v, True, v.norm_grad.shape)
        v.scaling_grad = (weight(tape, p) - v.subgrad) * v.scaling_factor
        _limit_growth(v, state, "scaling_grad")
        v.norm_grad = _back(v.norm_grad, projector, args) + v.scaling_grad


def _each(
    tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments
) -> list[tuple[ParameterSpec, SimpleNamespace]]:
    """Return each parameter with the variables of its `step()`: its own one where it steps inside backward."""
    alone = args.get("layerwise", False)
    return [(p, SimpleNamespace() if alone else tape.variables) for p in parameters]


Projector = list[ShapeTensor]
"""The matrices of a projector; empty where the parameter is not projected."""
MakeMatrix = Callable[[Tape, ShapeTensor, Side, Arguments], Projector]


def _project(
    tape: Tape,
    v: SimpleNamespace,
    p: ParameterSpec,
    args: Arguments,
    make: MakeMatrix,
    grad: ShapeTensor | None = None,
) -> Projector:
    """`grad = state["projector"].project(grad, state["step"])`."""
    v.grad = weight(tape, p) if grad is None else grad
    if not is_projected(p, args["target_modules"]):
        return []
    side = chosen_side(args["proj_type"], *p.tensor.shape)
    names = [f"projector.ortho_matrix{index}" for index in (("[0]", "[1]") if side == "full" else ("",))]
    state = StateTensors(tape, p)
    if tape.creates_state or args["update_proj_gap"] == 1:
        made = make(tape, v.grad, side, args)
        for index in reversed(range(len(names))):  # as a list of two dies
            state[names[index]] = made[index]
        del made
    matrices = [state[name] for name in names]
    del grad
    if side == "full":
        v.grad = (matrices[0].t() @ v.grad) @ matrices[1].t()
    else:
        v.grad = v.grad @ matrices[0].t() if side == "right" else matrices[0].t() @ v.grad
    return matrices


def _by_singular_values(_: Tape, weights: ShapeTensor, side: Side, args: Arguments) -> Projector:
    """`get_orthogonal_matrix`: the factors, and a product of two that nobody uses."""
    return _decompose(weights, side, args, multiplies=True)


def _by_orthogonal_factors(_: Tape, weights: ShapeTensor, side: Side, args: Arguments) -> Projector:
    return _decompose(weights, side, args, multiplies=False)


def _decompose(weights: ShapeTensor, side: Side, args: Arguments, *, multiplies: bool) -> Projector:
    matrix = weights.float()
    m, q = matrix.shape
    full, rank = min(m, q), min(args["rank"], m, q)
    u, s, vh = matrix.make("U", (m, full)), matrix.make("s", (full,)), matrix.make("Vh", (full, q))
    if side == "right":
        if multiplies:
            a = u.narrow(m, rank) @ s.make("diag", (rank, rank))
        b = vh.narrow(rank, q).to(weights.dtype)
        return [b]
    a = u.narrow(m, rank)
    if side == "full":
        a, b = a.to(weights.dtype), vh.narrow(rank, q).to(weights.dtype)
        return [a, b]
    if multiplies:
        b = s.make("diag", (rank, rank)) @ vh.narrow(rank, q)
    a = a.to(weights.dtype)
    return [a]


def _by_chance(tape: Tape, weights: ShapeTensor, side: Side, args: Arguments) -> Projector:
    """`stable_randn(...) / math.sqrt(rank)`, and the draw of the next seed on the host."""
    matrix = weights.float()
    m, q = matrix.shape
    shape = (args["rank"], q) if side == "right" else (m, args["rank"])
    proj = matrix.make("randn", shape) / 1.0
    proj = proj.to(weights.dtype)
    del matrix
    new(tape, TensorSpec((15,), "int64", "host"), weights.parameter, "next_seed")
    return [proj]


def _back(low_rank_grad: ShapeTensor, projector: Projector, args: Arguments) -> ShapeTensor:
    """`project_back`: a matrix of the weight's shape, and its multiple."""
    rows, columns = low_rank_grad.shape
    right = {"std": rows >= columns, "reverse_std": rows > columns, "right": True}.get(args["proj_type"], False)
    if len(projector) == 2:
        full_rank_grad = (projector[0] @ low_rank_grad) @ projector[1]
    elif right:
        full_rank_grad = low_rank_grad @ projector[0]
    else:
        full_rank_grad = projector[0] @ low_rank_grad
    return full_rank_grad * 1.0


def _adam(v: SimpleNamespace, state: StateTensors) -> None:
    v.denom = state["exp_avg_sq"].sqrt()
    v.norm_grad = state["exp_avg"] / v.denom


def _scaling_factor(v: SimpleNamespace, by_channel: bool, shape: tuple[int, ...]) -> ShapeTensor:
    dim = (0 if shape[0] < shape[1] else 1) if by_channel else None
    factor: ShapeTensor = v.norm_grad.norm(dim=dim) / (v.grad.norm(dim=dim) + 1e-8)
    return factor.unsqueeze(1) if dim == 1 else factor


def _limit_growth(v: SimpleNamespace, state: StateTensors, name: str) -> None:
    """The norm-growth limiter of Fira: none at the first step."""
    grad = vars(v)[name]
    if name not in state:
        state[name] = grad.norm()
        return
    setattr(v, f"{name}_norm", grad.norm())
    ratio = vars(v)[f"{name}_norm"] / (state[name] + 1e-8)
    larger(ratio, 1.01)
    v.limiter = ratio / 1.01
    del ratio
    setattr(v, name, grad / v.limiter)
    del grad
    state[name] = vars(v)[f"{name}_norm"] / v.limiter


def larger(tensor: ShapeTensor, number: float) -> None:
    """`max(tensor, number)` makes a boolean, and takes the tensor."""
    tensor.lt(number)


def rms(tensor: ShapeTensor) -> ShapeTensor:
    """`tensor.norm(2) / tensor.numel() ** 0.5`."""
    return tensor.norm() / 1.0


def approx_sq_grad(row: ShapeTensor, column: ShapeTensor) -> ShapeTensor:
    """Adafactor's second moment, from the means of rows and columns."""
    r_factor = (row / row.mean(dim=-1, keepdim=True)).unsqueeze(-1)
    c_factor = column.unsqueeze(-2).rsqrt()
    return r_factor * c_factor


def factored_state(tape: Tape, p: ParameterSpec, grad: ShapeTensor, *means: str) -> StateTensors:
    """`torch.zeros(shape).to(grad)` makes the means of rows and columns on the host in float32 first."""
    state = StateTensors(tape, p).create("exp_avg")
    for name in means:
        if tape.creates_state and name in state.names:
            shape = grad.shape[:-1] if name.endswith("row") else (*grad.shape[:-2], grad.shape[-1])
            zeros = new(tape, TensorSpec(shape, "float32", "device" if tape.on_cpu else "host"), p.name, name)
            state[name] = zeros.to(grad.dtype, "device")
            del zeros
    return state.create("exp_avg_sq")
