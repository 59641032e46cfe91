"""The real model, made without its weights and placed on a device as `model.to(device)` would place it.

Parameters are created on the meta device; buffers and everything else that a constructor computes are real, since
masks, positions and lengths decide sizes. `place` then allocates parameter by parameter.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

from memsim.config import TrainingConfig
from memsim.errors import ModelError, UsageError
from memsim.record.architecture import construct, import_transformers
from memsim.record.meta import float32_patterns, table_from_module

Weights = Literal["meta", "real"]
SMALL_NUMEL = 4096
"""Floating-point tensors of fewer elements are created for real: a constructor may compute with them."""
RANDOM_STD = 0.02
"""Standard deviation of random weights: `initializer_range` of most models of transformers."""
_LAYERDROP = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")


def build_model(config: Mapping[str, Any], training: TrainingConfig, *, weights: Weights = "meta") -> Any:
    """Return the `torch.nn.Module` that `config` describes, ready to be placed and trained.

    Dtypes are those that `from_pretrained(dtype=...)` leaves; what `training` says of the task, attention, frozen
    parameters and activation checkpointing is done; the model is in training mode. `config.use_cache` stays as it is:
    only the Trainer changes it. Layers that are left out at random (layerdrop) all run.

    Args:
        config: content of a `config.json`, not trusted.
        training: its `dtype` must be a dtype, not `auto`.
        weights: `meta` has parameters without memory and real buffers; `real` is initialised on the CPU as the model's
            own code does it.

    Raises:
        UsageError: a pattern of `freeze` covers nothing, or `dtype` is `auto`.
        MissingPackageError: torch or transformers is not installed.
        UnknownNameError: transformers has no such `model_type` or architecture.
        ModelError: the model has no such task or attention, cannot recompute activations, or its sizes make no model.
    """
    if training.dtype == "auto":
        raise UsageError("a model is built in one dtype, not in 'auto': give float32, bfloat16 or float16.")
    import_transformers()
    model = construct(
        config,
        task=training.task,
        dtype=training.dtype,
        num_labels=training.num_labels,
        creating=nullcontext() if weights == "real" else _parameters_on_meta(),
        attn_implementation=training.attn_implementation,
    ).model
    if weights == "meta":
        _make_real(model)
    _keep_float32(model, training.dtype)
    _run_every_layer(model)
    _complete_token_ids(model)
    freeze(model, training.freeze)
    if training.activation_checkpointing:
        enable_checkpointing(model)
    return model.train()


def place(model: Any, device: Any, *, weights: Literal["empty", "random"] = "empty") -> Any:
    """Move a model to a device, allocating what `model.to(device)` allocates in the same order, and return it.

    Parameters on the meta device come into being there, empty or filled with small random numbers; everything else is
    copied. Tied parameters stay tied.
    """
    import torch

    target = torch.device(device)

    def arrive(tensor: Any) -> Any:
        if not tensor.is_meta:
            return tensor.to(target)
        there = torch.empty_like(tensor, device=target)
        if weights == "random" and there.is_floating_point():
            there.normal_(0.0, RANDOM_STD)
        return there

    with _swapping(torch):
        return model._apply(arrive)


def freeze(model: Any, patterns: tuple[str, ...]) -> None:
    """Stop training every parameter that one of the patterns covers (see `ParameterTable.freeze`).

    Raises:
        UsageError: a pattern covers no parameter.
    """
    if patterns:
        table = table_from_module(model).freeze(patterns)
        trained = {p.name for p in table.trainable}
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and name in trained)


def enable_checkpointing(model: Any) -> None:
    """Make a model of transformers recompute its activations, as the installed version does by default.

    Raises:
        ModelError: it has no such thing.
    """
    # transformers 5.24 renamed it (modeling_utils.py:3119); the old name is deprecated there.
    names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
    enable = next((getattr(model, name) for name in names if hasattr(model, name)), None)
    message = f"{type(model).__name__} cannot recompute its activations: leave --activation-checkpointing out."
    if enable is None:
        raise ModelError(message)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            enable()
    except (ValueError, NotImplementedError) as error:
        raise ModelError(message) from error


def runs_every_layer(model: Any) -> bool:
    """Return whether layers would be left out at random in training, had `build_model` not set that rate to 0."""
    return any(name in vars(module) for module in model.modules() for name in _LAYERDROP) or any(
        hasattr(config, name) for config in _configs(model) for name in _LAYERDROP
    )


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Create large floating-point tensors, and every parameter, on the meta device, and initialise none of them."""
    import torch
    import transformers

    pretrained = transformers.PreTrainedModel
    initialize = pretrained._initialize_weights
    hook = torch.nn.modules.module.register_module_parameter_registration_hook(_to_meta)
    pretrained._initialize_weights = lambda *_args, **_kwargs: None
    try:
        with _large_on_meta(torch):
            yield
    finally:
        pretrained._initialize_weights = initialize
        hook.remove()


