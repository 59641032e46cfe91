"""The watch over a training loop: hooks that tell forward, backward and optimizer step apart.

Hooks that PyTorch offers for every module and optimizer are used where there are any; `torch.autograd.backward`,
`zero_grad` and the functions that save are wrapped, because for these there are none.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from .graph import Graph
from .sightings import Sightings
from .tape import Tape

_MAX_FRAMES = 60


class Watch:
    """What memsim knows about the running loop.

    Args:
        torch: the module.
        position: the number of allocations and frees so far.
        device_type: `cuda`, `cpu`: where the memory is that is watched.
        after_step: called with the number of completed steps after each.
    """

    def __init__(
        self,
        torch: Any,
        *,
        position: Callable[[], int],
        device_type: str = "cuda",
        after_step: Callable[[int], None] | None = None,
    ) -> None:
        self.torch = torch
        self._position = position
        self._device_type = device_type
        self._after_each_step = after_step
        self._undo: list[Callable[[], None]] = []
        self.begin()

    def begin(self) -> None:
        """Forget everything seen so far; what is installed stays."""
        self.tape = Tape(self._position)
        self.sightings = Sightings(self.torch, self.tape, self._device_type)
        self.graph = Graph(self.torch, self.tape, self.sightings)
        self.num_steps = 0
        self.stepping: Any = None
        self._backward_depth = 0
        self._next_step = 1
        self._stepped_in_backward = False
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Put the hooks in place; nothing is noted before `tape.recording` is set."""
        torch = self.torch
        modules = torch.nn.modules.module
        handles = [modules.register_module_forward_pre_hook(self._before_forward)]
        try:
            handles.append(
                modules.register_module_forward_hook(self._after_forward, with_kwargs=True, always_call=True)
            )
        except TypeError:  # an older torch gives global hooks no keyword arguments
            handles.append(modules.register_module_forward_hook(self._after_forward, always_call=True))
        optimizers = importlib.import_module("torch.optim.optimizer")  # torch.optim hides the attribute
        handles.append(optimizers.register_optimizer_step_pre_hook(self._before_step))
        handles.append(optimizers.register_optimizer_step_post_hook(self._after_step))
        self._undo += [handle.remove for handle in handles]
        self._wrap_backward(torch.autograd, "backward")
        self._wrap_backward(torch.autograd, "grad")
        self.announce(torch.optim.Optimizer, "zero_grad", "zero_grad")
        self.announce(torch.nn.Module, "zero_grad", "zero_grad")
        self.announce(torch, "save", "save")

    def uninstall(self) -> None:
        """Take everything away that `install` and `announce` put in place."""
        while self._undo:
            self._undo.pop()()

    def where(self) -> dict[str, Any]:
        """Return step, phase and module of this moment."""
        modules = self.tape.modules
        path = self.sightings.path_of(modules[-1]) if modules else ""
        return {"step": self.tape.step, "phase": self.tape.phase, "module": path}

    def see_owners(self) -> None:
        """See gradients and, within an optimizer's step, its state: whose memory is held when it runs out."""
        if self.stepping is not None:
            self.sightings.optimizer(self.stepping, state=True)
        self.sightings.gradients(self.sightings.all_parameters())

    def _replace(self, owner: Any, name: str, wrapped: Any) -> None:
        original = getattr(owner, name)
        setattr(owner, name, wrapped)
        self._undo.append(lambda: setattr(owner, name, original))

    def announce(self, owner: Any, name: str, phase: str) -> None:
        """Make `owner.name` a phase of its own."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if not self.tape.recording or self.tape.modules or self._backward_depth or self.tape.phase == phase:
                return original(*args, **kwargs)
            before = self.tape.phase
            self.tape.enter(phase)
            try:
                return original(*args, **kwargs)
            finally:
                self.tape.enter("gap" if phase == "zero_grad" else before)

        self._replace(owner, name, wrapped)

    def _wrap_backward(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            tracing = self.torch._guards.TracingContext.try_get() is not None  # torch.compile differentiates on paper
            if not self.tape.recording or self._backward_depth or tracing:
                return original(*args, **kwargs)
            outputs = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
            self.graph.begin(outputs)
            self._backward_depth, self.stepping = 1, None
            path = self.sightings.path_of(self.tape.modules[-1]) if self.tape.modules else ""
            self.tape.phase = "backward"
            self.tape.mark(path)
            try:
                result = original(*args, **kwargs)
            finally:
                self._backward_depth = 0
                self.graph.end()
                self.sightings.gradients(self.sightings.all_parameters())
                self.tape.phase = "gap"
                self.tape.mark(path)
            if self._stepped_in_backward:
                self._stepped_in_backward = False
                self._end_of_step()
            return result

        self._replace(owner, name, wrapped)

    def _before_forward(self, module: Any, _args: Any) -> None:
        if self.torch.compiler.is_compiling():  # torch.compile would take the hook into its graph
            return
        modules = self.tape.modules
        if not modules and not self._backward_depth and threading.current_thread() is threading.main_thread():
            self._call_from_outside(module)
        modules.append(module)
        if self.tape.recording:
            self._now_in(self.sightings.path_of(module))

    def _call_from_outside(self, root: Any) -> None:
        self.stepping = None
        self.sightings.learn(root)
        phase = self._phase_of_call(root)
        if phase == "forward":
            self.tape.step = self._next_step
        if self.tape.recording:
            self.sightings.parameters(root)
            self.tape.enter(phase)
        else:
            self.tape.phase = phase if self._is_on_device(root) else self.tape.phase

    def _is_on_device(self, root: Any) -> bool:
        return any(parameter.device.type == self._device_type for parameter in root.parameters())

    def _phase_of_call(self, root: Any) -> str:
        if self.torch.is_grad_enabled():
            return "forward"
        phase = self.tape.phase
        if phase == "forward":
            return phase  # a model that is asked for its opinion within a training step
        if phase != "load" and not any(parameter.requires_grad for parameter in root.parameters()):
            return phase
        return "generate" if _called_by(sys._getframe(), "generate") else "evaluation"

    def _after_forward(self, module: Any, args: Any, *rest: Any) -> None:
        """Take the end of a forward; `rest` is (kwargs, output), or (output,) where it raised or torch is older."""
        if self.torch.compiler.is_compiling():
            return
        kwargs, output = rest if len(rest) == 2 else ({}, *rest)
        modules = self.tape.modules
        while modules and modules.pop() is not module:
            pass  # forward of an inner module ended in an exception
        if not self.tape.recording:
            return
        path = self.sightings.path_of(module)
        self.sightings.values("output", output, path)
        if not modules and not self._backward_depth:
            self.sightings.values("input", args, "")
            self.sightings.values("input", kwargs, "")
        self._now_in(self.sightings.path_of(modules[-1]) if modules else "")

    def _now_in(self, path: str) -> None:
        if not self._backward_depth:
            self.graph.passes(path)
            self.tape.mark(path)
        elif path:
            self.tape.mark(path)
        else:  # back from a checkpointed layer to the node that asked for it
            self.tape.mark(*self.graph.running)

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not self.tape.recording or self.stepping is not None:
            return
        self.stepping = optimizer
        self.sightings.optimizer(optimizer, state=False)
        if not self._backward_depth:
            self.tape.enter("optimizer_step")

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if optimizer is not self.stepping:
            return
        self.stepping = None
        self.sightings.optimizer(optimizer, state=True)
        self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        self.num_steps = max(self.num_steps, self._steps[optimizer])
        if self._backward_depth:  # an optimizer inside backward, one parameter at a time: the step ends with backward
            self._stepped_in_backward = True
        else:
            self._end_of_step()

    def _end_of_step(self) -> None:
        if self._after_each_step is not None:
            self._after_each_step(self.num_steps)
        self._next_step = self.num_steps + 1
        self.tape.enter("gap")


def _called_by(frame: FrameType | None, name: str) -> bool:
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return False
        if frame.f_code.co_name == name:
            return True
        frame = frame.f_back
    return False
