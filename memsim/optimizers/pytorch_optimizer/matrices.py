"""The optimizers of `pytorch_optimizer` that project gradients, precondition them or split the parameters.

Read at pytorch_optimizer 4.1.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers.kron import factors
from memsim.optimizers.low_rank import GROUP_ARGUMENTS, checked_rank, is_projected, project
from memsim.optimizers.muon import GROUPS, takes_muon
from memsim.optimizers.pytorch_optimizer.arguments import ARGUMENTS
from memsim.optimizers.pytorch_optimizer.irregular import known
from memsim.optimizers.pytorch_optimizer.uniform import FACTS, FOLDER
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, ParameterRule, dtype_name, like, python_number, tensor
from memsim.tensors import TensorSpec

_GROUP: dict[str, Any] = {
    "rank": 128,
    "update_proj_gap": 50,
    "scale": 1.0,
    "projection_type": "std",
    "target_modules": GROUP_ARGUMENTS["target_modules"],
}


_READ = "utils/galore.py:75-115"


def _low_rank(name: str, line: str) -> Callable[[ParameterRule], ParameterRule]:
    return register(
        f"pytorch_optimizer.{name}",
        arguments=ARGUMENTS[name],
        source=f"{FOLDER}/{line}, {_READ}",
        by_name=True,
        own_arguments=_GROUP,
        **FACTS,
    )


def _moments(spec: TensorSpec) -> Entries:
    return (tensor("exp_avg", spec.shape, spec.dtype), tensor("exp_avg_sq", spec.shape, spec.dtype))


@_low_rank("GaLore", "galore.py:64-160")
def galore(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two low-rank moments and a projector, which unlike galore_torch's is a copy of its part of the factor."""
    if not is_projected(parameter, args["target_modules"]):
        return _moments(parameter.tensor)
    projection = project(parameter, _sided(args), keeps_factor=False)
    return (*projection.matrices, *_moments(projection.gradient))


@_low_rank("Fira", "fira.py:64-190")
def fira(parameter: ParameterSpec, args: Arguments) -> Entries:
    """GaLore's state and the last norm of the scaled residual gradient."""
    state = galore(parameter, args)
    if not is_projected(parameter, args["target_modules"]):
        return state
    return (*state, tensor("scaling_grad", (), parameter.tensor.dtype))


