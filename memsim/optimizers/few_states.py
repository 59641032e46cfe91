"""State of optimizers that keep less than a full second moment: CAME and Adam-mini.

Read at came-pytorch 0.1.3 (came_pytorch/CAME.py:80-115) and adam-mini 1.1.1 (adam_mini/adam_mini.py:108-135, 210-355).
"""

from __future__ import annotations

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional, Required
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like, python_number, tensor


@register(
    "came_pytorch.CAME",
    arguments={
        "lr": Required(float),
        "eps": (1e-30, 1e-16),
        "clip_threshold": 1.0,
        "betas": (0.9, 0.999, 0.9999),
        "weight_decay": 0.0,
    },
    package="came-pytorch",
    version="0.1.3",
    source="came_pytorch/CAME.py:80-115",
)
def came(parameter: ParameterSpec, args: Arguments) -> Entries:  # noqa: ARG001
    """A full momentum and row and column means of squares and of residuals, in float32 for 16-bit weights too."""
    shape = parameter.tensor.shape
    dtype = "float32" if parameter.tensor.dtype in {"float16", "bfloat16"} else parameter.tensor.dtype
    second: Entries
    if len(shape) >= 2:
        second = tuple(
            tensor(f"exp_avg_{kind}_{side}", of_side, dtype)
            for kind in ("sq", "res")
            for side, of_side in (("row", shape[:-1]), ("col", shape[:-2] + shape[-1:]))
        )
    else:
        second = (like("exp_avg_sq", parameter, dtype),)
    rms = tensor("RMS", (), parameter.tensor.dtype)
    return (python_number("step"), like("exp_avg", parameter, dtype), *second, rms)


_HEADS = ("k_proj", "q_proj", "wq", "wk", "query", "key")
_NEURONS = (
    "embed",
    "embd",
    "wte",
    "lm_head",
    "output",
    "final_layer",
    "v_proj",
    "wv",
    "value",
    "o_proj",
    "wo",
    "attn.proj",
    "feed_forward",
    "linear",
    "mlp",
)
"""Parts of names that the package looks for, in lower case (adam_mini.py:110-122)."""


@register(
    "adam_mini.Adam_mini",
    arguments={
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.0,
        "model_sharding": Optional(bool),
        "dim": 2048,
        "n_heads": 32,
        "n_kv_heads": Optional(int),
        "verbose": True,
    },
    package="adam-mini",
    version="1.1.1",
    source="adam_mini/adam_mini.py:210-355",
    by_name=True,
    ignores="More than one GPU. The names that a user adds to the package's lists.",
)
def adam_mini(parameter: ParameterSpec, args: Arguments) -> Entries:
    """A full momentum and one second moment per head, per output neuron or per tensor, as the parameter's name tells.

    A bias keeps Adam's two moments. `dim` and `n_heads` are the model's hidden size and attention heads.

    Raises:
        UsageError: a shape that the package cannot cut as the name asks.
    """
    name, spec = parameter.name.lower(), parameter.tensor
    if "bias" in name:
        return (like("m", parameter), python_number("step"), like("v", parameter))
    if any(part in name for part in _HEADS):
        head_numel = args["dim"] ** 2 // max(args["n_heads"], 1)
        if head_numel < 1 or spec.numel % head_numel:
            raise UsageError(
                f"{parameter.name} has {spec.numel} elements, which do not divide into heads of dim**2 / n_heads = "
                f"{head_numel}. Give the model's own dim and n_heads."
            )
        heads = spec.numel // head_numel
        return (
            tensor("m", (heads, head_numel), spec.dtype),
            python_number("head_per_gpu"),
            python_number("step"),
            tensor("vmean", (heads, 1), spec.dtype),
        )
    if any(part in name for part in _NEURONS):
        if len(spec.shape) != 2:
            raise UsageError(
                f"{parameter.name} {spec.shape}: Adam-mini takes it for a matrix because of its name, and fails."
            )
        vmean = tensor("vmean", (spec.shape[0], 1), spec.dtype)
        return (like("m", parameter), python_number("step"), python_number("neuron_per_gpu"), vmean)
    return (
        like("m", parameter),
        python_number("step"),
        python_number("reduced", "bool"),
        tensor("vmean", (), spec.dtype),
        python_number("block_numel", "float"),
    )
