"""From evaluated sections to the memory of a whole step, on a GPU without end and on the one that was named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from memsim.allocator import AllocatorConfig
from memsim.config import TrainingConfig
from memsim.cuda_context import CudaContext, cuda_context
from memsim.gpus import GPU, find_gpu
from memsim.optimizers import Assignment
from memsim.optimizers.step import step_source
from memsim.results import Fit, Recorded, Unmodeled, WholeStep
from memsim.simulation import Script, Simulation, compose, replay, without_gradient
from memsim.step.section import Section, SectionName
from memsim.step.trace import TraceDevice
from memsim.units import GIB

DEFAULT_GPU = "A100"
"""The GPU whose kernels are taken where none is named."""
NO_LIMIT_BYTES = 2**20 * GIB
"""Memory of a GPU on which nothing ever fails: 1 PiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A whole step and whether it fits."""

    whole: WholeStep | None
    """Peaks, phases, holders; `None` where they are not known."""
    fit: Fit | None
    """Whether it fits on the GPU that was named."""
    assumptions: tuple[str, ...]
    """What was assumed about the GPU."""
    unmodeled: tuple[Unmodeled, ...] = ()
    """What is not in the figures."""


def no_step(why: Unmodeled) -> Step:
    """Return the step of which nothing but that is known."""
    return Step(whole=None, fit=None, assumptions=(), unmodeled=(why,))


def unmodelled_steps(parts: Assignment) -> Iterator[str]:
    """Yield why a whole step cannot be composed of forward, backward and these optimizers."""
    for optimizer, given in parts:
        if optimizer.gradients_live_one_at_a_time and given:
            yield f"{optimizer.name} updates parameters inside backward, where no step of it was recorded."
            continue
        reason = step_source(optimizer, [p for p in given if p.requires_grad]).reason if given else ""
        if reason:
            yield f"temporaries of {optimizer.name}.step() are not known: {reason}."


def chosen_gpu(config: TrainingConfig) -> GPU:
    """Return the GPU that a step runs on.

    Raises:
        UnknownNameError: there is no such GPU.
        UsageError: a memory size that no GPU has.
    """
    return find_gpu(config.gpu or DEFAULT_GPU)


def whole_step(
    sections: Mapping[SectionName, Section], parts: Assignment, config: TrainingConfig, recorded: Recorded
) -> Step:
    """Return the memory of loading, of the step that creates the state, and of a steady step.

    Args:
        sections: of a step program, evaluated at the batch size and sequence length of `config`.
        parts: every optimizer with its parameters.
        config: the loop, the GPU, the settings of the allocator.
        recorded: what the sections were recorded with.

    Raises:
        UsageError: a setting of the allocator that PyTorch does not take.
    """
    script, gpu = compose(sections, parts, config), chosen_gpu(config)
    context = cuda_context(gpu.name)
    if config.gpu is None:
        shown, fit = simulate_on(script, config, recorded, total_bytes=NO_LIMIT_BYTES), None
    else:
        shown, fit = _on_named_gpu(script, config, gpu, recorded)
    return Step(
        whole=WholeStep(
            peak=replace(shown.peak, device_bytes=shown.peak.reserved_bytes + context.nbytes),
            phases=shown.phases,
            held=shown.held,
            why=shown.why,
            recorded=recorded,
        ),
        fit=fit,
        assumptions=(*_unreached(sections, parts), *_assumptions(config, gpu, context)),
    )


def simulate_on(
    script: Script,
    config: TrainingConfig,
    recorded: Recorded,
    *,
    total_bytes: int,
    context_bytes: int = 0,
    keep_events: bool = False,
) -> Simulation:
    """Replay a script on a GPU of the kind that `config` names, with `total_bytes` of memory.

    Raises:
        UsageError: a setting of the allocator that PyTorch does not take.
    """
    device = TraceDevice(
        name=chosen_gpu(config).name,
        total_bytes=total_bytes,
        compute_capability=recorded.compute_capability,
        torch_version=recorded.torch,
    )
    settings = AllocatorConfig.parse(config.alloc_conf)
    return replay(script, device, settings, context_bytes=context_bytes, keep_events=keep_events)


def _on_named_gpu(script: Script, config: TrainingConfig, gpu: GPU, recorded: Recorded) -> tuple[Simulation, Fit]:
    """Return the step on a GPU, or on one without end where it does not fit there, and how it fits."""
    context_bytes = cuda_context(gpu.name).nbytes
    limited = simulate_on(script, config, recorded, total_bytes=gpu.memory_bytes, context_bytes=context_bytes)
    fits = limited.oom is None
    shown = limited if fits else simulate_on(script, config, recorded, total_bytes=NO_LIMIT_BYTES)
    fit = Fit(
        gpu=gpu.name,
        total_bytes=gpu.memory_bytes,
        context_bytes=context_bytes,
        needed_bytes=shown.peak.reserved_bytes + context_bytes,
        fits=fits,
        num_retries=limited.num_retries,
    )
    return shown, fit


def _unreached(sections: Mapping[SectionName, Section], parts: Assignment) -> Iterator[str]:
    names = without_gradient(sections, parts)
    if names:
        few = ", ".join(names[:2]) + (", ..." if len(names) > 2 else "")
        yield (
            f"The loss does not reach {len(names)} trained parameter{'s' if len(names) > 1 else ''} ({few}): the step "
            "has no gradient and no state of them, which the static figures count."
        )


def _assumptions(config: TrainingConfig, gpu: GPU, context: CudaContext) -> list[str]:
    found = [context.sentence, *(f"{text[:1].upper()}{text[1:]}." for text in gpu.assumptions)]
    if config.gpu is None:
        found.append(
            f"No GPU was named: kernels are those of an {gpu.name} (compute capability {gpu.capability_text})."
        )
    return found
