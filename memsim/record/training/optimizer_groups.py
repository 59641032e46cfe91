"""How the constructors of some optimizers want their parameters: by name, in two groups, or the whole model.

Each was read in its package, and where the Trainer builds it, in trainer_optimizer.py of transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers import ResolvedOptimizer
from memsim.optimizers.low_rank import is_projected
from memsim.optimizers.muon import takes_muon

_WANT_MODEL = frozenset(
    ["lomo_optim.Lomo", "lomo_optim.AdaLomo", "pytorch_optimizer.LOMO", "pytorch_optimizer.AdaLOMO"]
)
"""Classes whose first argument is the model."""
_NOT_OF_THE_GROUP = frozenset(["target_modules", "layerwise"])
"""Arguments of memsim's that say what belongs to a group; the others are keys of the group."""

Arguments = Mapping[str, Any]


def first_argument(
    model: Any, resolved: ResolvedOptimizer, specs: Sequence[ParameterSpec], parameters: Mapping[str, Any]
) -> Any:
    """Return what the class's constructor takes first: parameters, groups, named parameters or the model.

    Args:
        model: the module.
        resolved: the optimizer.
        specs: what it trains.
        parameters: the module's parameters by name.
    """
    path, own = resolved.rule.class_path, resolved.rule.own_arguments
    if wants_model(resolved):
        return model
    if path == "adam_mini.Adam_mini":
        return [(spec.name, parameters[spec.name]) for spec in specs]
    if "target_modules" in own:
        return low_rank_groups(resolved, specs, parameters)
    if "adam_patterns" in own:
        muon = [parameters[spec.name] for spec in specs if takes_muon(spec, resolved.args)]
        rest = [parameters[spec.name] for spec in specs if not takes_muon(spec, resolved.args)]
        return [{"params": muon, "use_muon": True}, {"params": rest, "use_muon": False}]
    return [parameters[spec.name] for spec in specs]


def wants_model(resolved: ResolvedOptimizer) -> bool:
    """Return whether the class is given the model instead of its parameters."""
    return resolved.rule.class_path in _WANT_MODEL


def low_rank_groups(
    resolved: ResolvedOptimizer, specs: Sequence[ParameterSpec], parameters: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the parameters that keep their rank and those that are projected, in the Trainer's order."""
    target = resolved.args["target_modules"]
    projected = [parameters[spec.name] for spec in specs if is_projected(spec, target)]
    rest = [parameters[spec.name] for spec in specs if not is_projected(spec, target)]
    keys = {key: resolved.args[key] for key in resolved.rule.own_arguments if key not in _NOT_OF_THE_GROUP}
    groups = [{"params": rest}, {"params": projected, **keys}]
    return [group for group in groups if group["params"]]


def step_in_backward(cls: Any, groups: Sequence[Mapping[str, Any]], options: Arguments) -> Any:
    """Return an optimizer for each parameter that steps as soon as its gradient exists (`layerwise`)."""
    from transformers.trainer_pt_utils import LayerWiseDummyOptimizer

    each = {
        parameter: cls([{**group, "params": [parameter]}], **options)
        for group in groups
        for parameter in group["params"]
    }

    def step(parameter: Any) -> None:
        if parameter.grad is not None:
            each[parameter].step()
            each[parameter].zero_grad()

    for parameter in each:
        parameter.register_post_accumulate_grad_hook(step)
    return LayerWiseDummyOptimizer(optimizer_dict=each)


def model_options(model: Any, resolved: ResolvedOptimizer) -> dict[str, Any]:
    """Return arguments that follow from the model or from the length of the training.

    Raises:
        UsageError: the class asks for the sizes of a transformer, which the model does not tell.
    """
    path = resolved.rule.class_path
    if path == "ranger21.Ranger21" and resolved.args["num_epochs"] is None:
        return {"num_epochs": 1, "num_batches_per_epoch": 1000}
    if path != "adam_mini.Adam_mini":
        return {}
    config = getattr(model, "config", None)
    options = {}
    for key, name in (("dim", "hidden_size"), ("n_heads", "num_attention_heads")):
        value = resolved.args[key] if resolved.args[key] is not None else getattr(config, name, None)
        if value is None:
            raise UsageError(f"Adam_mini needs {key}, which the model does not tell: --optimizer-arg {key}=NUMBER.")
        options[key] = value
    return options
