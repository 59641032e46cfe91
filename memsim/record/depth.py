"""The same model with fewer layers, to be recorded in place of the whole: layers that are alike do alike.

A configuration with fewer layers is only taken when the model that it makes, built on the meta device, is the whole
model with layers taken out of the middle of its stacks: the same parameters and buffers under the same names, shapes,
dtypes and ties, and the layers that are left of the same kinds in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from memsim.config import TrainingConfig
from memsim.errors import MemsimError
from memsim.record.architecture import construct, import_transformers, quiet
from memsim.record.config_guard import checked_config
from memsim.record.depth_keys import Cut, Path, cut_config, depth_paths, facts_by_layer
from memsim.record.layer_kinds import Kind, Stack, layers_of, pattern_of, stacks_of
from memsim.record.training.build import freeze
from memsim.typed import read_data

_Tensor = tuple[tuple[str, ...], tuple[Any, ...]]

MIN_PERIODS = 2
"""Repetitions that are left between the first and the last layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStack:
    """Layers `prefix.0`, `prefix.1`, ... of which some were taken out."""

    prefix: str
    """Path of what holds them."""
    num_layers: int
    """Layers of the whole model."""
    num_left: int
    """Layers of the reduced one."""
    period: int
    """Layers after which their kinds repeat."""
    first_removed: int
    """Index of the first layer taken out; a multiple of `period` of them is missing from there on."""

    def whole_index(self, index: int) -> int:
        """Return the whole model's index of a layer that was left."""
        return index if index < self.first_removed else index + self.num_layers - self.num_left


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedDepth:
    """A model with fewer layers that shows all that the whole one does."""

    config: Mapping[str, Any]
    """Its configuration."""
    training: TrainingConfig
    """Its training: frozen parameters by the names that they have in it."""
    stacks: tuple[LayerStack, ...]
    """What was taken out of which stack."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return asdict(self)


def reduced_depth_of(data: Any) -> ReducedDepth:
    """Return what `ReducedDepth.to_dict` gave, from JSON too.

    Raises:
        ValueError: a field is missing or of another type.
    """
    return replace(read_data(ReducedDepth, data), config=data["config"])


def reduced_depth(
    config: Mapping[str, Any], training: TrainingConfig, *, num_periods: int = MIN_PERIODS
) -> ReducedDepth | None:
    """Return the smallest model whose stacks have `num_periods` repetitions between their first and last layers.

    Args:
        config: content of a `config.json`, not trusted.
        training: task, labels and frozen parameters are used.
        num_periods: at least 2; one more gives another depth to check with.

    Raises:
        MemsimError: transformers cannot build the model.
    """
    module = _built(config, training)
    freeze(module, training.freeze)
    model = _Model(config, training, module)
    stacks: list[LayerStack] = []
    for stack in list(model.stacks.values()):
        inside = any(f"{stack.prefix}.".startswith(f"{done.prefix}.") for done in stacks)
        found = None if inside else next(_reductions(model, stack, num_periods), None)
        if found is not None:
            model, more = found
            stacks += more
    if not stacks:
        return None
    frozen = tuple(model.frozen) if training.freeze else ()
    return ReducedDepth(config=model.config, training=replace(training, freeze=frozen), stacks=tuple(stacks))


class _Model:
    """A configuration, and what the model that it makes is made of."""

    def __init__(self, config: Mapping[str, Any], training: TrainingConfig, module: Any) -> None:
        self.config = config
        self.training = training
        self.effective = _with_defaults(config)
        self.stacks = {stack.prefix: stack for stack in stacks_of(module)}
        self.tensors = list(_tensors(module))
        self.frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
        self._trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]

    def kinds(self, prefix: str, path: Path) -> list[Kind]:
        """Return the kinds of a stack's layers: modules, the configuration's words, whether gradients flow into it."""
        stack = self.stacks[prefix]
        facts = facts_by_layer(self.effective, path, len(stack.kinds))
        names = (name[len(prefix) + 1 :] for name in self._trained if name.startswith(f"{prefix}."))
        first_trained = min((int(name.partition(".")[0]) for name in names), default=len(stack.kinds))
        return [(kind, facts[index], index > first_trained) for index, kind in enumerate(stack.kinds)]


def _reductions(model: _Model, stack: Stack, num_periods: int) -> Iterator[tuple[_Model, list[LayerStack]]]:
    """Yield models with fewer layers in a stack, and in those that the same entry of the configuration cuts."""
    for path in depth_paths(model.effective, len(stack.kinds)):
        cut, period = _cut_of(model.kinds(stack.prefix, path), num_periods)
        if cut is None:
            continue
        tried: list[Mapping[str, Any]] = []
        for with_defaults in (False, True):
            config = cut_config(model.config, model.effective, path, cut, with_defaults=with_defaults)
            if config is None or config in tried:
                continue
            tried.append(config)
            changed = _changed(model, config, path, cut)
            if changed is not None:
                yield changed[0], [_layer_stack(one.prefix, cut, period) for one in changed[1]]


def _layer_stack(prefix: str, cut: Cut, period: int) -> LayerStack:
    return LayerStack(
        prefix=prefix, num_layers=cut.num_layers, num_left=cut.num_left, period=period, first_removed=cut.first
    )


def _cut_of(kinds: Sequence[Kind], num_periods: int) -> tuple[Cut | None, int]:
    """Return what is taken out of a stack, and its period; `None` where nothing can be."""
    pattern = pattern_of(kinds)
    if pattern is None:
        return None, 0
    leads = pattern.head == 0
    trails = pattern.head + pattern.num_repeated == len(kinds)
    wanted = num_periods * pattern.period + leads + trails
    left = wanted + (pattern.num_repeated - wanted) % pattern.period
    if left >= pattern.num_repeated:
        return None, 0
    first = pattern.head + leads + pattern.period
    return Cut(num_layers=len(kinds), first=first, num_removed=pattern.num_repeated - left), pattern.period


def _changed(model: _Model, config: Mapping[str, Any], path: Path, cut: Cut) -> tuple[_Model, list[Stack]] | None:
    """Return the model that `config` makes and the stacks that are shorter in it, if it is `model` with a cut."""
    try:
        module = _built(config, model.training)
    except MemsimError:
        return None
    left = {prefix: len(layers) for prefix, layers in layers_of(module).items()}
    changed = [
        stack
        for prefix, stack in model.stacks.items()
        if len(stack.kinds) == cut.num_layers and left.get(prefix) == cut.num_left
    ]
    if not changed:
        return None
    frozen = {_renamed(name, changed, cut) for name in model.frozen}
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name not in frozen)
    candidate = _Model(config, model.training, module)
    if _without(model.tensors, changed, cut) != candidate.tensors:
        return None
    for stack in changed:
        kinds = model.kinds(stack.prefix, path)
        if kinds[: cut.first] + kinds[cut.first + cut.num_removed :] != candidate.kinds(stack.prefix, path):
            return None
    return candidate, changed


def _without(tensors: Sequence[_Tensor], stacks: Sequence[Stack], cut: Cut) -> list[_Tensor]:
    """Return names and facts of tensors without those of layers that were taken out."""
    left = []
    for names, facts in tensors:
        kept = tuple(new for name in names if (new := _renamed(name, stacks, cut)) is not None)
        if kept:
            left.append((kept, facts))
    return left


def _renamed(name: str, stacks: Sequence[Stack], cut: Cut) -> str | None:
    """Return a tensor's name in the reduced model; `None` if its layer is not in it."""
    for stack in stacks:
        if name.startswith(f"{stack.prefix}."):
            index, dot, rest = name[len(stack.prefix) + 1 :].partition(".")
            if int(index) >= cut.first + cut.num_removed:
                return f"{stack.prefix}.{int(index) - cut.num_removed}{dot}{rest}"
            return name if int(index) < cut.first else None
    return name


def _built(config: Mapping[str, Any], training: TrainingConfig) -> Any:
    import torch

    dtype = "float32" if training.dtype == "auto" else training.dtype
    return construct(
        config, task=training.task, dtype=dtype, num_labels=training.num_labels, creating=torch.device("meta")
    ).model


def _with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    transformers = import_transformers()
    with quiet():
        effective: dict[str, Any] = (
            transformers.CONFIG_MAPPING[config["model_type"]].from_dict(checked_config(config)).to_dict()
        )
    return effective


def _tensors(module: Any) -> Iterator[_Tensor]:
    """Yield the names that each parameter and buffer has, and its facts."""
    names: dict[int, list[str]] = {}
    tensors: dict[int, Any] = {}
    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    for name, tensor in named:
        names.setdefault(id(tensor), []).append(name)
        tensors[id(tensor)] = tensor
    for key, tensor in tensors.items():
        yield tuple(names[key]), (tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad)
