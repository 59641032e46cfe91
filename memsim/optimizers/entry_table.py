"""A notation for optimizers whose entries follow from the parameter's shape alone, one line an optimizer.

A line lists the keys of `optimizer.state[p]`, separated by blanks. A bare key is a tensor of the parameter's shape and
dtype; what else it is stands after a colon:

    exp_avg        the parameter's shape and dtype
    exp_avg:f32    the parameter's shape, float32
    decay:()       no dimension, the parameter's dtype
    scale:(1)      one dimension of one element, the parameter's dtype; `(1)f32` in float32
    step:int       a Python number, `int` or `float`
"""

from __future__ import annotations

from collections.abc import Mapping

from memsim.model import ParameterSpec
from memsim.optimizers.rules import Arguments, Entries, ParameterRule, StateEntry, like, python_number, tensor

_SHAPES = {"()": (), "(1)": (1,)}


def table_rule(line: str, when: Mapping[str, str] | None = None) -> ParameterRule:
    """Return the rule that a line of the notation describes.

    Args:
        line: keys that are always there.
        when: argument name to a line of keys that are there too when the argument is true, or not zero.
    """
    always = line.split()
    sometimes = {argument: keys.split() for argument, keys in (when or {}).items()}

    def rule(parameter: ParameterSpec, args: Arguments) -> Entries:
        asked = [key for argument, keys in sometimes.items() if args[argument] for key in keys]
        return tuple(_entry(key, parameter) for key in always + asked)

    return rule


def _entry(key: str, parameter: ParameterSpec) -> StateEntry:
    name, _, kind = key.partition(":")
    if not kind:
        return like(name, parameter)
    if kind in {"int", "float"}:
        return python_number(name, kind)
    shape, dtype = kind.removesuffix("f32"), "float32" if kind.endswith("f32") else parameter.tensor.dtype
    return tensor(name, _SHAPES[shape], dtype) if shape else like(name, parameter, dtype)
