"""The real optimizer that an `OptimizerConfig` names, over a model's parameters."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
from collections.abc import Iterable
from typing import Any

from memsim.config import OptimizerConfig
from memsim.errors import MissingPackageError, UsageError
from memsim.model import ParameterSpec
from memsim.optimizers import ResolvedOptimizer
from memsim.optimizers.arguments import Optional, Required
from memsim.optimizers.grouping import assign
from memsim.optimizers.muon import takes_muon
from memsim.record.meta import table_from_module
from memsim.record.training.optimizer_groups import first_argument, model_options, step_in_backward

_REQUIRED: dict[type, Any] = {float: 1e-3, int: 1000}
"""Values of arguments that a class needs and that no byte depends on: learning rates, numbers of steps."""
_MUON_AND_ADAMW = "Muon+AdamW"


class Optimizers:
    """Several optimizers over one model, stepped one after the other."""

    def __init__(self, members: Iterable[Any]) -> None:
        self.members = tuple(members)
        """The `torch.optim.Optimizer`s."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all members."""
        return [group for member in self.members for group in member.param_groups]

    @property
    def state(self) -> dict[Any, Any]:
        """The state of all members by parameter."""
        return {key: values for member in self.members for key, values in member.state.items()}

    def step(self) -> None:
        """Step every member."""
        for member in self.members:
            member.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of every member's parameters."""
        for member in self.members:
            member.zero_grad(set_to_none=set_to_none)


def build_optimizer(model: Any, config: OptimizerConfig) -> Any:
    """Return the real optimizer over a module's parameters; `None` where nothing is to be trained.

    Every group of one class is a parameter group of one optimizer, all parameters that no group covers another one;
    several classes are stepped one after the other (`Optimizers`).

    Raises:
        UnknownNameError: no such optimizer or argument.
        UsageError: an argument of the wrong type, a pattern that covers no parameter, a class that memsim cannot build.
        MissingPackageError: the class's package is not installed.
    """
    by_class: dict[str, list[Part]] = {}
    for resolved, specs in assign(config, table_from_module(model)):
        if resolved.rule.class_path != "none" and specs:
            by_class.setdefault(resolved.rule.class_path, []).append((resolved, specs))
    forget_overrides()
    built = [member for parts in by_class.values() for member in _build(model, parts)]
    if any(part[0].args.get("embeddings_in_32bit") for parts in by_class.values() for part in parts):
        _keep_embeddings_in_32bit(model)
    if not built:
        return None
    return built[0] if len(built) == 1 else Optimizers(built)


Part = tuple[ResolvedOptimizer, list[ParameterSpec]]
"""An optimizer and what it trains."""


def _build(model: Any, parts: list[Part]) -> list[Any]:
    """Return the optimizers of one class: one, or the two that a combination stands for."""
    resolved = parts[-1][0]
    if resolved.rule.class_path == _MUON_AND_ADAMW:
        return _muon_and_adamw(model, *parts[-1])
    cls = optimizer_class(resolved.rule.class_path, resolved.rule.package)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # several packages greet their user
            return [_construct(model, cls, parts)]
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        said = " ".join(str(error).split())[:300] or type(error).__name__
        raise UsageError(
            f"{resolved.rule.class_path} cannot be built over {type(model).__name__}: {said}.\n"
            "Give the parameters that it does not take to another optimizer (--param-group), or choose another."
        ) from error


def _construct(model: Any, cls: Any, parts: list[Part]) -> Any:
    """Return one optimizer; its last part gives the defaults, the others are groups with arguments of their own."""
    parameters = dict(model.named_parameters())
    resolved, rest = parts[-1]
    options = {**given_arguments(resolved), **_needed(resolved), **model_options(model, resolved)}
    first = first_argument(model, resolved, rest, parameters)
    if resolved.args.get("layerwise"):
        return step_in_backward(cls, first, options)
    if len(parts) > 1 and isinstance(first, list):
        groups = [
            {"params": [parameters[s.name] for s in specs], **given_arguments(own, resolved)}
            for own, specs in parts[:-1]
        ]
        first = [*groups, *(first if first and isinstance(first[0], dict) else [{"params": first}])]
    optimizer = cls(first, **options)
    if resolved.args.get("gradient_release") and resolved.rule.class_path.startswith("optimi."):
        importlib.import_module("optimi").prepare_for_gradient_release(model, optimizer)
    return optimizer


def _muon_and_adamw(model: Any, resolved: ResolvedOptimizer, specs: list[ParameterSpec]) -> list[Any]:
    """Return `torch.optim.Muon` over hidden matrices and `torch.optim.AdamW` over the rest."""
    import torch

    parameters = dict(model.named_parameters())
    takes = {spec.name: len(spec.tensor.shape) == 2 and takes_muon(spec, resolved.args) for spec in specs}
    hidden = [parameters[name] for name, taken in takes.items() if taken]
    rest = [parameters[name] for name, taken in takes.items() if not taken]
    muon = optimizer_class("torch.optim.Muon", "torch")
    built = [muon(hidden)] if hidden else []
    return [*built, *([torch.optim.AdamW(rest, fused=resolved.args["fused"] or None)] if rest else [])]


def forget_overrides() -> None:
    """Forget what bitsandbytes was told of single parameters: it keeps that, and the modules, for the whole process."""
    loaded = sys.modules.get("bitsandbytes")
    if loaded is not None:
        loaded.optim.GlobalOptimManager.get_instance().initialize()


def _keep_embeddings_in_32bit(model: Any) -> None:
    """Register what `Trainer.create_optimizer` registers (trainer.py:1331 @transformers 5.24)."""
    import bitsandbytes
    import torch

    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})


def optimizer_class(class_path: str, package: str) -> Any:
    """Return the class of that path.

    Raises:
        MissingPackageError: it is not installed, or not in this version.
    """
    module, _, name = class_path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise MissingPackageError(
            f"{class_path} cannot be imported ({type(error).__name__}): pip install {package}, or choose an optimizer "
            "that is installed."
        ) from error


def given_arguments(resolved: ResolvedOptimizer, over: ResolvedOptimizer | None = None) -> dict[str, Any]:
    """Return the arguments that differ from the class's own defaults, or from those of the optimizer of all groups."""
    return {
        key: resolved.args[key]
        for key, default in resolved.rule.arguments.items()
        if resolved.args[key] != (None if isinstance(default, Optional) else default)
        or (over is not None and resolved.args[key] != over.args[key])
    }


def _needed(resolved: ResolvedOptimizer) -> dict[str, Any]:
    return {
        key: next(_REQUIRED[kind] for kind in default.types if kind in _REQUIRED)
        for key, default in resolved.rule.arguments.items()
        if isinstance(default, Required) and resolved.args[key] is None
    }