@_low_rank("APOLLO", "apollo.py:297-420")
def apollo(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two low-rank moments, a random projector of the asked rank, and the last norm of the scaled gradient.

    Raises:
        UsageError: a `projection_type` other than `std`.
    """
    if not is_projected(parameter, args["target_modules"]):
        return _moments(parameter.tensor)
    if args["projection_type"] != "std":
        raise UsageError(f"APOLLO: projection_type={args['projection_type']!r} is not modelled; use 'std'.")
    m, q = parameter.tensor.shape
    rank, dtype = checked_rank(args), parameter.tensor.dtype
    matrix, gradient = ((rank, q), (m, rank)) if m >= q else ((m, rank), (rank, q))
    projector = tensor("projector.ortho_matrix", matrix, dtype)
    return (projector, *_moments(TensorSpec(gradient, dtype)), tensor("scaling_grad", (), dtype))


@known("Conda", "conda.py:71-150")
def conda(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two moments of the weight's shape, and of a matrix the whole basis on its shorter side.

    Raises:
        UsageError: a `projection_type` other than `std`.
    """
    if args["projection_type"] != "std":
        raise UsageError(f"Conda: projection_type={args['projection_type']!r} is not modelled; use 'std'.")
    shape = parameter.tensor.shape
    if len(shape) != 2:
        return _moments(parameter.tensor)
    side = min(shape)
    return (*_moments(parameter.tensor), tensor("projector.ortho_matrix", (side, side), parameter.tensor.dtype))


def _sided(args: Arguments) -> Arguments:
    """Return the arguments under the names that galore_torch has for them."""
    return {**args, "proj_type": args["projection_type"]}


@known("SOAP", "soap.py:88-130, 225-290")
def soap(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two moments, and for each dimension a covariance and its eigenvectors, unless it is too long.

    A vector has them only with `precondition_1d`.

    Raises:
        UsageError: `merge_dims`, with which version 4.1.0 fails for vectors and many other shapes.
    """
    if args["merge_dims"]:
        raise UsageError("SOAP: merge_dims=True is not modelled (pytorch_optimizer 4.1.0 fails for vectors with it).")
    shape, dtype = parameter.tensor.shape, parameter.tensor.dtype
    kept = [
        (i, size)
        for i, size in enumerate(shape)
        if size <= args["max_precondition_dim"] and (len(shape) > 1 or args["precondition_1d"])
    ]
    squares = (
        tensor(f"{name}[{i}]", (size, size), dtype)
        for name in ("GG", "Q")
        for i, size in kept
        if size or name == "GG"  # an empty tensor has no eigenvectors
    )
    numbers = (python_number("precondition_frequency"), python_number("shampoo_beta", "float"))
    return (*_moments(parameter.tensor), *squares, *numbers)


@known("Shampoo", "shampoo.py:65-90")
def shampoo(parameter: ParameterSpec, args: Arguments) -> Entries:  # noqa: ARG001
    """A momentum, used or not, and for each dimension, however long, a preconditioner and its inverse root."""
    dtype = parameter.tensor.dtype
    squares = (
        tensor(f"{name}_{i}", (size, size), dtype)
        for i, size in enumerate(parameter.tensor.shape)
        for name in ("pre_cond", "inv_pre_cond")
    )
    return (like("momentum_buffer", parameter), *squares)


@known("SPlus", "splus.py:107-135")
def splus(parameter: ParameterSpec, args: Arguments) -> Entries:
    """A momentum and an average of the weights; of a matrix two squares for each side that is short enough."""
    shape, dtype = parameter.tensor.shape, parameter.tensor.dtype
    moments = (like("momentum", parameter), like("ema", parameter))
    if len(shape) != 2:
        return moments
    squares = (
        tensor(f"{name}[{i}]", (size, size), dtype) if size < args["max_dim"] else python_number(f"{name}[{i}]", "none")
        for name in ("sides", "q_sides")
        for i, size in enumerate(shape)
    )
    return (*moments, *squares)


@known("Kron", "psgd.py:140-165, 211-290", "The einsum expressions (text) of each parameter.")
def kron(parameter: ParameterSpec, args: Arguments) -> Entries:
    """A momentum, and for each dimension (none are merged) a factor of the preconditioner, float32 by default.

    Raises:
        UsageError: an empty tensor, with which the package fails.
        UnknownNameError: no such `memory_save_mode`.
    """
    spec = parameter.tensor
    if spec.numel == 0:
        raise UsageError(f"{parameter.name} {spec.shape}: Kron fails for empty tensors; freeze it.")
    momentum = like("momentum_buffer", parameter, dtype_name(args["mu_dtype"], spec.dtype))
    dtype = dtype_name(args["precondition_dtype"], "float32")
    return (momentum, *(factors(spec.shape, args, dtype) if spec.shape else (tensor("Q[0]", (), dtype),)))


def _muon(name: str, line: str) -> Callable[[ParameterRule], ParameterRule]:
    return register(
        f"pytorch_optimizer.{name}",
        arguments=ARGUMENTS[name],
        source=f"{FOLDER}/muon/{line}",
        by_name=True,
        own_arguments=GROUPS,
        ignores="Groups that split the parameters otherwise than hidden matrices from the rest.",
        **FACTS,
    )


@_muon("Muon", "muon.py:129")
@_muon("DistributedMuon", "distributed_muon.py:105")
@_muon("MuonClip", "muon_clip.py:10, muon.py:129")
def muon(parameter: ParameterSpec, args: Arguments) -> Entries:
    """One momentum for hidden matrices (groups with `use_muon`), AdamW's two moments for the rest."""
    return (like("momentum_buffer", parameter),) if takes_muon(parameter, args) else _moments(parameter.tensor)


@_muon("AdaGO", "adago.py:136")
def adago(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Muon's momentum and a sum of squares in one number."""
    state = muon(parameter, args)
    return (*state, tensor("v", (), parameter.tensor.dtype)) if takes_muon(parameter, args) else state


@_muon("AdaMuon", "adamuon.py:128")
def adamuon(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two moments, the second of a hidden matrix as a flat vector."""
    if not takes_muon(parameter, args):
        return _moments(parameter.tensor)
    return (like("m", parameter), tensor("v", (parameter.tensor.numel,), parameter.tensor.dtype))


@_muon("NorMuon", "normuon.py:139")
def normuon(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Muon's momentum and a second moment for each row."""
    state = muon(parameter, args)
    if not takes_muon(parameter, args):
        return state
    rows = (parameter.tensor.shape[0], 1)
    return (*state, tensor("second_momentum_buffer", rows, parameter.tensor.dtype))
