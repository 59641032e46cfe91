"""`estimate`: from a model and a training configuration to the bytes of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from memsim import __version__
from memsim.allocator import AllocatorConfig
from memsim.built_optimizer import config_of_built, is_built_optimizer
from memsim.config import OptimizerConfig, ParameterGroup, TrainingConfig
from memsim.errors import UnknownNameError, UsageError, shown
from memsim.model import ModelSpec
from memsim.optimizers import Assignment, OptimizerRule, assign_in_loop, resolve_groups, resolve_optimizer, state_of
from memsim.optimizers.state import OptimizerState
from memsim.optimizers.step_peaks import StepPeaks
from memsim.prediction import TRAINER_GRAD_NORM
from memsim.programs import StepFinder, StepSource, checked_source, default_source
from memsim.record.training.lengths import default_seq_len
from memsim.resolve import resolve
from memsim.results import Estimate, Estimates, ModelSummary, OptimizerSummary, StaticMemory, Unmodeled
from memsim.typed import read_data
from memsim.whole_step import Step, chosen_gpu, no_step, whole_step

_OPTIMIZER_OPTIONS = ("optimizer", "optimizer_args", "optimizer_impl", "parameter_groups")


def training_config(**options: Any) -> TrainingConfig:
    """Return a `TrainingConfig` from the options of the command line and of `memsim.estimate`.

    `optimizer`, `optimizer_args`, `optimizer_impl` and `parameter_groups` make its `OptimizerConfig`; every other
    option is a field.

    Raises:
        UnknownNameError: no such option.
        UsageError: a value that the option does not take.
    """
    own = [f.name for f in fields(TrainingConfig) if f.name != "optimizer"]
    for name in options:
        if name not in own and name not in _OPTIMIZER_OPTIONS:
            known = [*own, *_OPTIMIZER_OPTIONS]
            raise UnknownNameError("option", name, known, f"Options: {', '.join(known)}.")
    rest = {name: value for name, value in options.items() if name in own}
    if "freeze" in rest:
        rest["freeze"] = _texts(rest["freeze"])
    return TrainingConfig(optimizer=_optimizer_config(options), **rest)


def _optimizer_config(options: Mapping[str, Any]) -> OptimizerConfig:
    optimizer = options.get("optimizer", OptimizerConfig())
    if isinstance(optimizer, str):
        optimizer = OptimizerConfig(name=optimizer)
    if not isinstance(optimizer, OptimizerConfig):
        raise UsageError(f"optimizer must be a name or an OptimizerConfig, not {shown(optimizer)}.")
    args, groups = options.get("optimizer_args"), options.get("parameter_groups")
    if args is not None and not isinstance(args, Mapping):
        raise UsageError(f"optimizer_args must be a mapping of arguments, not {shown(args)}.")
    if groups is not None and not isinstance(groups, (list, tuple)):
        raise UsageError(f"parameter_groups must be a list of ParameterGroup, not {shown(groups)}.")
    return replace(
        optimizer,
        args={**optimizer.args, **(args or {})},
        impl=options.get("optimizer_impl") or optimizer.impl,
        groups=(*optimizer.groups, *map(_parameter_group, groups or ())),
    )


def _parameter_group(group: Any) -> ParameterGroup:
    """Return a group as it is, or from the keys that a configuration file gives it."""
    if isinstance(group, ParameterGroup):
        return group
    unknown = set(group) - {f.name for f in fields(ParameterGroup)} if isinstance(group, Mapping) else ()
    if unknown:
        raise UnknownNameError("key of a parameter group", str(min(unknown)), [f.name for f in fields(ParameterGroup)])
    try:
        return read_data(ParameterGroup, group, "parameter group")
    except ValueError as error:
        raise UsageError(f"{error}; give patterns, optimizer and args.") from error


def _texts(value: Any) -> Any:
    """Return one text, or several in a list, as the tuple that a field holds; anything else as it is."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def estimate(
    model: object, config: TrainingConfig | None = None, *, step: StepSource | None = None, **options: Any
) -> Estimate:
    """Return the memory of one training step of `model`.

    Args:
        model: a catalog name, a hub id, a folder, a `torch.nn.Module`, a `transformers.PretrainedConfig`, or a
            `ModelSpec`.
        config: every choice at once; or give them as `options`.
        step: where forward and backward come from: `auto`, `stored`, `record` or `off`; `None` is what the environment
            says (`MEMSIM_STEP`), else `auto`.
        options: the fields of `TrainingConfig` by name, and `optimizer`, `optimizer_args`, `optimizer_impl`,
            `parameter_groups`:
            `estimate("gpt2", optimizer="adafactor", dtype="bfloat16", freeze=["transformer.wte"])`.
            `optimizer` may also be an optimizer object over the parameters of `model`, before or after its first step.

    Raises:
        ModelError: the model cannot be resolved.
        UsageError: an option that cannot be.
    """
    config = chosen_config(model, config, options)
    check_choices(config)
    with StepFinder(chosen_source(step)) as finder:
        return estimate_spec(model_spec(model, config), config, finder)


