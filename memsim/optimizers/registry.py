"""The registry of optimizer rules and the names people call them by."""

from __future__ import annotations

import importlib
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

    @property
    def gradients_live_one_at_a_time(self) -> bool:
        """Whether parameters are updated inside backward, as this rule and these arguments have it."""
        fuses = self.rule.fuses_backward
        return bool(self.args[fuses]) if isinstance(fuses, str) else fuses


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


def known_rules() -> Mapping[str, OptimizerRule]:
    """Return the rules that are registered so far."""
    return _RULES


def known_names() -> Mapping[str, OptimizerName]:
    """Return the names that are registered so far."""
    return _NAMES


def rules() -> Mapping[str, OptimizerRule]:
    """Return every rule by class path."""
    _register_all()
    return _RULES


def names() -> Mapping[str, OptimizerName]:
    """Return every name that is not a class path."""
    _register_all()
    return _NAMES


def _register_all() -> None:
    """Import the rules that most estimates do not need."""
    importlib.import_module("memsim.optimizers.third_party")


def resolve_optimizer(name: str, args: Arguments | None = None, impl: str | None = None) -> ResolvedOptimizer:
    """Return the rule and the complete arguments of an optimizer.

    Args:
        name: a Hugging Face `optim=` name, a short name or a class path; a name is found in any case (`AdamW`) unless
            that leaves two classes to choose from.
        args: keyword arguments; strings are converted to the argument's type.
        impl: `foreach`, `fused` or `for-loop`, where the class has that form.

    Raises:
        UnknownNameError: no such optimizer or argument.
        UsageError: an argument of the wrong type, a form of `step()` that the class does not have, or a name that could
            be either of two classes.
    """
    known = _NAMES.get(name) or _find(name)
    rule = _RULES[known.class_path]
    complete = complete_arguments(name, rule, {**known.args, **_impl_arguments(rule, impl), **(args or {})})
    return ResolvedOptimizer(name=name, rule=rule, args=complete)


def _find(name: str) -> OptimizerName:
    """Return what a class path, or a name in another case than its own, stands for."""
    if name not in _RULES:
        _register_all()
    if name in _RULES:
        return OptimizerName(name=name, class_path=name)
    if name in _NAMES:
        return _NAMES[name]
    # `Adafactor` is the spelling of torch's class, and `adafactor` the Trainer's name for another one.
    spelled = [f"{module}.{name}" for module in ("torch.optim", "bitsandbytes.optim") if f"{module}.{name}" in _RULES]
    spelled = spelled or _same_class(name)
    folded = [known for known in _NAMES.values() if known.name.lower() == name.lower()]
    candidates = {known.class_path: known for known in folded}
    for class_path in spelled[:1]:
        candidates.setdefault(class_path, OptimizerName(name=name, class_path=class_path))
    if not candidates:
        raise UnknownNameError("optimizer", name, [*_NAMES, *_RULES], "'memsim optimizers' lists all.")
    if len(candidates) > 1:
        ways = [known.name if known in folded else path for path, known in candidates.items()]
        raise UsageError(f"optimizer {name!r} could be {' or '.join(ways)}: write the one you mean.")
    return next(iter(candidates.values()))


def _same_class(path: str) -> list[str]:
    """Return the class paths that another way to import a class may mean: `torch.optim.adamw.AdamW`."""
    package, name = path.partition(".")[0], path.rpartition(".")[2]
    found = [p for p in _RULES if p.partition(".")[0] == package and p.rpartition(".")[2] == name]
    return found if len(found) == 1 and "." in path else []


def _impl_arguments(rule: OptimizerRule, impl: str | None) -> dict[str, bool]:
    """Return the `foreach=` and `fused=` arguments that ask for a form of `step()`."""
    if impl is None:
        return {}
    if impl != "for-loop" and impl not in rule.arguments:
        raise UsageError(f"{rule.class_path} has no {impl} form: leave --optimizer-impl out.")
    return {form: form == impl for form in ("foreach", "fused") if form in rule.arguments}
