"""An optimizer object that the user has built, read as a specification; before or after its first step.

Nothing is imported: the object's class, `param_groups` and attributes say all that its rule needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from memsim.config import OptimizerConfig, ParameterGroup
from memsim.errors import UnknownNameError, UsageError
from memsim.optimizers import OptimizerRule, rules

_PLAIN = (bool, int, float, str, tuple, list, type(None))
"""What an argument can be; other attributes of the same name (bitsandbytes' `args` namespace) are no arguments."""

_BITS_IN_NAME = ("8bit", "32bit")
"""Classes of bitsandbytes that set `optim_bits` themselves: their objects show another value than they accept."""


def is_built_optimizer(value: object) -> bool:
    """Whether `value` is an optimizer object rather than a name."""
    return hasattr(value, "param_groups") and hasattr(value, "step")


def config_of_built(optimizer: Any, model: Any) -> OptimizerConfig:
    """Return the configuration that an optimizer over a module's parameters stands for.

    Every parameter group becomes a group by the names of its parameters; trainable parameters that are in no group
    get no state.

    Args:
        optimizer: a `torch.optim.Optimizer`, also wrapped by Accelerate.
        model: the `torch.nn.Module` whose parameters it was given.

    Raises:
        UnknownNameError: memsim has no rule for its class.
        UsageError: `model` is no module, or the optimizer holds a parameter that is not the model's.
    """
    optimizer = _unwrapped(optimizer)
    rule = _rule_of(type(optimizer))
    if not hasattr(model, "named_parameters"):
        raise UsageError(
            "an optimizer object says which parameters it trains only together with their module: "
            f"give the torch.nn.Module itself instead of {model!r}, or the optimizer's name."
        )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = []
    for number, group in enumerate(optimizer.param_groups):
        args = _arguments(rule, optimizer, group)
        for own, parameters in _by_override(optimizer, group["params"]):
            patterns = tuple(_name_of(parameter, names, number) for parameter in parameters)
            groups.append(ParameterGroup(patterns=patterns, args={**args, **own}, holds_frozen=True))
    held = {name for group in groups for name in group.patterns}
    rest = tuple(name for name in names.values() if name not in held)
    if rest:
        groups.append(ParameterGroup(patterns=rest, optimizer="none"))
    return OptimizerConfig(name=rule.class_path, groups=tuple(groups))


def _unwrapped(optimizer: Any) -> Any:
    """Return the optimizer inside Accelerate's `AcceleratedOptimizer` and wrappers like it."""
    while is_built_optimizer(getattr(optimizer, "optimizer", None)):
        optimizer = optimizer.optimizer
    return optimizer


def _rule_of(kind: type) -> OptimizerRule:
    """Return the rule of exactly this class; a subclass may keep other state."""
    for class_path, rule in rules().items():
        package, name = class_path.partition(".")[0], class_path.rpartition(".")[2]
        if (kind.__module__.partition(".")[0], kind.__name__) == (package, name):
            return rule
    given = f"{kind.__module__}.{kind.__qualname__}"
    parents = [p.__name__ for p in kind.__mro__[1:] if any(c.endswith(f".{p.__name__}") for c in rules())]
    hint = f"If it keeps the state of {parents[0]}, give that name instead." if parents else ""
    raise UnknownNameError("optimizer class", given, rules(), hint)


def _arguments(rule: OptimizerRule, optimizer: Any, group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constructor's arguments as far as the object still has them: group, defaults, `args`, attributes."""
    sources = (group, optimizer.defaults, getattr(getattr(optimizer, "args", None), "__dict__", {}), vars(optimizer))
    arguments = {}
    for key in rule.arguments:
        if key == "optim_bits" and rule.class_path.endswith(_BITS_IN_NAME):
            continue
        values = [source[key] for source in sources if key in source]
        value = values[0].item() if values and hasattr(values[0], "item") else next(iter(values), None)
        if values and isinstance(value, _PLAIN):
            arguments[key] = value
    return arguments


def _by_override(optimizer: Any, parameters: Iterable[Any]) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Yield the parameters by what bitsandbytes' `GlobalOptimManager` overrides for them (`optim_bits`)."""
    manager = getattr(optimizer, "mng", None)
    overrides: dict[int, dict[str, Any]] = dict(getattr(manager, "pid2config", {}))
    for module, attribute, config in getattr(manager, "module_weight_config_triple", ()):
        overrides[id(getattr(module, attribute))] = config
    kinds: dict[tuple[tuple[str, Any], ...], list[Any]] = {}
    for parameter in parameters:
        own = overrides.get(id(parameter), {})
        kinds.setdefault(tuple(sorted((key, own[key]) for key in own if key == "optim_bits")), []).append(parameter)
    for kind, members in kinds.items():
        yield dict(kind), members


def _name_of(parameter: Any, names: Mapping[int, str], group: int) -> str:
    name = names.get(id(parameter))
    if name is None:
        raise UsageError(
            f"parameter group {group} of the optimizer holds a parameter of shape {list(parameter.shape)} that is not "
            "the model's: give the module whose parameters the optimizer was built with."
        )
    return name
