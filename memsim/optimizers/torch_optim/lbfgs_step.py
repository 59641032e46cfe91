"""The temporaries of `torch.optim.LBFGS.step()`: torch/optim/lbfgs.py:326-526 @2.13.0.

What the closure (forward and backward) allocates between the lines is not here. Nothing stops an inner iteration early:
every one learns a pair, and no tolerance is reached. `N` is the number of elements of all parameters together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from memsim.model import ParameterSpec
from memsim.optimizers.rules import Arguments
from memsim.optimizers.step import Frame, Tape, register_step, scalar
from memsim.optimizers.step_event import StepEvent
from memsim.optimizers.torch_optim.lbfgs import num_iterations
from memsim.tensors import TensorSpec

_BOOL = scalar("bool")


@dataclass(slots=True)
class _Memory:
    """`optimizer.state[params[0]]`: what one step leaves to the next."""

    flat: TensorSpec
    """A vector of N elements."""
    one: TensorSpec
    """A scalar of the same dtype."""
    history_size: int
    iterations: int = 0
    """Inner iterations so far, in all steps."""
    old_dirs: deque[StepEvent] = field(default_factory=deque)
    old_stps: deque[StepEvent] = field(default_factory=deque)
    ro: deque[StepEvent] = field(default_factory=deque)
    al: list[StepEvent | None] = field(default_factory=list)


_LOCALS = ("flat_grad", "opt_cond", "d", "t", "H_diag", "prev_flat_grad", "y", "s", "ys", "q", "r", "be_i", "gtd")


def _line_search(args: Arguments) -> str:
    return "a line search evaluates as often as the data ask for" if args["line_search_fn"] is not None else ""


@register_step("torch.optim.LBFGS", source="torch/optim/lbfgs.py:326-526", refuses=_line_search)
def lbfgs_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """Without a line search; a later step is one that finds as many iterations behind it as `num_iterations` says."""
    if not parameters:
        return
    dtype = parameters[0].tensor.dtype
    numel = sum(p.tensor.numel for p in parameters)
    memory = _Memory(TensorSpec((numel,), dtype), scalar(dtype), args["history_size"])
    # The dictionary of the state outlives the step, so this frame is never closed.
    state = Frame(tape)
    with tape.frame(*_LOCALS) as local:
        if not tape.first_step:
            _restore(tape, state, memory, parameters[0].name, num_iterations(args))
        for name in ("d", "H_diag", "prev_flat_grad"):
            local.receive(name, *state.result(name))
        local.new("flat_grad", memory.flat)
        _compare_largest(local, memory, "opt_cond")
        max_iter, max_eval = args["max_iter"], args["max_eval"]
        limit = max_iter * 5 // 4 if max_eval is None else max_eval
        last = min(max_iter, max(1, limit - 1))
        for number in range(1, last + 1):
            _iterate(tape, local, memory)
            if number != max_iter:
                local.new("flat_grad", memory.flat)  # the gradients after the closure
                _compare_largest(local, memory, "opt_cond")
            if number != last:
                _compare_update(local, memory)
        for name in ("d", "H_diag", "prev_flat_grad", "t"):
            state.receive(name, *local.result(name))


def _restore(tape: Tape, state: Frame, memory: _Memory, parameter: str, iterations: int) -> None:
    def existing(tensor: TensorSpec, name: str) -> StepEvent:
        return tape.existing(tensor, parameter, name)

    pairs = min(iterations - 1, memory.history_size)
    memory.iterations = iterations
    memory.old_dirs = deque(existing(memory.flat, f"old_dirs[{i}]") for i in range(pairs))
    memory.old_stps = deque(existing(memory.flat, f"old_stps[{i}]") for i in range(pairs))
    memory.ro = deque(existing(memory.one, f"ro[{i}]") for i in range(pairs))
    memory.al = [existing(memory.one, f"al[{i}]") for i in range(pairs)]
    state.receive("d", existing(memory.flat, "d"))
    state.receive("prev_flat_grad", existing(memory.flat, "prev_flat_grad"))
    if pairs:
        state.receive("H_diag", existing(memory.one, "H_diag"))
    else:
        state.receive("t", existing(memory.one, "t"))


def _iterate(tape: Tape, local: Frame, memory: _Memory) -> None:
    """One turn of the loop, up to the new parameters."""
    memory.iterations += 1
    if memory.iterations == 1:
        local.new("d", memory.flat)  # flat_grad.neg()
        local.new("prev_flat_grad", memory.flat)
        _first_step_length(local, memory)
    else:
        _learn_pair(tape, local, memory)
        _direction(tape, local, memory)
        local.forget("t")  # t = lr
    local.new("gtd", memory.one)
    local.brief(_BOOL)  # gtd > -tolerance_change


def _first_step_length(local: Frame, memory: _Memory) -> None:
    """`t = min(1.0, 1.0 / flat_grad.abs().sum()) * lr`."""
    total = local.open(memory.flat, memory.one)
    quotient = local.open(memory.one, memory.one)
    local.end(total)
    local.brief(_BOOL)
    length = local.open(memory.one, name="t")
    local.end(quotient)
    local.receive("t", length)


def _learn_pair(tape: Tape, local: Frame, memory: _Memory) -> None:
    """`y` and `s` join the history, and the oldest pair leaves it when it is full."""
    local.new("y", memory.flat)
    local.new("s", memory.flat)
    local.new("ys", memory.one)
    local.brief(_BOOL)  # ys > 1e-10
    if len(memory.old_dirs) == memory.history_size:
        for queue in (memory.old_dirs, memory.old_stps, memory.ro):
            tape.release(queue.popleft())
    memory.old_dirs.extend(local.result("y"))
    memory.old_stps.extend(local.result("s"))
    memory.ro.append(local.open(memory.one, memory.one, name="ro"))  # 1.0 / ys
    square = local.open(memory.one)
    h_diag = local.open(memory.one, name="H_diag")
    local.end(square)
    local.receive("H_diag", h_diag)


def _direction(tape: Tape, local: Frame, memory: _Memory) -> None:
    """The two loops over the history."""
    pairs = len(memory.old_dirs)
    memory.al += [None] * (pairs - len(memory.al))
    local.new("q", memory.flat)  # flat_grad.neg()
    for i in range(pairs - 1, -1, -1):
        before, memory.al[i] = memory.al[i], local.open(memory.one, memory.one, name=f"al[{i}]")
        if before is not None:
            tape.release(before)
        local.brief(memory.one)  # -al[i]
    local.new("d", memory.flat)  # d = r = torch.mul(q, H_diag)
    local.alias("r", "d")
    for _ in range(pairs):
        local.new("be_i", memory.one, memory.one)
        local.brief(memory.one)  # al[i] - be_i


def _compare_largest(local: Frame, memory: _Memory, name: str) -> None:
    """`name = flat_grad.abs().max() <= tolerance`."""
    local.new(name, memory.flat, memory.one, _BOOL)


def _compare_update(local: Frame, memory: _Memory) -> None:
    """`d.mul(t).abs().max() <= tolerance_change`."""
    local.brief(memory.flat, memory.flat, memory.one, _BOOL)
