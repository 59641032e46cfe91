"""`estimate`: from a model and a training configuration to the bytes of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from memsim import __version__
from memsim.built_optimizer import config_of_built, is_built_optimizer
from memsim.config import OptimizerConfig, ParameterGroup, TrainingConfig
from memsim.errors import UnknownNameError, UsageError, shown
from memsim.model import ModelSpec
from memsim.optimizers import Assignment, OptimizerRule, assign, resolve_groups, resolve_optimizer, state_of
from memsim.optimizers.step_peaks import StepPeaks
from memsim.record.training.lengths import default_seq_len
from memsim.resolve import resolve
from memsim.results import Estimate, Estimates, ModelSummary, OptimizerSummary, StaticMemory, Unmodeled
from memsim.typed import read_data

_OPTIMIZER_OPTIONS = ("optimizer", "optimizer_args", "optimizer_impl", "parameter_groups")

_NOT_RECORDED = Unmodeled(
    what="activations, workspaces, CUDA context",
    where="static total",
    reason="only what stays allocated between steps is counted so far, which batch size, length, autocast, "
    "checkpointing and attention do not change; the peak of a whole step is higher.",
)


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


def estimate(model: object, config: TrainingConfig | None = None, **options: Any) -> Estimate:
    """Return the memory of one training step of `model`.

    Args:
        model: a catalog name, a hub id, a folder, a `torch.nn.Module`, a `transformers.PretrainedConfig`, or a
            `ModelSpec`.
        config: every choice at once; or give them as `options`.
        options: the fields of `TrainingConfig` by name, and `optimizer`, `optimizer_args`, `optimizer_impl`,
            `parameter_groups`:
            `estimate("gpt2", optimizer="adafactor", dtype="bfloat16", freeze=["transformer.wte"])`.
            `optimizer` may also be an optimizer object over the parameters of `model`, before or after its first step.

    Raises:
        ModelError: the model cannot be resolved.
        UsageError: an option that cannot be.
    """
    if config is not None and options:
        raise UsageError("give either a TrainingConfig or options, not both.")
    if is_built_optimizer(options.get("optimizer")):
        options["optimizer"] = config_of_built(options["optimizer"], model)
    config = training_config(**options) if config is None else config
    if not isinstance(config, TrainingConfig):
        raise UsageError(f"config must be a TrainingConfig, not {shown(config)}.")
    return _estimate(model_spec(model, config), config)


def compare(model: object, optimizers: Iterable[Any], **options: Any) -> Estimates:
    """Return one estimate per optimizer; the model is resolved once.

    Args:
        model: as for `estimate`.
        optimizers: names, `OptimizerConfig`s or optimizer objects over the parameters of `model`.
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
    return estimate_all(model, [training_config(**{**options, "optimizer": each}) for each in given])


def estimate_all(
    model: object, configs: Sequence[TrainingConfig], *, progress: Callable[[str], None] | None = None
) -> Estimates:
    """Return one estimate per configuration of the same model, task, dtype and frozen parameters.

    `progress` is called with a sentence before each wait for the network.

    Raises:
        ModelError: the model cannot be resolved.
        UsageError: an option that cannot be.
    """
    for config in configs:  # a wrong optimizer is told before the network is asked for the model
        resolve_optimizer(config.optimizer.name, config.optimizer.args, config.optimizer.impl)
        resolve_groups(config.optimizer)
    spec = model_spec(model, configs[0], progress)
    return Estimates(tuple(_estimate(spec, config) for config in configs))


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
    return replace(
        config,
        task=spec.task or config.task,
        dtype=spec.dtype,
        optimizer=replace(config.optimizer, args=args),
        seq_len=config.seq_len or _default_length(spec),
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


def _estimate(spec: ModelSpec, config: TrainingConfig) -> Estimate:
    trainable = spec.table.trainable
    parts = assign(config.optimizer, spec.table)
    optimizer, state, step = parts[-1][0], state_of(parts), StepPeaks(parts)
    unknown = tuple(
        Unmodeled(what=f"temporaries of {name}.step()", where="optimizer step", reason=f"{reason}.")
        for name, reason in dict(step.unmodelled()).items()
    )
    return Estimate(
        memsim_version=__version__,
        model=ModelSummary(
            name=spec.name,
            source=spec.source,
            model_class=spec.model_class,
            num_parameters=spec.table.num_parameters,
            num_trainable_parameters=sum(p.tensor.numel for p in trainable),
            num_parameter_tensors=spec.table.num_parameter_tensors,
        ),
        config=resolved(config, spec, optimizer.args),
        optimizer=OptimizerSummary(
            class_path=optimizer.rule.class_path, source=_source(optimizer.rule), ignores=optimizer.rule.ignores
        ),
        assumptions=(*spec.assumptions, *_fused_backward(parts)),
        unmodeled=(_NOT_RECORDED, *unknown),
        static=StaticMemory(
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
        ),
        optimizer_step=None if unknown else step,
        optimizer_state=state,
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
