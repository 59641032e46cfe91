"""Temporaries of Muon and its kin in `pytorch_optimizer`, read at 4.1.0.

Hidden matrices are a group with `use_muon` and come first; AdamW's group follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from types import SimpleNamespace

from memsim.model import ParameterSpec
from memsim.optimizers.muon import takes_muon
from memsim.optimizers.pytorch_optimizer_step import by_first_dtype
from memsim.optimizers.rules import Arguments
from memsim.optimizers.shape_tensor import ShapeTensor, StateTensors, each, variables, weight
from memsim.optimizers.step import Tape, register_step, register_unmodelled_step

_FOLDER = "pytorch_optimizer/optimizer/muon"

_ORDER = "The group of hidden matrices comes before the other."

States = list[tuple[ShapeTensor, StateTensors]]
"""Gradients with their state."""

One = Callable[[SimpleNamespace, ShapeTensor, StateTensors, Arguments], None]
"""Updates one matrix, with the variables of `step()`."""

Many = Callable[[States, Arguments], None]
"""Updates all matrices of one shape."""


def _refuses(args: Arguments) -> str:
    if args.get("ns_method", "newton_schulz") != "newton_schulz":
        return "its step has been read for ns_method='newton_schulz' only"
    return ""


def _register(name: str, file: str, one: One, many: Many, ignores: str = "") -> None:
    source = f"{_FOLDER}/base.py, {file}, step"

    @register_step(f"pytorch_optimizer.{name}", source=source, refuses=_refuses, ignores=_ORDER + ignores)
    def rule(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
        for hidden in (True, False):
            group = [p for p in parameters if takes_muon(p, args) == hidden]
            for p in group:
                tape.create_state(p)
            if args["foreach"] is False:
                _loop(tape, group, args, one if hidden else None)
            else:
                _foreach(tape, group, args, many if hidden else None)


def _states(tape: Tape, group: Sequence[ParameterSpec]) -> States:
    return [(weight(tape, p), StateTensors(tape, p)) for p in group]


def _loop(tape: Tape, group: Sequence[ParameterSpec], args: Arguments, one: One | None) -> None:
    v = variables(tape, "grad_norm", "update", "original_norm", "v_mean", "step_size", "de_nom")
    for grad, state in _states(tape, group):
        if one is None:
            grad.square()
            v.de_nom = state["exp_avg_sq"].sqrt()
        else:
            one(v, grad, state, args)


def _foreach(tape: Tape, group: Sequence[ParameterSpec], args: Arguments, many: Many | None) -> None:
    for same in by_first_dtype(group):
        if many is None:
            exp_avg_sqs = [state["exp_avg_sq"] for _, state in _states(tape, same)]
            each(ShapeTensor.square, exp_avg_sqs)
            each(ShapeTensor.sqrt, exp_avg_sqs)
            continue
        shapes: dict[tuple[int, ...], States] = {}
        for grad, state in _states(tape, same):
            shape = _matrix(grad)
            shapes.setdefault(tuple(sorted(shape)) if args["use_adjusted_lr"] else shape, []).append((grad, state))
        for batch in shapes.values():
            many(batch, args)


def _matrix(grad: ShapeTensor) -> tuple[int, int]:
    """Return rows and columns of a tensor whose dimensions after the first are one."""
    return grad.shape[0], prod(grad.shape[1:])


def newton_schulz(g: ShapeTensor) -> ShapeTensor:
    """`zero_power_via_newton_schulz_5(g)` (utils/matrix.py): the Gram matrix of the shorter side, in bfloat16."""
    tall = g.shape[-2] > g.shape[-1]
    x = (g.t() if tall else g).to("bfloat16", copy=True)
    norm = x.norm(dim=(-2, -1), keepdim=True)
    a = x.make("a", (*x.shape[:-1], x.shape[-2]))
    b = a.like()
    c = x.like()
    x, c = c, x
    del norm, a, b, c
    return x.t() if tall else x


def orthogonalised(grads: Sequence[ShapeTensor]) -> list[ShapeTensor]:
    """`_orthogonalize(group, updates)`: matrices of one shape are stacked, the tall ones on their side."""
    first = grads[0].view(*_matrix(grads[0]))
    if len(grads) == 1:
        return [newton_schulz(first)]
    rows, columns = first.shape if first.shape[0] <= first.shape[1] else first.shape[::-1]
    stacked = first.make("stack", (len(grads), rows, columns))
    result = newton_schulz(stacked)
    del stacked
    tall = [_matrix(grad)[0] > _matrix(grad)[1] for grad in grads]
    slices = [result.narrow(rows, columns) for _ in grads]
    return [one.t() if turned else one for one, turned in zip(slices, tall, strict=True)]


def _muon(v: SimpleNamespace, grad: ShapeTensor, _: StateTensors, __: Arguments) -> None:
    v.update = orthogonalised([grad])[0]


def _muon_foreach(batch: States, _: Arguments) -> None:
    orthogonalised([grad for grad, _ in batch])


def _adago(v: SimpleNamespace, grad: ShapeTensor, state: StateTensors, args: Arguments) -> None:
    v.grad_norm = grad.norm()
    v.grad_norm.square()
    v.update = None  # the gradient or the momentum
    v.update = orthogonalised([grad])[0]
    v.step_size = args["lr"] * grad.norm() / state["v"]
    v.update.to(grad.dtype)


def _adago_foreach(batch: States, args: Arguments) -> None:
    grads = [grad for grad, _ in batch]
    grad_norms = each(ShapeTensor.norm, grads)
    squared_norms = each(ShapeTensor.square, grad_norms)
    updates = orthogonalised(grads)
    step_sizes = each(ShapeTensor.norm, grads) if args["nesterov"] else grad_norms
    [update.to(grads[0].dtype) for update in updates]
    del grad_norms, squared_norms, updates, step_sizes


def _adamuon(v: SimpleNamespace, grad: ShapeTensor, state: StateTensors, _: Arguments) -> None:
    v.update = None  # the momentum
    v.update = _flat(grad, orthogonalised([grad])[0])
    state["v"] / 1.0
    1.0 / v.update.norm()


def _flat(grad: ShapeTensor, update: ShapeTensor) -> ShapeTensor:
    """Return the update as a vector: one that lies on its side is copied."""
    rows, columns = _matrix(grad)
    return update.view(-1).clone() if rows > columns > 1 else update.view(-1)


def _adamuon_foreach(batch: States, _: Arguments) -> None:
    grads = [grad for grad, _ in batch]
    variances = [state["v"] for _, state in batch]
    made = orthogonalised(grads)
    updates = [_flat(grad, update) for grad, update in zip(grads, made, strict=True)]
    del made
    de_noms = each(ShapeTensor.sqrt, each(ShapeTensor.clone, variances))
    norms = [update.norm() for update in updates]
    del updates, de_noms, norms


def _normuon(v: SimpleNamespace, grad: ShapeTensor, state: StateTensors, args: Arguments) -> None:
    v.update = None  # the gradient or the momentum
    v.update = orthogonalised([grad])[0].to(grad.dtype)
    v.original_norm = v.update.norm()
    v.v_mean = v.update.square().mean(dim=-1, keepdim=True)
    state["second_momentum_buffer"].sqrt()
    if args["update_scale"] == "preserve_norm":
        v.original_norm / v.update.norm()
    else:
        1.0 / v.update.norm()


def _normuon_foreach(batch: States, args: Arguments) -> None:
    updates = orthogonalised([grad for grad, _ in batch])
    updates = [update.to(batch[0][0].dtype) for update in updates]
    original_norms = each(ShapeTensor.norm, updates)
    row_means = [update.square().mean(dim=-1, keepdim=True) for update in updates]
    de_noms = [state["second_momentum_buffer"].sqrt() for _, state in batch]
    norms = each(ShapeTensor.norm, updates)
    scales = []
    if args["update_scale"] == "preserve_norm":
        each(ShapeTensor.div, original_norms, norms)
    else:
        scales = [1.0 / norm for norm in norms]
    del updates, original_norms, row_means, de_noms, norms, scales


_register("Muon", "muon.py", _muon, _muon_foreach)
_register("MuonClip", "muon.py", _muon, _muon_foreach, " No attention_max_logits are given to step().")
_register("AdaGO", "adago.py", _adago, _adago_foreach)
_register("AdaMuon", "adamuon.py", _adamuon, _adamuon_foreach)
_register("NorMuon", "normuon.py", _normuon, _normuon_foreach)

register_unmodelled_step(
    "pytorch_optimizer.DistributedMuon",
    "its step() shares the updates out among processes, whose number is not an argument",
)
