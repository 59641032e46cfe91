"""The optimizers of `pytorch_optimizer` whose entries an argument or the dtype decides.

Read at pytorch_optimizer 4.1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from memsim.model import ParameterSpec
from memsim.optimizers.entry_table import table_rule
from memsim.optimizers.fused_backward import adalomo
from memsim.optimizers.pytorch_optimizer.arguments import ARGUMENTS
from memsim.optimizers.pytorch_optimizer.uniform import FACTS, FOLDER
from memsim.optimizers.registry import register
from memsim.optimizers.rules import (
    Arguments,
    Entries,
    ParameterRule,
    StateEntry,
    dtype_name,
    like,
    python_number,
    tensor,
)
from memsim.tensors import TensorSpec


def known(name: str, lines: str, ignores: str = "") -> Callable[[ParameterRule], ParameterRule]:
    """Register a rule of one parameter for `pytorch_optimizer.<name>`."""
    return register(
        f"pytorch_optimizer.{name}",
        arguments=ARGUMENTS[name],
        source=f"{FOLDER}/{lines}",
        ignores=ignores,
        **FACTS,
    )


@known("A2Grad", "a2grad.py:59")
def a2grad(parameter: ParameterSpec, args: Arguments) -> Entries:
    """An averaged gradient and a second point; a one-element sum more with `variant='exp'`."""
    more = " v_kk:(1)" if args["variant"] == "exp" else ""
    return table_rule("alpha_k:float v_k:(1) avg_grad x_k" + more)(parameter, args)


@known("BCOS", "bcos.py:75")
def bcos(parameter: ParameterSpec, args: Arguments) -> Entries:
    """A momentum in modes `m` and `c`, squares in modes `g` and `m`."""
    momentum = (like("m", parameter),) if args["mode"] in {"m", "c"} else ()
    squares = (like("v", parameter),) if args["mode"] in {"g", "m"} else ()
    return (*momentum, *squares)


@known("FAdam", "fadam.py:88")
def fadam(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two moments, float32 unless `momentum_dtype` and `fim_dtype` say otherwise."""
    return (
        like("momentum", parameter, dtype_name(args["momentum_dtype"], "float32")),
        like("fim", parameter, dtype_name(args["fim_dtype"], "float32")),
    )


