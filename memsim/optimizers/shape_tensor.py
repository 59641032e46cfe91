"""`ShapeTensor`: a tensor with a shape, a dtype and a lifetime, and no numbers.

A step rule can be written as the optimizer's own Python, line by line, on these. Each operation makes a tensor on a
`Tape`, and its memory is freed when the last reference to it goes: when CPython drops it, as it drops the real one. A
rule may therefore keep no variable that the real code does not keep, and keeps those that it does keep.

Values are never known: a rule that has to look at one (`.item()`) gets 1.0, and an `if` on a tensor fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

from memsim.model import ParameterSpec
from memsim.optimizers.step import Tape
from memsim.optimizers.step_event import StepEvent
from memsim.tensors import Device, Shape, TensorSpec

_KINDS = {"bool": 0, "uint8": 1, "int8": 1, "int16": 1, "int32": 1, "int64": 1}
"""PyTorch's order of dtype kinds: booleans, integers, and 2 for floats (torch/_prims_common, `dtype_to_type`)."""


class _Storage:
    """Memory that lives as long as a tensor refers to it, and on to the end of the step where it is not `mortal`."""

    __slots__ = ("event", "index", "mortal", "tape")

    def __init__(self, tape: Tape, event: StepEvent, *, mortal: bool) -> None:
        self.tape = tape
        self.event = event
        self.index = len(tape.events) - 1
        self.mortal = mortal

    def __del__(self) -> None:
        if self.mortal:
            self.tape.release(self.event)


def _elementwise(name: str, dtype: str = "") -> Callable[..., ShapeTensor]:
    def method(self: ShapeTensor, *others: Any, **_: Any) -> ShapeTensor:
        return self.make(name, _broadcast(self, *others), dtype or _promote(self, *others))

    return method


def _quotient(name: str) -> Callable[..., ShapeTensor]:
    def method(self: ShapeTensor, *others: Any, **_: Any) -> ShapeTensor:
        return self.make(name, _broadcast(self, *others), _floating(_promote(self, *others)))

    return method


def _reduction(name: str, dtype: str = "") -> Callable[..., ShapeTensor]:
    def method(
        self: ShapeTensor, dim: int | tuple[int, ...] | None = None, keepdim: bool = False, **_: Any
    ) -> ShapeTensor:
        return self.make(name, _reduced(self.shape, dim, keepdim), dtype or self.dtype)

    return method


def _in_place(self: ShapeTensor, other: Any) -> ShapeTensor:  # noqa: ARG001
    return self