def chosen_config(model: object, config: TrainingConfig | None, options: dict[str, Any]) -> TrainingConfig:
    """Return the training that a function of memsim was given: as a whole, or as options.

    Raises:
        UsageError: both, or an option that cannot be.
    """
    if config is not None and options:
        raise UsageError("give either a TrainingConfig or options, not both.")
    if is_built_optimizer(options.get("optimizer")):
        options["optimizer"] = config_of_built(options["optimizer"], model)
    config = training_config(**options) if config is None else config
    if not isinstance(config, TrainingConfig):
        raise UsageError(f"config must be a TrainingConfig, not {shown(config)}.")
    return config


def compare(model: object, optimizers: Iterable[Any], *, step: StepSource | None = None, **options: Any) -> Estimates:
    """Return one estimate per optimizer; the model is resolved once.

    Args:
        model: as for `estimate`.
        optimizers: names, `OptimizerConfig`s or optimizer objects over the parameters of `model`.
        step: as for `estimate`.
        options: as for `estimate`.

    Raises:
        ModelError: the model cannot be resolved.
        UsageError: an option that cannot be, or no optimizer at all.
    """
    if isinstance(optimizers, str):
        optimizers = [optimizers]
    if not isinstance(optimizers, Iterable):
        raise UsageError(f"optimizers must be a list of optimizers, not {shown(optimizers)}.")
    given = [config_of_built(each, model) if is_built_optimizer(each) else each for each in optimizers]
    if not given:
        raise UsageError("optimizers is empty: name at least one, for example 'adamw_torch'.")
    return estimate_all(model, [training_config(**{**options, "optimizer": each}) for each in given], step=step)


def estimate_all(
    model: object,
    configs: Sequence[TrainingConfig],
    *,
    step: StepSource | None = None,
    progress: Callable[[str], None] | None = None,
) -> Estimates:
    """Return one estimate per configuration of the same model, task, dtype and frozen parameters.

    Args:
        model: as for `estimate`.
        configs: what differs between them is optimizer, allocator and GPU.
        step: as for `estimate`.
        progress: is called with a sentence before each wait, for the network or a recording.

    Raises:
        ModelError: the model cannot be resolved.
        UsageError: an option that cannot be.
    """
    for config in configs:
        check_choices(config)
    spec = model_spec(model, configs[0], progress)
    with StepFinder(chosen_source(step), progress) as finder:
        return Estimates(tuple(estimate_spec(spec, config, finder) for config in configs))


def check_choices(config: TrainingConfig) -> None:
    """Tell a wrong optimizer, GPU or allocator setting before the network is asked for the model, or a step recorded.

    Raises:
        UsageError: there is no such thing.
    """
    resolve_optimizer(config.optimizer.name, config.optimizer.args, config.optimizer.impl)
    resolve_groups(config.optimizer)
    chosen_gpu(config)
    AllocatorConfig.parse(config.alloc_conf)


def chosen_source(step: StepSource | None) -> StepSource:
    """Return where forward and backward come from: what was asked for, else what the environment says.

    Raises:
        UsageError: it is none of the words.
    """
    return default_source() if step is None else checked_source(step)


def model_spec(model: object, config: TrainingConfig, progress: Callable[[str], None] | None = None) -> ModelSpec:
    """Return the model that a training is about, its frozen parameters marked.

    Raises:
        ModelError: the model cannot be resolved.
        UsageError: a pattern of `freeze` covers nothing.
    """
    spec = resolve(model, task=config.task, dtype=config.dtype, num_labels=config.num_labels, progress=progress)
    return replace(spec, table=spec.table.freeze(config.freeze)) if config.freeze else spec


