"""State of `torchao.optim`: Adam and AdamW with 8-bit, 4-bit and FP8 moments, and the one that offloads to the CPU.

Read at torchao 0.18.0: optim/adam.py:65-125 (which tensors are quantized), optim/subclass_8bit.py:40-125,
optim/subclass_4bit.py:44-130, optim/subclass_fp8.py:34-90, optim/cpu_offload.py:18-140.

A moment is quantized if it has at least 4,096 elements and a whole number of blocks; otherwise it is `zeros_like(p)` in
the parameter's dtype. A quantized moment is a tensor subclass of codes, one float32 scale for each block and, at 8 and
4 bits, a table of 256 or 16 float32 values of its own: nothing is shared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers.registry import register, resolve_optimizer
from memsim.optimizers.rules import (
    Arguments,
    Entries,
    ParameterRule,
    StateEntry,
    adam_moments,
    like,
    step_tensor,
    tensor,
)
from memsim.tensors import TensorSpec

MIN_QUANTIZED_ELEMENTS = 4096
"""Smaller moments are not quantized (optim/adam.py:74)."""

_FACTS: dict[str, Any] = {"package": "torchao", "version": "0.18.0"}
_LR = "The learning rate of each parameter group, which torchao keeps as a float32 host tensor (4 bytes)."


def _arguments(*, weight_decay: float, block_size: int) -> dict[str, Any]:
    return {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": weight_decay,
        "amsgrad": False,
        "block_size": block_size,
        "bf16_stochastic_round": False,
    }


Quantized = Callable[[str, TensorSpec, int], Entries]


def eight_bit(name: str, moment: TensorSpec, block_size: int) -> Entries:
    """Return one byte per element, a scale per block and a table of 256 values."""
    return (
        tensor(f"{name}.codes", moment.shape, "uint8"),
        tensor(f"{name}.scale", (moment.numel // block_size,), "float32"),
        tensor(f"{name}.qmap", (256,), "float32"),
    )


def four_bit(name: str, moment: TensorSpec, block_size: int) -> Entries:
    """Return two elements per byte in a flat tensor, a scale per block and a table of 16 values."""
    return (
        tensor(f"{name}.codes", (moment.numel // 2,), "uint8"),
        tensor(f"{name}.scale", (moment.numel // block_size,), "float32"),
        tensor(f"{name}.qmap", (16,), "float32"),
    )


def fp8(name: str, moment: TensorSpec, block_size: int) -> Entries:
    """Return one float8_e4m3fn per element and a scale per block; no table."""
    return (
        tensor(f"{name}.codes", moment.shape, "float8_e4m3fn"),
        tensor(f"{name}.scale", (moment.numel // block_size,), "float32"),
    )


def low_bit_adam(parameter: ParameterSpec, args: Arguments, *, quantized: Quantized) -> Entries:
    """Two moments, quantized where the tensor is large enough and divides into blocks; three with `amsgrad`.

    Raises:
        UsageError: the block size is not positive.
    """
    block_size = args["block_size"]
    if block_size < 1:
        raise UsageError(f"block_size={block_size}: torchao's blocks have at least one element.")
    spec = parameter.tensor
    if spec.numel < MIN_QUANTIZED_ELEMENTS or spec.numel % block_size:
        return (step_tensor(on_device=False), *(like(name, parameter) for name in adam_moments(args)))
    parts = [entry for name in adam_moments(args) for entry in quantized(name, spec, block_size)]
    return (step_tensor(on_device=False), *parts)


def _register_low_bit() -> None:
    for suffix, quantized, block_size in (("8bit", eight_bit, 256), ("4bit", four_bit, 128), ("Fp8", fp8, 256)):
        for base, weight_decay in (("Adam", 0.0), ("AdamW", 1e-2)):
            register(
                f"torchao.optim.{base}{suffix}",
                arguments=_arguments(weight_decay=weight_decay, block_size=block_size),
                source=f"torchao/optim/adam.py:65-125, subclass_{suffix.lower()}.py",
                ignores=_LR,
                **_FACTS,
            )(partial(low_bit_adam, quantized=cast("Quantized", quantized)))


_register_low_bit()


@register(
    "torchao.optim.adam._AdamW",
    arguments={k: v for k, v in _arguments(weight_decay=1e-2, block_size=0).items() if k != "block_size"},
    source="torchao/optim/adam.py:65-125, 220-250",
    ignores=_LR,
    **_FACTS,
)
def stochastic_rounding_adamw(parameter: ParameterSpec, args: Arguments) -> Entries:
    """Two moments in the parameter's dtype: AdamW that can round bfloat16 weights stochastically."""
    return (step_tensor(on_device=False), *(like(name, parameter) for name in adam_moments(args)))


@register(
    "torchao.optim.CPUOffloadOptimizer",
    arguments={"optimizer_class": "torch.optim.AdamW", "offload_gradients": False, "minimal_size": 4096},
    source="torchao/optim/cpu_offload.py:18-110",
    ignores="Keyword arguments of the inner optimizer: its defaults are taken.",
    **_FACTS,
)
def cpu_offload(parameter: ParameterSpec, args: Arguments) -> Entries:
    """A pinned host copy of the parameter and of its gradient, and the inner optimizer's state on the host.

    Parameters with fewer than `minimal_size` elements stay with an inner optimizer on the device. An inner
    `torch.optim.AdamW` is fused unless told otherwise.

    Raises:
        UnknownNameError: memsim does not know the inner optimizer.
        UsageError: the inner optimizer's state depends on all parameters together.
    """
    name = args["optimizer_class"]
    inner = resolve_optimizer(name, {"fused": True} if name == "torch.optim.AdamW" else {})
    if inner.rule.whole:
        raise UsageError(f"CPUOffloadOptimizer builds one optimizer a parameter, which {name} is not made for.")
    state = cast("ParameterRule", inner.rule.state)(parameter, inner.args)
    if parameter.tensor.numel < args["minimal_size"]:
        return tuple(replace(entry, name=f"d_opt.{entry.name}") for entry in state)
    copies = (_on_host(like("param_d2h_map", parameter)), _on_host(like("param_d2h_map.grad", parameter)))
    return (*copies, *(replace(_on_host(entry), name=f"optim_dict.{entry.name}") for entry in state))


def _on_host(entry: StateEntry) -> StateEntry:
    storage = entry.storage and TensorSpec(entry.storage.shape, entry.storage.dtype, "host")
    return replace(entry, tensor=TensorSpec(entry.tensor.shape, entry.tensor.dtype, "host"), storage=storage)