@known("StableAdamW", "adamw.py:72")
def stable_adamw(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two moments, the second in float32 for float16 weights, and a compensation for 16-bit weights."""
    dtype = parameter.tensor.dtype
    second = like("exp_avg_sq", parameter, "float32" if dtype == "float16" else dtype)
    if args["kahan_sum"] and dtype in {"float16", "bfloat16"}:
        return (like("exp_avg", parameter), second, like("kahan_comp", parameter))
    return (like("exp_avg", parameter), second, python_number("kahan_comp", "none"))


AGGMO_BETAS = (0.0, 0.9, 0.99)
"""The class's default; as many others may be given."""


@known("AggMo", "aggmo.py:60")
def aggmo(parameter: ParameterSpec, args: Arguments) -> Entries:
    """One momentum for each beta."""
    return tuple(like(f"momentum_buffer.{beta}", parameter) for beta in args["betas"] or AGGMO_BETAS)


register(
    "pytorch_optimizer.AdaLOMO",
    arguments=ARGUMENTS["AdaLOMO"],
    source=f"{FOLDER}/lomo.py:318-341",
    fuses_backward=True,
    ignores="The constructor makes state for frozen parameters too; only trainable ones are listed.",
    **FACTS,
)(adalomo)


@register(
    "pytorch_optimizer.Lamb",
    arguments=ARGUMENTS["Lamb"],
    source=f"{FOLDER}/lamb.py:92-185",
    whole=True,
    ignores="The norm of all gradients that pre_norm keeps for a step.",
    **FACTS,
)
def lamb(parameters: Sequence[ParameterSpec], args: Arguments) -> Iterable[tuple[ParameterSpec, Entries]]:
    """Two moments and three norms, which in the foreach form are parts of vectors over all parameters of one dtype."""
    together = args["foreach"] is not False and not args["rectify"]
    counts: dict[str, int] = {}
    for p in parameters:
        counts[p.tensor.dtype] = counts.get(p.tensor.dtype, 0) + 1
    kinds: dict[TensorSpec, Entries] = {}
    for p in parameters:
        if p.tensor not in kinds:
            kinds[p.tensor] = _lamb_entries(p, counts[p.tensor.dtype] if together else 0)
        yield p, kinds[p.tensor]


def _lamb_entries(parameter: ParameterSpec, together: int) -> Entries:
    """Return the entries of one parameter; `together` is how many share a vector of norms, 0 for none."""
    dtype = parameter.tensor.dtype
    norm = TensorSpec((), dtype)
    vector = TensorSpec((together,), dtype) if together else None
    names = ("weight_norm", "adam_norm", "trust_ratio")
    norms = (StateEntry(n, norm, f"{n}.{dtype}" if together else None, vector) for n in names)
    return (like("exp_avg", parameter), like("exp_avg_sq", parameter), *norms)


@known("AdaFactor", "adafactor.py:103")
def adafactor(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Adafactor in the weight's dtype, with a bfloat16 momentum unless `momentum_dtype` or `betas` say otherwise.

    The weights' root mean square is kept as a tensor by the for-loop form only.
    """
    momentum: Entries = ()
    if args["betas"] is None or args["betas"][0] is not None:
        momentum = (like("exp_avg", parameter, dtype_name(args["momentum_dtype"], "bfloat16")),)
    largest = (like("exp_avg_sq_hat", parameter),) if args["ams_bound"] else ()
    in_loop = args["foreach"] is False
    rms = tensor("RMS", (), parameter.tensor.dtype) if in_loop else python_number("RMS", "float")
    return (rms, *momentum, *_factors(parameter, ("sq",)), *largest)


@known("CAME", "came.py:88")
def came(parameter: ParameterSpec, args: Arguments) -> Entries:
    """A full momentum, and row and column means of squares and residuals, in the weight's dtype."""
    largest = (like("exp_avg_sq_hat", parameter),) if args["ams_bound"] else ()
    rms = tensor("RMS", (), parameter.tensor.dtype)
    return (like("exp_avg", parameter), *_factors(parameter, ("sq", "res")), *largest, rms)


def _factors(parameter: ParameterSpec, kinds: tuple[str, ...]) -> Entries:
    """Return row and column means over the last two dimensions, or the whole second moment of a vector."""
    shape, dtype = parameter.tensor.shape, parameter.tensor.dtype
    if len(shape) < 2:
        return (like("exp_avg_sq", parameter),)
    return tuple(
        tensor(f"exp_avg_{kind}_{side}", of_side, dtype)
        for kind in kinds
        for side, of_side in (("row", shape[:-1]), ("col", shape[:-2] + shape[-1:]))
    )


@known("EmoFact", "emonavi.py:551")
def emofact(parameter: ParameterSpec, args: Arguments) -> Entries:
    """A mean for each row and one over all rows, two moments of a vector; a shadow of the weights on demand."""
    shape, dtype = parameter.tensor.shape, parameter.tensor.dtype
    shadow = (like("shadow", parameter),) if args["use_shadow"] else ()
    if len(shape) < 2:
        return (*shadow, like("exp_avg", parameter), like("exp_avg_sq", parameter))
    rows = tensor("exp_avg_r", (shape[0], *(1 for _ in shape[1:])), dtype)
    return (*shadow, rows, tensor("exp_avg_c", (1, *shape[1:]), dtype))


@known("Adalite", "adalite.py:71")
def adalite(parameter: ParameterSpec, args: Arguments) -> Entries:  # noqa: ARG001
    """Means of rows and columns of the weight as a matrix, for both moments; two moments of a vector."""
    shape, dtype = parameter.tensor.shape, parameter.tensor.dtype
    if len(shape) < 2:
        return (like("m_avg", parameter), like("v_avg", parameter))
    rows, columns = as_matrix(parameter)
    return (
        tensor("v_avg_0", (rows,), dtype),
        tensor("v_avg_1", (columns,), dtype),
        tensor("m_avg_c", (rows, 1), dtype),
        tensor("m_avg_r", (1, columns), dtype),
        tensor("m_avg_u", (1, 1), dtype),
    )


@known("RACS", "racs.py:72")
def racs(parameter: ParameterSpec, args: Arguments) -> Entries:  # noqa: ARG001
    """A scale for each row and each column of the weight as a matrix, and a norm."""
    rows, columns = as_matrix(parameter)
    dtype = parameter.tensor.dtype
    return (tensor("s", (rows,), dtype), tensor("q", (columns,), dtype), tensor("theta", (), dtype))


def as_matrix(parameter: ParameterSpec) -> tuple[int, int]:
    """Return rows and columns of the weight as a matrix: all dimensions but the first merged, a vector as a column."""
    shape, numel = parameter.tensor.shape, parameter.tensor.numel
    if len(shape) < 2:
        return numel, 1
    return shape[0], numel // max(shape[0], 1)


@known("SM3", "sm3.py:71", "Sparse gradients.")
def sm3(parameter: ParameterSpec, args: Arguments) -> Entries:  # noqa: ARG001
    """A momentum, used or not, and one accumulator along each dimension."""
    shape, dtype = parameter.tensor.shape, parameter.tensor.dtype
    if not shape:
        return (like("momentum_buffer", parameter), like("accumulator_0", parameter))
    accumulators = (
        tensor(f"accumulator_{i}", tuple(size if i == j else 1 for j in range(len(shape))), dtype)
        for i, size in enumerate(shape)
    )
    return (like("momentum_buffer", parameter), *accumulators)


@known("Nero", "nero.py:76", "Weights of which every neuron is zero: their scale is a Python number.")
def nero(parameter: ParameterSpec, args: Arguments) -> Entries:
    """A norm for each neuron and their mean, a Python number where centring leaves nothing of one-element neurons."""
    shape, dtype = parameter.tensor.shape, parameter.tensor.dtype
    if len(shape) < 2:
        return (like("exp_avg_sq", parameter), tensor("scale", (), dtype))
    norms = tensor("exp_avg_sq", (shape[0], *(1 for _ in shape[1:])), dtype)
    vanishes = args["constraints"] and parameter.tensor.numel == shape[0]
    return (norms, python_number("scale", "float") if vanishes else tensor("scale", (), dtype))
