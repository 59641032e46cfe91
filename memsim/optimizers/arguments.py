"""Checking and completing the keyword arguments of an optimizer."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from memsim.errors import UnknownNameError, UsageError, shown
from memsim.optimizers.rules import Arguments, OptimizerRule

_WORDS = {"true": True, "false": False, "none": None}


class Optional:
    """Default of an argument that is `None` unless a value of the given types is given."""

    def __init__(self, *types: type) -> None:
        self.types = types

    def __repr__(self) -> str:
        return "None"


class Required(Optional):
    """An argument that the real class needs: memory does not depend on its value, so it may be left out here.

    It has no default, or one (`refused`) that the constructor itself rejects.
    """

    def __init__(self, *types: type, refused: Any = None) -> None:
        super().__init__(*types)
        self.refused = refused


class Opaque(Optional):
    """An argument whose default is an object that only the package has (a function, an enum, a dtype).

    `None` stands for that default here.
    """


def complete_arguments(name: str, rule: OptimizerRule, given: Arguments) -> dict[str, Any]:
    """Return the rule's defaults with `given` laid over them, each value of the argument's type.

    Raises:
        UnknownNameError: the class has no such argument.
        UsageError: the value cannot be that argument's.
    """
    defaults = {**rule.arguments, **rule.own_arguments}
    complete = {key: None if isinstance(value, Optional) else value for key, value in defaults.items()}
    for key, value in given.items():
        if key not in defaults:
            raise UnknownNameError(f"argument of {name}", key, defaults, f"It takes: {', '.join(defaults) or 'none'}.")
        complete[key] = _convert(name, key, value, defaults[key])
        if isinstance(defaults[key], Required) and complete[key] is not None and complete[key] == defaults[key].refused:
            raise UsageError(f"{name}: {key}={value!r} is refused by the class itself; give another value.")
    return complete


def _convert(name: str, key: str, value: Any, default: Any) -> Any:
    parsed = _parse(value) if isinstance(value, str) and not isinstance(default, str) else value
    types = _types(default)
    if parsed is None and (default is None or isinstance(default, Optional)):
        return None
    if bool not in types and isinstance(parsed, bool):
        pass
    elif float in types and isinstance(parsed, int):
        return float(parsed)
    elif isinstance(default, tuple) and isinstance(parsed, (list, tuple)):
        if _same_kinds(parsed, default):
            return tuple(parsed)
    elif not types or isinstance(parsed, types):
        return parsed
    wanted = " or ".join(t.__name__ for t in types)
    raise UsageError(f"{name}: {key} must be {wanted}, not {shown(value)} ({key}={default!r} is the default).")


def _same_kinds(values: Sequence[Any], defaults: Sequence[Any]) -> bool:
    """Return whether a tuple has as many members as the default, numbers where that has numbers."""
    return len(values) == len(defaults) and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) if isinstance(default, (int, float)) else True
        for value, default in zip(values, defaults, strict=True)
    )


def _types(default: Any) -> tuple[type, ...]:
    """Return the types that an argument with this default takes; empty where anything goes."""
    if isinstance(default, Optional):
        return default.types
    if default is None:
        return ()
    return (type(default),)


def _parse(text: str) -> Any:
    """Return the Python value that a command line's `KEY=VALUE` means; the text itself where it is no literal."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
