"""The registry of optimizer rules and the names people call them by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from memsim.errors import UnknownNameError, UsageError
from memsim.optimizers.arguments import complete_arguments
from memsim.optimizers.rules import Arguments, GroupRule, OptimizerRule, ParameterRule

_RULES: dict[str, OptimizerRule] = {}
_NAMES: dict[str, OptimizerName] = {}

RuleFunction = TypeVar("RuleFunction", bound="ParameterRule | GroupRule")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerName:
    """A name that users type, and the class and arguments that it stands for."""

    name: str
    """`adamw_bnb_8bit`, `adamw`, ..."""
    class_path: str
    """The class that it builds."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that the framework sets besides the class's defaults."""
    framework: str = ""
    """Who gives the name its meaning: `transformers` for `optim=` names, empty for memsim's short names."""
    unbuildable: str = ""
    """Why the framework itself refuses to build it today, if it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedOptimizer:
    """A rule with complete arguments."""

    name: str
    """As the user gave it."""
    rule: OptimizerRule
    """What it means."""
    args: Arguments
    """Every argument, none left implicit."""


def register(class_path: str, *, arguments: Mapping[str, Any], **facts: Any) -> Callable[[RuleFunction], RuleFunction]:
    """Register the decorated function as the state rule of `class_path`.

    `arguments` maps every keyword argument of the real constructor to its default; `facts` are the other fields of
    `OptimizerRule`.
    """

    def decorate(state: RuleFunction) -> RuleFunction:
        assert class_path not in _RULES, f"{class_path} is registered twice"
        _RULES[class_path] = OptimizerRule(class_path=class_path, arguments=arguments, state=state, **facts)
        return state

    return decorate


def register_names(names: Iterable[OptimizerName]) -> None:
    """Register names for classes that are registered already."""
    for name in names:
        assert name.name not in _NAMES, f"{name.name} is registered twice"
        assert name.class_path in _RULES, f"{name.name} stands for {name.class_path}, which has no rule"
        _NAMES[name.name] = name


def rules() -> Mapping[str, OptimizerRule]:
    """Return every rule by class path."""
    return _RULES


def names() -> Mapping[str, OptimizerName]:
    """Return every name that is not a class path."""
    return _NAMES


def resolve_optimizer(name: str, args: Arguments | None = None, impl: str | None = None) -> ResolvedOptimizer:
    """Return the rule and the complete arguments of an optimizer.

    Args:
        name: a Hugging Face `optim=` name, a short name or a class path.
        args: keyword arguments; strings are converted to the argument's type.
        impl: `foreach`, `fused` or `for-loop`, where the class has that form.

    Raises:
        UnknownNameError: no such optimizer or argument.
        UsageError: an argument of the wrong type, or a form of `step()` that the class does not have.
    """
    known = _NAMES.get(name)
    class_path = known.class_path if known else name
    rule = _RULES.get(class_path)
    if rule is None:
        raise UnknownNameError("optimizer", name, [*_NAMES, *_RULES], "'memsim optimizers' lists all.")
    preset = dict(known.args) if known else {}
    complete = complete_arguments(name, rule, {**preset, **_impl_arguments(rule, impl), **(args or {})})
    return ResolvedOptimizer(name=name, rule=rule, args=complete)


def _impl_arguments(rule: OptimizerRule, impl: str | None) -> dict[str, bool]:
    """Return the `foreach=` and `fused=` arguments that ask for a form of `step()`."""
    if impl is None:
        return {}
    forms = {
        "foreach": {"foreach": True},
        "fused": {"fused": True},
        "for-loop": {"foreach": False, "fused": False},
    }
    wanted = {key: value for key, value in forms[impl].items() if key in rule.arguments}
    if not wanted and impl != "for-loop":
        raise UsageError(f"{rule.class_path} has no {impl} form: leave --optimizer-impl out.")
    return wanted
