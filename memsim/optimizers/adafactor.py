"""State of `transformers.optimization.Adafactor`: row and column means of the squared gradient, nothing of full size.

Read at transformers 5.24.0, src/transformers/optimization.py:1202-1294. It differs from `torch.optim.Adafactor` in
its keys, in keeping half-precision parameters' state in float32, and in the `RMS` scalar.
"""

from __future__ import annotations

from typing import Any

from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like, python_number, tensor

_ADAFACTOR: dict[str, Any] = {
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
    arguments=_ADAFACTOR,
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
    shape, dtype = parameter.tensor.shape, parameter.tensor.dtype
    state_dtype = "float32" if dtype in {"float16", "bfloat16"} else dtype
    momentum = (like("exp_avg", parameter, state_dtype),) if args["beta1"] is not None else ()
    if len(shape) >= 2:
        squares: Entries = (
            tensor("exp_avg_sq_row", shape[:-1], state_dtype),
            tensor("exp_avg_sq_col", shape[:-2] + shape[-1:], state_dtype),
        )
    else:
        squares = (like("exp_avg_sq", parameter, state_dtype),)
    return (python_number("step"), *momentum, *squares, tensor("RMS", (), state_dtype))
