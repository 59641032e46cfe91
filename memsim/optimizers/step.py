"""What `step()` allocates and frees, as a list of events in true order.

A step rule mirrors the optimizer's own Python line by line: a `Frame` holds its local variables, and a tensor lives as
long as Python keeps a reference to it. So the denominator of one parameter is still alive while the next one's is
computed, as it is in PyTorch. What a kernel allocates inside itself (the scratch of a reduction, cuBLAS's workspace) is
not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

from memsim.errors import MemsimError
from memsim.model import ParameterSpec
from memsim.optimizers.registry import ResolvedOptimizer
from memsim.optimizers.rules import Arguments, Entries, StateEntry
from memsim.optimizers.state import OptimizerState, derive_state
from memsim.optimizers.step_event import StepCategory, StepEvent, peak_bytes
from memsim.tensors import Device, TensorSpec

StepRule = Callable[["Tape", Sequence[ParameterSpec], Arguments], None]
"""Writes one group's step on a tape: the parameters that have a gradient, and the complete arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSource:
    """A step rule, or why there is none."""

    rule: StepRule | None
    """Writes the events."""
    source: str = ""
    """File and lines of the code that it mirrors."""
    refused_dtypes: Mapping[str, str] = field(default_factory=dict)
    """Why the step is not modelled with weights of a dtype."""
    reason: str = ""
    """Why the step is not modelled."""
    ignores: str = ""
    """What the rule leaves out or takes for granted, in a sentence."""


class UnmodelledStepError(MemsimError):
    """The temporaries of this optimizer's `step()` are not known; its state may well be."""


_STEPS: dict[str, Callable[[Arguments], StepSource]] = {}


def register_step(
    *class_paths: str,
    source: str,
    refuses: Callable[[Arguments], str] = lambda _: "",
    refused_dtypes: Mapping[str, str] | None = None,
    ignores: str = "",
) -> Callable[[StepRule], StepRule]:
    """Register the decorated function as the step rule of one or more classes.

    `refuses` returns why the step is not modelled with the given arguments, and an empty string where it is;
    `refused_dtypes` says why it is not with weights of a dtype.
    """

    def decorate(rule: StepRule) -> StepRule:
        known = StepSource(rule=rule, source=source, refused_dtypes=refused_dtypes or {}, ignores=ignores)

        def choose(args: Arguments) -> StepSource:
            reason = refuses(args)
            return StepSource(rule=None, reason=reason) if reason else known

        for class_path in class_paths:
            assert class_path not in _STEPS, f"the step of {class_path} is registered twice"
            _STEPS[class_path] = choose
        return rule

    return decorate


def register_unmodelled_step(class_path: str, reason: str) -> None:
    """Say why the step of a class is not modelled."""
    assert class_path not in _STEPS, f"the step of {class_path} is registered twice"
    _STEPS[class_path] = lambda _: StepSource(rule=None, reason=reason)


def step_source(optimizer: ResolvedOptimizer, parameters: Sequence[ParameterSpec] = ()) -> StepSource:
    """Return where the optimizer's step rule comes from; `reason` says why where there is none for these parameters."""
    path = optimizer.rule.class_path
    if optimizer.args.get("differentiable"):
        return StepSource(rule=None, reason="with differentiable=True autograd keeps what it needs of the step")
    if path not in _STEPS:
        return StepSource(rule=None, reason=f"the temporaries of {path}.step() have not been read yet")
    known = _STEPS[path](optimizer.args)
    refused = {known.refused_dtypes.get(p.tensor.dtype, "") for p in parameters} - {""} if known.refused_dtypes else ()
    return StepSource(rule=None, reason=min(refused)) if refused else known


