"""Values from outside (options, files) against the type hints of memsim's own dataclasses."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from memsim.errors import UsageError, shown

_Data = TypeVar("_Data")
_UNIONS = (Union, types.UnionType)


def check_fields(instance: Any) -> None:
    """Check every field of a dataclass instance against its type hint.

    Raises:
        UsageError: a value is not of the field's type.
    """
    for name, hint in _hints(type(instance)).items():
        value = getattr(instance, name)
        if not _fits(value, hint):
            raise UsageError(f"{name} must be {_described(hint)}, not {shown(value)}.")


def read_data(kind: type[_Data], data: Any, where: str = "") -> _Data:
    """Return the dataclass that JSON `data` holds; keys that the class does not have are passed over.

    Raises:
        ValueError: a key is missing or a value is of another type; the message says where.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{where or 'it'} must be an object, not {shown(data)}")
    values = {}
    for name, hint in _hints(kind).items():
        place = f"{where}.{name}" if where else name
        if name in data:
            values[name] = _converted(data[name], hint, place)
        elif not _has_default(kind, name):
            raise ValueError(f"{place} is missing")
    return kind(**values)


def _converted(value: Any, hint: Any, place: str) -> Any:
    if isinstance(hint, type) and issubclass(hint, Enum):
        value = _word(value, hint, place)
    elif isinstance(hint, type) and (is_dataclass(hint) or hasattr(hint, "_fields")):
        return read_data(hint, value, place)
    inner = get_args(hint)
    if get_origin(hint) in _UNIONS and value is not None:
        options = [option for option in inner if option is not type(None)]
        if len(options) == 1:
            return _converted(value, options[0], place)
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_converted(item, inner[0], f"{place}[{index}]") for index, item in enumerate(value))
    if get_origin(hint) in (Mapping, dict) and isinstance(value, dict):
        return {key: _converted(item, inner[1], f"{place}.{key}") for key, item in value.items()}
    if hint is Any:
        return tuple(_converted(item, Any, place) for item in value) if isinstance(value, list) else value
    if not _fits(value, hint):
        raise ValueError(f"{place} must be {_described(hint)}, not {shown(value)}")
    if hint is int and value < 0:
        raise ValueError(f"{place} must not be negative, as {value} is")
    return value


def _word(value: Any, kind: type[Enum], place: str) -> Enum:
    try:
        return kind(value)
    except ValueError:
        allowed = ", ".join(str(member.value) for member in kind)
        raise ValueError(f"{place} must be one of {allowed}, not {shown(value)}") from None


def json_value(value: Any) -> Any:
    """Return a value of JSON's own types: words for enumerations, lists for tuples."""
    if isinstance(value, Mapping):
        return {key: json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    return value.value if isinstance(value, Enum) else value


_HINTS: dict[Any, dict[str, Any]] = {}


def _hints(kind: Any) -> dict[str, Any]:
    """Return the type hint of every field of a dataclass or `NamedTuple`."""
    if kind not in _HINTS:
        hints = get_type_hints(kind)
        names = getattr(kind, "_fields", None) or [field.name for field in fields(kind)]
        _HINTS[kind] = {name: hints[name] for name in names}
    return _HINTS[kind]


def _has_default(kind: Any, name: str) -> bool:
    if hasattr(kind, "_fields"):
        return name in kind._field_defaults
    field = next(field for field in fields(kind) if field.name == name)
    return field.default is not MISSING or field.default_factory is not MISSING


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        fits = True
    elif hint in (int, bool):
        fits = type(value) is hint
    elif hint is float:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    elif origin is Literal:
        fits = isinstance(value, str) and value in inner
    elif origin in _UNIONS:
        fits = any(_fits(value, option) for option in inner)
    elif origin is tuple:
        fits = isinstance(value, tuple) and all(_fits(item, inner[0]) for item in value)
    elif origin in (Mapping, dict):
        fits = isinstance(value, Mapping) and all(
            _fits(key, inner[0]) and _fits(item, inner[1]) for key, item in value.items()
        )
    else:
        fits = isinstance(value, hint)
    return fits


def _described(hint: Any) -> str:
    """Return a type hint in words: `str or None`, `one of a, b`, `a tuple of str`."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in _UNIONS:
        return " or ".join(_described(option) for option in inner)
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin is tuple:
        return f"a tuple of {_described(inner[0])}"
    if origin is Mapping:
        return "a mapping"
    if hint is type(None):
        return "None"
    return {int: "a whole number", bool: "true or false", str: "a text"}.get(hint, getattr(hint, "__name__", str(hint)))
