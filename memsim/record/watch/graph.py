"""The autograd graph: what each node keeps for backward, and which node runs at each moment of it."""

from __future__ import annotations

import functools
import sys
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from .sightings import Sightings
from .tape import Tape

_NO_SEQUENCE = sys.maxsize
"""Nodes that belong to no op (AccumulateGrad) have a sequence number beyond it."""


class Graph:
    """Tells for every node of backward in which module its op was."""

    def __init__(self, torch: Any, tape: Tape, sightings: Sightings) -> None:
        self._next_number = torch._C._autograd._get_sequence_nr
        self._tape = tape
        self._sightings = sightings
        self._numbers: list[int] = []
        self._modules: list[str] = []
        self._handles: list[Any] = []
        self.running = ("", "")

    def passes(self, module: str) -> None:
        """Note that ops from now on are those of `module`."""
        number = self._next_number()
        if self._numbers and self._numbers[-1] == number:
            self._modules[-1] = module
        else:
            self._numbers.append(number)
            self._modules.append(module)

    def begin(self, outputs: Any) -> None:
        """See what the graph of `outputs` keeps, and follow its nodes through the backward that comes."""
        for node in self._nodes(outputs):
            self._sightings.saved_by(node)
            place = (self._module_of(node), node.name())
            self._handles.append(node.register_prehook(functools.partial(self._runs, place)))

    def end(self) -> None:
        """Let the nodes go."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.running = ("", "")
        if len(self._numbers) > 1:  # the next forward has higher numbers
            del self._numbers[:-1], self._modules[:-1]

    def _runs(self, place: tuple[str, str], gradients: Any) -> None:
        self.running = place
        self._tape.mark(*place)
        self._sightings.passed(gradients)

    def _module_of(self, node: Any) -> str:
        variable = getattr(node, "variable", None)
        if variable is not None:
            return self._sightings.owner_of(variable)
        number = node._sequence_nr()
        place = bisect_right(self._numbers, number) - 1
        return self._modules[place] if place >= 0 and number < _NO_SEQUENCE else ""

    def _nodes(self, outputs: Any) -> Iterator[Any]:
        todo = [tensor.grad_fn for tensor in self._sightings.tensors_of(outputs)]
        known = set()
        while todo:
            node = todo.pop()
            if node is None or node in known:
                continue
            known.add(node)
            yield node
            todo.extend(following for following, _ in node.next_functions)
