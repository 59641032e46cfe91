"""The vocabulary of optimizer rules: a state entry, and a rule from shapes to entries.

A rule is a pure function `(parameter, args) -> entries`. The entries carry the names, shapes, dtypes and devices that
`optimizer.state[parameter]` really has after the first step; a test compares them one by one with the real optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from memsim.model import ParameterSpec
from memsim.tensors import Device, Shape, TensorSpec

Arguments = Mapping[str, Any]
"""Keyword arguments of the real class, complete: the class's defaults with the user's values laid over them."""


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One value of `optimizer.state[parameter]`."""

    name: str
    """The real key; parts of a nested value are dotted or indexed (`exp_avg.codes`, `old_dirs[0]`)."""
    tensor: TensorSpec
    """Shape, dtype, device; dtype `python:int` and the like for a plain number."""
    shared: str | None = None
    """Key of a storage that entries of several parameters share and that counts once per optimizer."""
    storage: TensorSpec | None = None
    """The tensor whose storage this one keeps alive, where it is a view of something larger."""

    @property
    def nbytes(self) -> int:
        """Bytes of the storage that the entry keeps alive."""
        return (self.storage or self.tensor).nbytes


Entries = tuple[StateEntry, ...]
ParameterRule = Callable[[ParameterSpec, Arguments], Entries]
"""Entries of one parameter; depends on its tensor and modules' classes only, unless the rule says `by_name`."""
GroupRule = Callable[[Sequence[ParameterSpec], Arguments], Iterable[tuple[ParameterSpec, Entries]]]
"""Entries of all parameters together, for optimizers whose state is not per parameter (LBFGS)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRule:
    """What memsim knows of one optimizer class."""

    class_path: str
    """Import path of the real class (`torch.optim.AdamW`)."""
    package: str
    """Name of the distribution that has it (`torch`)."""
    version: str
    """Version of the package that was read and measured."""
    source: str
    """File and line of the code that makes the state."""
    arguments: Mapping[str, Any]
    """Every keyword argument of the constructor with its default."""
    state: ParameterRule | GroupRule
    """The rule itself."""
    by_name: bool = False
    """Whether the entries depend on the parameter's name (then nothing is remembered from one to the next)."""
    whole: bool = False
    """Whether `state` is a `GroupRule`."""
    created: Literal["first step", "constructor"] = "first step"
    """When the entries are made; a constructor makes them for every parameter that it is given, trained or not."""
    fuses_backward: bool | str = False
    """Whether each parameter is updated inside backward as soon as its gradient exists, so that gradients live one at a
    time instead of all together; a string names the argument that asks for it."""
    not_run: str = ""
    """Why the real class could only be read; empty where tests compare the rule with its real state."""
    ignores: str = ""
    """What the rule leaves out, in a sentence."""
    own_arguments: Mapping[str, Any] = field(default_factory=dict)
    """Switches that are memsim's and not the constructor's, with their defaults (`embeddings_in_32bit`)."""


def like(name: str, parameter: ParameterSpec, dtype: str | None = None) -> StateEntry:
    """Return an entry of the parameter's shape: `torch.zeros_like(p)`, in the parameter's dtype or in `dtype`."""
    tensor = parameter.tensor
    return StateEntry(name, TensorSpec(tensor.shape, dtype or tensor.dtype))


def tensor(name: str, shape: Shape, dtype: str, device: Device = "device") -> StateEntry:
    """Return an entry with a shape of its own."""
    return StateEntry(name, TensorSpec(shape, dtype, device))


def same_shape(*names: str, numbers: Sequence[str] = (), dtype: str | None = None) -> ParameterRule:
    """Return the rule of an optimizer that keeps nothing but tensors of the parameter's shape.

    Args:
        names: its entries, in the parameter's dtype or in `dtype`.
        numbers: plain Python integers beside them.
        dtype: of all entries, where it is not the parameter's.
    """

    def rule(parameter: ParameterSpec, _: Arguments) -> Entries:
        return (*(python_number(name) for name in numbers), *(like(name, parameter, dtype) for name in names))

    return rule


def adam_moments(args: Arguments) -> tuple[str, ...]:
    """Return the names of Adam's moments: two, or three with `amsgrad`."""
    return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if args["amsgrad"] else ()))


def dtype_name(given: Any, default: str) -> str:
    """Return PyTorch's name of a dtype argument: the object or its name, and `default` where it is `None`."""
    return default if given is None else str(given).removeprefix("torch.")


def step_tensor(*, on_device: bool, name: str = "step") -> StateEntry:
    """Return the float32 scalar that `torch.optim` counts steps with (`_get_scalar_dtype`, torch/optim/optimizer.py).

    It lives on the host unless the optimizer is `capturable` or `fused`.
    """
    return StateEntry(name, TensorSpec((), "float32", "device" if on_device else "host"))


def python_number(name: str, kind: str = "int") -> StateEntry:
    """Return a plain Python `int`, `float` or `bool`: an entry without storage."""
    return StateEntry(name, TensorSpec((), f"python:{kind}", "host"))