class Tape:
    """The events of one step, while they are written.

    Args:
        first_step: whether the state does not exist yet.
        on_cpu: whether the parameters are on the CPU, where PyTorch takes other branches here and there.
    """

    def __init__(self, *, first_step: bool = False, on_cpu: bool = False) -> None:
        self.events: list[StepEvent] = []
        self.first_step = first_step
        self.on_cpu = on_cpu
        self._state: OptimizerState | None = None
        self._entries: dict[str, Entries] = {}
        self._next_key = 0
        self._references: dict[int, int] = {}
        self.shared: set[str] = set()
        """Keys of the shared storages (`StateEntry.shared`) that this optimizer's step has made already."""
        self.variables = SimpleNamespace()
        """Variables of `step()` itself that hold a `ShapeTensor`: they outlive each group, and die with the step."""
        self._later: list[tuple[int, Callable[[], None]]] = []
        self._locals = Frame(self)

    def begin_group(self, state: OptimizerState) -> None:
        """Turn to the next parameter group, whose state (for the entries that this step creates) is given."""
        before, self._state = self._state, state
        self._entries = {parameter.name: entries for parameter, entries in state.by_parameter}
        if before is not None and before.optimizer.rule is not state.optimizer.rule:
            self.end_step()

    def end_step(self) -> None:
        """Return from the `step()` of the optimizer whose groups have come so far."""
        later, self._later = self._later, []
        for _, run in sorted(later, key=lambda item: item[0]):
            run()
        del later
        self._locals.close()
        self._locals = Frame(self)
        self.shared = set()
        self.variables = SimpleNamespace()

    def after_groups(self, loop: int, run: Callable[[], None]) -> None:
        """Let `run` write what a later loop over the groups does with the current one, after all groups have come.

        Args:
            loop: which of the later loops; they run in this order, each through the groups in theirs.
            run: reads the state from `StateTensors` that exist already.
        """
        self._later.append((loop, run))

    def replay(self, events: Iterable[StepEvent]) -> None:
        """Write events of another tape into this one; temporaries that they do not free end here."""
        held: dict[int, StepEvent] = {}
        for event in events:
            if event.action == "alloc":
                held[event.key] = self.allocate(event.tensor, event.parameter, event.name, event.category)
            else:
                self.release(held.pop(event.key))
        for event in held.values():
            if event.category == "temporary":
                self.release(event)

    @contextmanager
    def step_frame(self) -> Iterator[Frame]:
        """Reopen the variables of `step()` itself, for code that loops over the groups: they outlive each of them."""
        yield self._locals

    @property
    def creates_state(self) -> bool:
        """Whether this step makes the state of the current group: it is the first one, and no constructor did."""
        return self.first_step and self._state is not None and self._state.optimizer.rule.created == "first step"

    def entries(self, of: ParameterSpec) -> Entries:
        """Return the state entries of a parameter of the current group."""
        return self._entries[of.name]

    def create_state(self, of: ParameterSpec | None = None, name: str | None = None) -> None:
        """Allocate every state entry if this is the first step and no constructor did.

        Args:
            of: only the entries of this parameter.
            name: only the entry of this name.
        """
        if self._state is None or not self.creates_state:
            return
        each = self._state.by_parameter if of is None else ((of, self._entries[of.name]),)
        for parameter, entries in each:
            for entry in entries:
                if name in (None, entry.name):
                    self._create(parameter.name, entry)

    def _create(self, parameter: str, entry: StateEntry) -> None:
        if entry.tensor.is_python_number or entry.shared in self.shared:
            return
        if entry.shared is not None:
            self.shared.add(entry.shared)
        self.allocate(entry.storage or entry.tensor, parameter, entry.name, "optimizer_state")

    def allocate(
        self, tensor: TensorSpec, parameter: str, name: str, category: StepCategory = "temporary"
    ) -> StepEvent:
        """Write one allocation; whoever asked for it holds the only reference."""
        event = StepEvent("alloc", self._next_key, tensor, category, parameter, name)
        self._references[self._next_key] = 1
        self._next_key += 1
        self.events.append(event)
        return event

    def existing(self, tensor: TensorSpec, parameter: str, name: str) -> StepEvent:
        """Return a state entry from before this step: nothing is written until the step lets go of it."""
        event = StepEvent("alloc", self._next_key, tensor, "optimizer_state", parameter, name)
        self._references[self._next_key] = 1
        self._next_key += 1
        return event

    def keep(self, event: StepEvent) -> None:
        """Count one more reference to an allocation."""
        self._references[event.key] += 1

    def release(self, event: StepEvent) -> None:
        """Drop one reference; the last one frees."""
        self._references[event.key] -= 1
        if not self._references[event.key]:
            self.events.append(StepEvent("free", *event[1:]))

    @contextmanager
    def frame(self, *names: str) -> Iterator[Frame]:
        """Open a function's local variables, all of which die at its end.

        Args:
            names: the order in which they die, where it is not that of their first assignment here: CPython's is that
                of their first mention in the code, and variables that an inner function uses come last.
        """
        frame = Frame(self, names)
        yield frame
        frame.close()


Source = ParameterSpec | TensorSpec
"""What a new tensor looks like: like a parameter, or as given."""


def scalar(dtype: str = "float32", device: Device = "device") -> TensorSpec:
    """Return a tensor of no dimensions."""
    return TensorSpec((), dtype, device)


def by_dtype(parameters: Sequence[ParameterSpec]) -> Iterator[list[ParameterSpec]]:
    """Yield the parameters of each dtype, the dtype that comes up last first.

    `_group_tensors_by_device_and_dtype` (torch/utils/_foreach_utils.py:44 @2.13.0) walks a C++ `unordered_map`, which
    puts a new key in front: exact for two dtypes, an assumption for more.
    """
    groups: dict[str, list[ParameterSpec]] = {}
    for p in parameters:
        groups.setdefault(p.tensor.dtype, []).append(p)
    yield from reversed(groups.values())