class ShapeTensor:
    """A tensor that an optimizer's step reads, makes or changes, without its numbers.

    A method whose name ends in `_` changes the tensor in place and makes nothing.
    """

    __slots__ = ("_storage", "device", "dtype", "parameter", "shape")

    def __init__(self, storage: _Storage, shape: Shape, dtype: str, device: Device, parameter: str) -> None:
        self._storage = storage
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.parameter = parameter

    def make(self, name: str, shape: Shape, dtype: str | None = None, device: Device | None = None) -> ShapeTensor:
        """Return a new tensor beside this one, of this one's dtype and device unless others are given."""
        spec = TensorSpec(shape, dtype or self.dtype, device or self.device)
        return new(self._storage.tape, spec, self.parameter, name)

    def like(self, dtype: str | None = None, device: Device | None = None) -> ShapeTensor:
        """`torch.zeros_like(self)`, `torch.empty_like(self)`, `self.clone()`."""
        return self.make("like", self.shape, dtype, device)

    # Operations that make a tensor of the (broadcast) shape.
    __add__ = __radd__ = add = _elementwise("add")
    __sub__ = __rsub__ = sub = _elementwise("sub")
    __mul__ = __rmul__ = mul = _elementwise("mul")
    __truediv__ = div = _quotient("div")
    __neg__ = neg = _elementwise("neg")
    __pow__ = __rpow__ = pow = _elementwise("pow")
    abs = sign = square = clone = clamp = lerp = addcmul = addcdiv = _elementwise("elementwise")
    maximum = minimum = round = tanh = exp = log = softplus = masked_fill = relu = _elementwise("elementwise")
    sqrt = rsqrt = reciprocal = sigmoid = atan2 = _quotient("root")
    __gt__ = __ge__ = __lt__ = __le__ = __ne__ = __eq__ = _elementwise("compare", "bool")  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]
    gt = ge = lt = le = ne = eq = isnan = isinf = isfinite = logical_or = logical_and = _elementwise("test", "bool")

    # Operations that make a smaller one.
    mean = sum = amax = amin = _reduction("reduce")
    all = any = _reduction("test", "bool")

    __iadd__ = __isub__ = __imul__ = __itruediv__ = _in_place

    def __rtruediv__(self, number: float) -> ShapeTensor:
        """`number / tensor` is `tensor.reciprocal() * number` (torch/_tensor.py:1091 @2.13.0)."""
        return self.reciprocal() * number

    def __bool__(self) -> bool:
        """Refuse: nobody knows the value.

        Raises:
            TypeError: always.
        """
        raise TypeError("a step rule cannot look at a tensor's value")

    def __getattr__(self, name: str) -> Callable[..., ShapeTensor]:
        """Return the operation `name_`, which changes this tensor in place."""
        if name.startswith("_") or not name.endswith("_"):
            raise AttributeError(f"ShapeTensor has no operation {name!r}")
        return partial(_unchanged, self)

    def norm(
        self, p: float = 2.0, dim: int | tuple[int, ...] | None = None, keepdim: bool = False, dtype: str | None = None
    ) -> ShapeTensor:
        """`torch.norm`, `torch.linalg.vector_norm`."""
        del p
        return self.make("norm", _reduced(self.shape, dim, keepdim), dtype)

    def item(self) -> float:
        """Return a number that stands for any."""
        return 1.0

    def to(self, dtype: str | None = None, device: Device | None = None, *, copy: bool = False) -> ShapeTensor:
        """Return the tensor itself where nothing changes, and a converted copy elsewhere."""
        if not copy and dtype in (None, self.dtype) and device in (None, self.device):
            return self
        return self.make("to", self.shape, dtype, device)

    def float(self) -> ShapeTensor:
        """`self.float()`."""
        return self.to("float32")

    def matmul(self, other: ShapeTensor) -> ShapeTensor:
        """`self @ other`, of matrices or batches of them."""
        *batch, rows, inner = self.shape
        assert other.shape[-2] == inner, f"{self.shape} @ {other.shape}"
        return self.make("matmul", (*batch, rows, other.shape[-1]), _promote(self, other))

    __matmul__ = mm = bmm = matmul

    def dot(self, _: ShapeTensor) -> ShapeTensor:
        """`torch.dot(self, other)`."""
        return self.make("dot", ())

    # Views share the storage.
    def view(self, *shape: int) -> ShapeTensor:
        """`self.view(*shape)`, and `self.reshape(*shape)` of a contiguous tensor; one size may be -1."""
        known = 1
        for size in shape:
            known *= size if size != -1 else 1
        numel = TensorSpec(self.shape, self.dtype).numel
        return self._see(tuple(numel // known if size == -1 else size for size in shape))

    reshape = view

    def detach(self) -> ShapeTensor:
        """`self.detach()`, `self.data`."""
        return self._see(self.shape)

    def t(self) -> ShapeTensor:
        """Swap the last two dimensions: `.t()`, `.T` of a matrix, `.mT`, `.transpose(-2, -1)`."""
        *batch, rows, columns = self.shape
        return self._see((*batch, columns, rows))

    def unsqueeze(self, dim: int) -> ShapeTensor:
        """Insert a dimension of size 1."""
        at = dim if dim >= 0 else dim + len(self.shape) + 1
        return self._see((*self.shape[:at], 1, *self.shape[at:]))

    def squeeze(self, dim: int) -> ShapeTensor:
        """Drop a dimension of size 1."""
        at = dim % len(self.shape)
        return self._see((*self.shape[:at], *self.shape[at + 1 :])) if self.shape[at] == 1 else self

    def narrow(self, *sizes: int) -> ShapeTensor:
        """Return a part of that shape: `self[:rank, :]` and the like."""
        return self._see(sizes)

    def _see(self, shape: Shape) -> ShapeTensor:
        return ShapeTensor(self._storage, shape, self.dtype, self.device, self.parameter)

    def becomes_state(self, name: str) -> None:
        """Let the memory outlive the step, as the parameter's entry `name`."""
        storage = self._storage
        storage.mortal = False
        if storage.event.category == "temporary":
            storage.event = storage.event._replace(category="optimizer_state", name=name)
            storage.tape.events[storage.index] = storage.event

    def leaves_state(self) -> None:
        """Let the memory end with its last reference: something else takes the entry's place."""
        self._storage.mortal = True


def _unchanged(tensor: ShapeTensor, *_: Any, **__: Any) -> ShapeTensor:
    return tensor


def new(tape: Tape, spec: TensorSpec, parameter: str = "", name: str = "") -> ShapeTensor:
    """Return a tensor that the step makes out of nothing: `torch.zeros(...)`, `torch.tensor(...)`."""
    storage = _Storage(tape, tape.allocate(spec, parameter, name), mortal=True)
    return ShapeTensor(storage, spec.shape, spec.dtype, spec.device, parameter)


def existing(tape: Tape, spec: TensorSpec, parameter: str, name: str) -> ShapeTensor:
    """Return a tensor from before the step, which outlives it."""
    storage = _Storage(tape, tape.existing(spec, parameter, name), mortal=False)
    return ShapeTensor(storage, spec.shape, spec.dtype, spec.device, parameter)


def weight(tape: Tape, p: ParameterSpec) -> ShapeTensor:
    """Return the parameter, or its gradient: both are there before the step and after it."""
    return existing(tape, p.tensor, p.name, "")


def variables(tape: Tape, *names: str) -> SimpleNamespace:
    """Return the variables of `step()` itself; they die in the order of `names`, which is that of the real code."""
    for name in names:
        vars(tape.variables).setdefault(name, None)
    return tape.variables


class StateTensors:
    """`optimizer.state[p]`: its tensors by name; entries of an earlier step are there from the start.

    What `Tape.create_state` has made can be read too.
    """

    def __init__(self, tape: Tape, p: ParameterSpec) -> None:
        self._tape = tape
        self.parameter = p
        self._entries = {e.name: e for e in tape.entries(p) if not e.tensor.is_python_number}
        self._tensors: dict[str, ShapeTensor] = {}

    @property
    def names(self) -> frozenset[str]:
        """Names of the entries that the parameter has, made already or not."""
        return frozenset(self._entries)

    def create(self, *names: str) -> StateTensors:
        """Make entries that are missing, all of them if none is named: `state[name] = torch.zeros_like(...)`."""
        for name in names or self._entries:
            if name in self._entries and name not in self:
                spec = self._entries[name].tensor
                self[name] = new(self._tape, spec, self.parameter.name, name)
        return self

    def __contains__(self, name: str) -> bool:
        return name in self._tensors or (name in self._entries and not self._tape.creates_state)

    def __getitem__(self, name: str) -> ShapeTensor:
        if name not in self._tensors:
            entry = self._entries[name]
            event = self._tape.existing(entry.storage or entry.tensor, self.parameter.name, name)
            storage = _Storage(self._tape, event, mortal=False)
            spec = entry.tensor
            self._tensors[name] = ShapeTensor(storage, spec.shape, spec.dtype, spec.device, self.parameter.name)
        return self._tensors[name]

    def __setitem__(self, name: str, tensor: ShapeTensor) -> None:
        tensor.becomes_state(name)
        if name in self and self[name] is not tensor:
            self[name].leaves_state()
        self._tensors[name] = tensor


def each(operation: Callable[..., ShapeTensor], *lists: Iterable[ShapeTensor]) -> tuple[ShapeTensor, ...]:
    """`torch._foreach_operation(...)`: a new tensor for each."""
    return tuple(map(operation, *lists))


def _broadcast(*operands: Any) -> Shape:
    shapes = {operand.shape for operand in operands if isinstance(operand, ShapeTensor)}
    if len(shapes) == 1:
        return shapes.pop()
    columns = zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1)
    return tuple(max(column) if 0 not in column else 0 for column in columns)[::-1]


def _promote(*operands: Any) -> str:
    """Return the dtype of an operation: a tensor with dimensions outweighs one without, and both a Python number."""
    kinds = {(t.dtype, bool(t.shape)) for t in operands if isinstance(t, ShapeTensor)}
    if len(kinds) == 1:
        dtype, _ = next(iter(kinds))
        if _kind(dtype) == 2:
            return dtype
    dtype = ""
    for group in (
        [t.dtype for t in operands if isinstance(t, ShapeTensor) and t.shape],
        [t.dtype for t in operands if isinstance(t, ShapeTensor) and not t.shape],
        ["float32" if isinstance(n, float) else "int64" for n in operands if type(n) in (int, float)],
    ):
        joined = ""
        for other in group:
            joined = _join(joined, other)
        if joined and (not dtype or _kind(joined) > _kind(dtype)):
            dtype = joined
    return dtype


def _join(one: str, other: str) -> str:
    if not one or one == other:
        return other
    if _kind(one) != _kind(other):
        return max(one, other, key=_kind)
    if {one, other} == {"float16", "bfloat16"}:
        return "float32"
    return max(one, other, key=lambda dtype: TensorSpec((), dtype).itemsize)


def _kind(dtype: str) -> int:
    return _KINDS.get(dtype, 2)


def _floating(dtype: str) -> str:
    return dtype if _kind(dtype) == 2 else "float32"


def _reduced(shape: Shape, dim: int | tuple[int, ...] | None, keepdim: bool) -> Shape:
    every = range(len(shape))
    gone = set(every) if dim is None else {d % len(shape) for d in ((dim,) if isinstance(dim, int) else dim)}
    if keepdim:
        return tuple(1 if d in gone else shape[d] for d in every)
    return tuple(shape[d] for d in every if d not in gone)
