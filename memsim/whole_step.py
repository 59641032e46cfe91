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
    shown, tried = simulate_where_it_fits(script, config, recorded, context_bytes=context.nbytes)
    fit = None if tried is None else _fit(gpu, context, shown, tried)
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


def simulate_where_it_fits(
    script: Script, config: TrainingConfig, recorded: Recorded, *, context_bytes: int, keep_events: bool = False
) -> tuple[Simulation, Simulation | None]:
    """Return the step on the named GPU, on one without end where it does not fit there, and the attempt that was made.

    Where no GPU is named, the step is on one without end, and there was no attempt.
    """
    tried = None
    if config.gpu is not None:
        size = chosen_gpu(config).memory_bytes
        tried = simulate_on(
            script, config, recorded, total_bytes=size, context_bytes=context_bytes, keep_events=keep_events
        )
        if tried.oom is None:
            return tried, tried
    return simulate_on(script, config, recorded, total_bytes=NO_LIMIT_BYTES, keep_events=keep_events), tried


def _fit(gpu: GPU, context: CudaContext, shown: Simulation, tried: Simulation) -> Fit:
    return Fit(
        gpu=gpu.name,
        total_bytes=gpu.memory_bytes,
        context_bytes=context.nbytes,
        needed_bytes=shown.peak.reserved_bytes + context.nbytes,
        fits=tried.oom is None,
        num_retries=tried.num_retries,
    )


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
