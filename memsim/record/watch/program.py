"""The watch over one process: hooks that tell forward, backward and optimizer step apart, and the end of the run.

Hooks that PyTorch offers for every module and optimizer are used where there are any; `torch.autograd.backward`,
`zero_grad` and the functions that save are wrapped, because for these there are none.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import multiprocessing
import os
import sys
import threading
import weakref
from pathlib import Path
from types import FrameType
from typing import Any

from .generation import Generation
from .graph import Graph
from .sightings import Sightings
from .tape import Tape
from .values import Values
from .writing import call_stack, write_recording

STOPPED = "stopped"
FINISHED = "finished"
_MAX_FRAMES = 60

_current: list[Watch] = []


def current() -> Watch | None:
    """Return the watch over this process, if torch was imported."""
    return _current[0] if _current else None


class Watch:
    """What memsim knows about the running program."""

    def __init__(self, torch: Any, *, folder: Path, max_steps: int) -> None:
        self.torch = torch
        self.folder = folder
        self.max_steps = max_steps
        self.ooms: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.generation = Generation(self.notes)
        self._pid = 0
        self._ended = False
        self._backward_depth = 0
        self._stepping: Any = None
        self._next_step = 1
        self._num_steps = 0
        self._stepped_in_backward = False
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._begin()

    def _begin(self) -> None:
        self.tape = Tape(self.torch)
        self.sightings = Sightings(self.torch, self.tape)
        self.graph = Graph(self.torch, self.tape, self.sightings)

    def install(self) -> None:
        """Put the hooks in place; CUDA stays as untouched as it is."""
        torch = self.torch
        _current[:] = [self]
        torch.cuda._lazy_call(self._cuda_is_used)
        modules = torch.nn.modules.module
        modules.register_module_forward_pre_hook(self._before_forward)
        try:
            modules.register_module_forward_hook(self._after_forward, with_kwargs=True, always_call=True)
        except TypeError:  # an older torch gives global hooks no keyword arguments
            modules.register_module_forward_hook(self._after_forward, always_call=True)
        optimizers = importlib.import_module("torch.optim.optimizer")  # torch.optim hides the attribute
        optimizers.register_optimizer_step_pre_hook(self._before_step)
        optimizers.register_optimizer_step_post_hook(self._after_step)
        self._wrap_backward(torch.autograd, "backward")
        self._wrap_backward(torch.autograd, "grad")
        self.announce(torch.optim.Optimizer, "zero_grad", "zero_grad")
        self.announce(torch.nn.Module, "zero_grad", "zero_grad")
        self.announce(torch, "save", "save")
        os.register_at_fork(after_in_child=self._forked)

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

        setattr(owner, name, wrapped)

    def _wrap_backward(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            tracing = self.torch._guards.TracingContext.try_get() is not None  # torch.compile differentiates on paper
            if not self.tape.recording or self._backward_depth or tracing:
                return original(*args, **kwargs)
            outputs = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
            self.graph.begin(outputs)
            self._backward_depth, self._stepping = 1, None
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

        setattr(owner, name, wrapped)

    def _forked(self) -> None:
        """A fork is another process: it has no GPU until it starts CUDA itself."""
        if self.tape.recording:
            self._ended = True  # torch refuses CUDA in a fork of a process that uses it
        else:
            self._begin()

    def _cuda_is_used(self) -> None:
        torch = self.torch
        self._pid = os.getpid()
        (self.folder / f"used-{self._pid}").touch()
        record = torch.cuda.memory._record_memory_history
        record("all", context="alloc", stacks="python")
        torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)
        torch.cuda.memory._record_memory_history = self._history_is_taken
        self.values = Values(torch)  # it computes as long as it is held
        if not self.values.num_operators:
            self.notes.append("With torch before 2.9, token ids and masks had the value 0 like everything else.")
        self.tape.recording = True
        if multiprocessing.parent_process() is None:
            atexit.register(self._exit)
        else:  # such a process leaves by os._exit, past atexit
            from multiprocessing.util import Finalize

            Finalize(None, self._exit, exitpriority=100)

    def _history_is_taken(self, *_args: Any, **_kwargs: Any) -> None:
        self.notes.append("The program's own calls of _record_memory_history were left out: memsim records.")

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
        self._stepping = None
        self.sightings.learn(root)
        phase = self._phase_of_call(root)
        if phase == "forward":
            self.tape.step = self._next_step
        if self.tape.recording:
            self.sightings.parameters(root)
            self.tape.enter(phase)
        else:
            self.tape.phase = phase if root_is_on_cuda(root) else self.tape.phase

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
        if not self.tape.recording or self._stepping is not None:
            return
        self._stepping = optimizer
        self.sightings.optimizer(optimizer, state=False)
        if not self._backward_depth:
            self.tape.enter("optimizer_step")

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if optimizer is not self._stepping:
            return
        self._stepping = None
        self.sightings.optimizer(optimizer, state=True)
        self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        self._num_steps = max(self._num_steps, self._steps[optimizer])
        if self._backward_depth:  # an optimizer inside backward, one parameter at a time: the step ends with backward
            self._stepped_in_backward = True
        else:
            self._end_of_step()

    def _end_of_step(self) -> None:
        done = self._num_steps
        if self.max_steps and done >= self.max_steps:
            self._stop(done)
        self._next_step = done + 1
        self.tape.enter("gap")

    def _stop(self, num_steps: int) -> None:
        """End the program as `sys.exit(0)` in the training loop would: finally, with and atexit run."""
        self._write(STOPPED, num_steps)
        note = self.folder / f"stopping-{os.getpid()}"
        note.touch()
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(0)
        # Else memsim, which sees the note, interrupts the main thread from outside.

    def _out_of_memory(self, device: int, asked: int, total: int, free: int) -> None:
        if device != 0:
            return
        if self._stepping is not None:
            self.sightings.optimizer(self._stepping, state=True)
        self.sightings.gradients(self.sightings.all_parameters())
        modules = self.tape.modules
        statistics = self.torch._C._cuda_memoryStats(0)
        place = call_stack(sys._getframe(1))
        self.ooms.append(
            {
                "position": self.tape.position(),
                "asked_bytes": asked,
                "total_bytes": total,
                "free_bytes": min(free, max(total - statistics["reserved_bytes"]["all"]["current"], 0)),
                "allocated_bytes": statistics["allocated_bytes"]["all"]["current"],
                "reserved_bytes": statistics["reserved_bytes"]["all"]["current"],
                "step": self.tape.step,
                "phase": self.tape.phase,
                "module": self.sightings.path_of(modules[-1]) if modules else "",
                "line": place.line,
                "library_line": place.library_line,
            }
        )

    def _exit(self) -> None:
        if self.tape.recording and os.getpid() == self._pid:
            self._write(FINISHED, self._num_steps)

    def _write(self, ended: str, num_steps: int) -> None:
        if self._ended:
            return
        self._ended = True
        self.sightings.gradients(self.sightings.all_parameters())
        self.sightings.living()
        write_recording(self, ended=ended, num_steps=num_steps)


def root_is_on_cuda(root: Any) -> bool:
    """Return whether a module has a parameter on a CUDA device."""
    return any(parameter.device.type == "cuda" for parameter in root.parameters())


def _called_by(frame: FrameType | None, name: str) -> bool:
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return False
        if frame.f_code.co_name == name:
            return True
        frame = frame.f_back
    return False