def _to_meta(_module: Any, _name: str, parameter: Any) -> None:
    import torch

    if parameter is not None and not parameter.is_meta and not hasattr(parameter, "materialize"):
        shadow = torch.nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
        torch.utils.swap_tensors(parameter, shadow)


def _large_on_meta(torch: Any) -> Any:
    """Return the mode in which `torch.empty` and its like put large floating-point tensors on the meta device."""
    creators = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.normal}
    mode: Any = torch.overrides.TorchFunctionMode

    class LargeOnMeta(mode):  # type: ignore[misc, unused-ignore]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if func in creators and kwargs.get("device") is None:
                on_meta = func(*args, **{**kwargs, "device": "meta"})
                if on_meta.is_floating_point() and on_meta.numel() >= SMALL_NUMEL:
                    return on_meta
            elif _mixes_devices(torch, (*args, *kwargs.values())):
                args, kwargs = _all_on_meta(torch, args), {k: _all_on_meta(torch, v) for k, v in kwargs.items()}
            return func(*args, **kwargs)

    return LargeOnMeta()


def _mixes_devices(torch: Any, values: Any) -> bool:
    kinds = {tensor.is_meta for tensor in _tensors(torch, values)}
    return len(kinds) > 1


def _tensors(torch: Any, values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(torch, value)


def _all_on_meta(torch: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value if value.is_meta else value.to("meta")
    if isinstance(value, (list, tuple)) and any(True for _ in _tensors(torch, value)):
        return type(value)(_all_on_meta(torch, item) for item in value)
    return value


def _make_real(model: Any) -> None:
    """Give zeros to buffers and other tensors of modules that the constructor left on the meta device."""
    import torch

    for module in model.modules():
        for kept in (module._buffers, module.__dict__):
            for name, value in list(kept.items()):
                if isinstance(value, torch.Tensor) and value.is_meta and not isinstance(value, torch.nn.Parameter):
                    kept[name] = torch.zeros_like(value, device="cpu")


def _keep_float32(model: Any, dtype: str) -> None:
    patterns = float32_patterns(model, dtype)
    if not patterns:
        return
    kept = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    for name, parameter in model.named_parameters():  # the first name of a tied one decides
        if parameter.is_floating_point() and kept.search(name):
            parameter.data = parameter.data.float()
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            persistent = buffer is not None and name not in module._non_persistent_buffers_set
            if persistent and buffer.is_floating_point() and kept.search(f"{path}.{name}".lstrip(".")):
                module._buffers[name] = buffer.float()


def _run_every_layer(model: Any) -> None:
    holders = [vars(module) for module in model.modules()] + [vars(config) for config in _configs(model)]
    for holder in holders:
        for name in _LAYERDROP:
            if name in holder:
                holder[name] = 0.0


def _complete_token_ids(model: Any) -> None:
    """Set the ids that a configuration of sizes alone leaves out and that a forward with labels asks for."""
    for config in _configs(model):
        if getattr(config, "pad_token_id", 0) is None:
            config.pad_token_id = 0
        if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
            config.decoder_start_token_id = 0


def _configs(model: Any) -> list[Any]:
    found = {id(config): config for m in model.modules() if (config := getattr(m, "config", None)) is not None}
    return list(found.values())


@contextmanager
def _swapping(torch: Any) -> Iterator[None]:
    """Let `Module._apply` keep the parameter objects, and so ties, optimizers' and hooks' references."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