def resolved(config: TrainingConfig, spec: ModelSpec, args: Mapping[str, Any]) -> TrainingConfig:
    """Return the training with nothing left to the model or to defaults: task, dtype, optimizer arguments, length."""
    clips_by_itself = config.loop == "trainer" and config.max_grad_norm is None
    return replace(
        config,
        task=spec.task or config.task,
        dtype=spec.dtype,
        optimizer=replace(config.optimizer, args=args),
        seq_len=config.seq_len or _default_length(spec),
        max_grad_norm=TRAINER_GRAD_NORM if clips_by_itself else config.max_grad_norm,
    )


def _default_length(spec: ModelSpec) -> int | None:
    """Return the tokens of a sequence where the user gives none; `None` for models that read no tokens."""
    if not any(key in facts for facts in _all_facts(spec.config) for key in ("vocab_size", "n_vocab")):
        return None
    return default_seq_len(spec.config, spec.task)


def _all_facts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield config
    for value in config.values():
        if isinstance(value, Mapping):
            yield from _all_facts(value)


def estimate_spec(spec: ModelSpec, config: TrainingConfig, finder: StepFinder) -> Estimate:
    """Return the memory of one training step of a model that is resolved already.

    Raises:
        UsageError: an option that cannot be.
        ModelError: the step was to be recorded, and the model cannot be.
    """
    parts = assign_in_loop(config.optimizer, spec.table, in_trainer=config.loop == "trainer")
    optimizer = resolve_optimizer(config.optimizer.name, config.optimizer.args, config.optimizer.impl)
    state, step = state_of(parts), StepPeaks(parts)
    config = resolved(config, spec, optimizer.args)
    unknown = tuple(
        Unmodeled(what=f"temporaries of {name}.step()", where="optimizer step", reason=f"{reason}.")
        for name, reason in dict(step.unmodelled()).items()
    )
    whole = _whole_step(spec, config, parts, finder)
    return Estimate(
        memsim_version=__version__,
        model=_model_summary(spec),
        config=config,
        optimizer=OptimizerSummary(
            class_path=optimizer.rule.class_path, source=_source(optimizer.rule), ignores=optimizer.rule.ignores
        ),
        assumptions=(*spec.assumptions, *_fused_backward(parts), *(whole.assumptions if whole.whole else ())),
        unmodeled=(*whole.unmodeled, *unknown),
        static=_static(spec, parts, state),
        optimizer_step=None if unknown else step,
        optimizer_state=state,
        whole_step=whole.whole,
        fit=whole.fit,
    )


def _whole_step(spec: ModelSpec, config: TrainingConfig, parts: Assignment, finder: StepFinder) -> Step:
    """Return the whole step as far as it is known."""
    for optimizer, given in parts:
        if optimizer.gradients_live_one_at_a_time and given:
            reason = f"{optimizer.name} updates parameters inside backward, where no step of it was recorded."
            return no_step(Unmodeled(what="the peak of the step", where="static total", reason=reason))
    found = finder.find(spec, config)
    if isinstance(found, Unmodeled):
        return no_step(found)
    step = whole_step(found.sections, parts, config, found.recorded)
    return replace(step, assumptions=(*found.assumptions, *step.assumptions))


def _model_summary(spec: ModelSpec) -> ModelSummary:
    return ModelSummary(
        name=spec.name,
        source=spec.source,
        model_class=spec.model_class,
        num_parameters=spec.table.num_parameters,
        num_trainable_parameters=spec.table.num_trainable_parameters,
        num_parameter_tensors=spec.table.num_parameter_tensors,
    )


def _static(spec: ModelSpec, parts: Assignment, state: OptimizerState) -> StaticMemory:
    return StaticMemory(
        parameter_bytes=spec.table.parameter_bytes,
        buffer_bytes=spec.table.buffer_bytes,
        gradient_bytes=sum(
            p.tensor.nbytes
            for optimizer, parameters in parts
            for p in parameters
            if p.requires_grad and not optimizer.gradients_live_one_at_a_time
        ),
        optimizer_state_bytes=state.device_bytes,
        optimizer_state_num_elements=state.num_elements,
        optimizer_state_host_bytes=state.host_bytes,
    )


def _fused_backward(parts: Assignment) -> Iterable[str]:
    """Yield a sentence for every optimizer that updates parameters inside backward."""
    for optimizer, parameters in parts:
        if optimizer.gradients_live_one_at_a_time and parameters:
            largest = max(p.tensor.nbytes for p in parameters)
            yield (
                f"{optimizer.name} updates each parameter inside backward: gradients live one at a time "
                f"(the largest has {largest:,} bytes) and none is left between steps."
            )


def _source(rule: OptimizerRule) -> str:
    return f"{rule.package} {rule.version}: {rule.source}"