class Frame:
    """The local variables of one function: names that hold tensors, or lists of tensors, made during the step."""

    def __init__(self, tape: Tape, names: Iterable[str] = ()) -> None:
        self._tape = tape
        self._variables: dict[str, tuple[StepEvent, ...]] = dict.fromkeys(names, ())

    def new(self, name: str, *sources: Source, parameter: str = "") -> None:
        """`name = operation(...)`, or `name = x.first().second()`: make tensors, then let go of what the name held.

        In a chain each operation makes a tensor, and its operand dies after it.
        """
        self._bind(name, (self.open(*sources, parameter=parameter, name=name),))

    def new_each(self, name: str, sources: Iterable[Source]) -> None:
        """`name = torch._foreach_operation(...)`, or a comprehension: a list of new tensors."""
        self._bind(name, tuple(self.open(source, name=name) for source in sources))

    def open(self, *sources: Source, parameter: str = "", name: str = "") -> StepEvent:
        """Make a tensor (or a chain of them) that no name holds, inside an expression; `end` it where Python does."""
        previous = None
        for source in sources:
            if isinstance(source, ParameterSpec):
                made = self._tape.allocate(source.tensor, source.name, name)
            else:
                made = self._tape.allocate(source, parameter, name)
            if previous is not None:
                self._tape.release(previous)
            previous = made
        assert previous is not None, "an expression makes at least one tensor"
        return previous

    def end(self, *made: StepEvent) -> None:
        """Let go of tensors that `open` made, in the given order."""
        for event in made:
            self._tape.release(event)

    def brief(self, *sources: Source, parameter: str = "", name: str = "") -> None:
        """Make a tensor (or a chain of them) that dies in the same expression."""
        self.end(self.open(*sources, parameter=parameter, name=name))

    def append(self, name: str, made: StepEvent) -> None:
        """`name.append(made)`: one more tensor in a list; `made` comes from `open`."""
        self._variables[name] = (*self._variables.get(name, ()), made)

    def alias(self, name: str, other: str, index: int | None = None) -> None:
        """`name = other`, or `name = other[index]`: one more reference to the same tensors."""
        held = self._variables.get(other, ())
        self._bind(name, self._kept(held if index is None else (held[index],)))

    def forget(self, *names: str) -> None:
        """`del name`, or `name = something that this step did not make`."""
        for name in names:
            self._bind(name, ())

    def result(self, name: str) -> tuple[StepEvent, ...]:
        """`return name`: what the name holds, kept alive past the function's end; the caller's frame receives it."""
        return self._kept(self._variables.get(name, ()))

    def receive(self, name: str, *returned: StepEvent) -> None:
        """`name = function(...)`: bind what a function returned, or what `open` made."""
        self._bind(name, returned)

    def close(self) -> None:
        """Leave the function."""
        self.forget(*self._variables)

    def _kept(self, held: tuple[StepEvent, ...]) -> tuple[StepEvent, ...]:
        for event in held:
            self._tape.keep(event)
        return held

    def _bind(self, name: str, held: tuple[StepEvent, ...]) -> None:
        before = self._variables.get(name, ())
        self._variables[name] = held
        # CPython empties lists and tuples from their end.
        for event in reversed(before):
            self._tape.release(event)


Group = tuple[ResolvedOptimizer, Sequence[ParameterSpec]]
"""One parameter group: what updates it, and its parameters."""


def step_events(
    optimizer: ResolvedOptimizer,
    parameters: Sequence[ParameterSpec],
    *,
    first_step: bool,
    on_cpu: bool = False,
) -> list[StepEvent]:
    """Return every allocation and free of one `step()` over one group of parameters, in order.

    Args:
        optimizer: the optimizer and its arguments.
        parameters: those that have a gradient, in the group's order.
        first_step: whether the state is created (its entries are events of category `optimizer_state`).
        on_cpu: what a CPU would do instead of an accelerator; PyTorch then prefers the for-loop form.

    Raises:
        UnmodelledStepError: the step of this optimizer is not known; `step_source` gives the reason without raising.
    """
    return group_step_events([(optimizer, parameters)], first_step=first_step, on_cpu=on_cpu)


def group_step_events(groups: Iterable[Group], *, first_step: bool, on_cpu: bool = False) -> list[StepEvent]:
    """Return the events of one `step()` over several groups, which PyTorch updates one after the other.

    Groups of another class than the one before belong to another optimizer, whose `step()` follows.

    Raises:
        UnmodelledStepError: the step of one of them is not known.
    """
    tape = Tape(first_step=first_step, on_cpu=on_cpu)
    for optimizer, parameters in groups:
        known = step_source(optimizer, parameters)
        if known.rule is None:
            raise UnmodelledStepError(f"{optimizer.name}: what step() allocates is not modelled: {known.reason}.")
        tape.begin_group(derive_state(optimizer, parameters))
        known.rule(tape, parameters, optimizer.args)
    tape.end_step()
    return tape.events


def step_peak_bytes(optimizer: ResolvedOptimizer, parameters: Sequence[ParameterSpec], *, first_step: bool) -> int:
    """Return the most bytes that `step()` holds at once on the device above what it finds there.

    Raises:
        UnmodelledStepError: the step of this optimizer is not known.
    """
    return peak_bytes(step_events(optimizer, parameters, first_step=first_step))
