"""Options that mean the same in every command, each defined once."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import click
from click.shell_completion import CompletionItem

from memsim.cli.output import with_options
from memsim.config import (
    DEFAULT_OPTIMIZER,
    TASKS,
    WEIGHT_DTYPES,
    AttnImplementation,
    AutocastDtype,
    Loop,
    OptimizerConfig,
    OptimizerImpl,
    ParameterGroup,
    TrainingConfig,
)
from memsim.errors import UsageError, shown
from memsim.estimator import training_config
from memsim.programs import ENVIRONMENT_VARIABLE, StepSource
from memsim.typed import read_data


def complete_model(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the catalog's names that begin with what was typed."""
    from memsim import catalog

    return [CompletionItem(name) for name in catalog.names() if name.lower().startswith(incomplete.lower())]


def complete_optimizer(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the optimizer names that begin with what was typed."""
    from memsim.optimizers import names, rules

    return [CompletionItem(name) for name in (*names(), *rules()) if name.lower().startswith(incomplete.lower())]


def complete_gpu(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the GPU names that begin with what was typed."""
    from memsim.gpus import all_gpus

    names = [name for gpu in all_gpus() for name in (gpu.name, *gpu.aliases)]
    return [CompletionItem(name) for name in names if name.lower().startswith(incomplete.lower())]


def _complete_task(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(task, help=auto) for task, auto in TASKS.items() if task.startswith(incomplete)]


model_argument = click.argument("model", shell_complete=complete_model)

_STEP_OPTIONS = (
    click.option(
        "--task", metavar="TASK", shell_complete=_complete_task, help=f"Head of the model: {', '.join(TASKS)}."
    ),
    click.option("--num-labels", type=int, metavar="N", help="Labels of a classification head."),
    click.option("--dtype", type=click.Choice(WEIGHT_DTYPES), help="Dtype of the weights [default: auto]."),
    click.option("--autocast", type=click.Choice(get_args(AutocastDtype)), help="Dtype of torch.autocast."),
    click.option(
        "--optimizer",
        "optimizers",
        multiple=True,
        metavar="NAME",
        shell_complete=complete_optimizer,
        help=f"Optimizer; repeat it to compare [default: {DEFAULT_OPTIMIZER}].",
    ),
    click.option(
        "--optimizer-arg",
        "optimizer_args",
        multiple=True,
        metavar="[NAME:]KEY=VALUE",
        help="Argument of the optimizer's class, or of one among several; repeatable.",
    ),
    click.option(
        "--param-group",
        "param_groups",
        multiple=True,
        metavar="PATTERN=NAME[,KEY=VALUE]",
        help="Train these parameters with another optimizer, or with none; repeatable, first match wins.",
    ),
    click.option("--optimizer-impl", type=click.Choice(get_args(OptimizerImpl)), help="Form of optimizer.step()."),
    click.option("--batch-size", type=int, metavar="N", help="Sequences per device and micro-batch [default: 1]."),
    click.option("--seq-len", type=int, metavar="N", help="Tokens per sequence."),
    click.option("--gradient-accumulation-steps", type=int, metavar="N", help="Micro-batches per optimizer step."),
    click.option(
        "--activation-checkpointing/--no-activation-checkpointing",
        default=None,
        help="Recompute activations in backward.",
    ),
    click.option("--attn-implementation", type=click.Choice(get_args(AttnImplementation)), help="Attention code path."),
    click.option("--freeze", multiple=True, metavar="PATTERN", help="Do not train these parameters; repeatable."),
    click.option("--loop", type=click.Choice(get_args(Loop)), help="Who runs the step [default: plain]."),
    click.option("--max-grad-norm", type=float, metavar="NORM", help="Clip gradients to this norm."),
    click.option(
        "--zero-grad-set-to-none/--no-zero-grad-set-to-none",
        default=None,
        help="Free gradients after each step (PyTorch's default), or keep and zero them.",
    ),
    click.option("--empty-cache-steps", type=int, metavar="N", help="The Trainer's torch_empty_cache_steps."),
    click.option(
        "--gpu",
        metavar="NAME|SIZE",
        shell_complete=complete_gpu,
        help="GPU that runs it: a name ('RTX 4090', see 'memsim gpus') or a memory size (24GiB).",
    ),
    click.option(
        "--alloc-conf",
        "alloc_confs",
        multiple=True,
        metavar="CONF",
        help="Allocator settings as in PYTORCH_ALLOC_CONF (expandable_segments:True); repeat it to compare.",
    ),
    click.option(
        "--config",
        "config_file",
        type=click.Path(),
        metavar="FILE",
        help="JSON or TOML file with the options above as keys.",
    ),
)


step_source_option = click.option(
    "--step",
    type=click.Choice(get_args(StepSource)),
    help="Forward and backward: 'auto' takes a stored program or records one where it can, 'stored' and 'record' do "
    f"only that, 'off' leaves them out [default: {ENVIRONMENT_VARIABLE}, else auto].",
)


def check_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--fits` and `--strict`; `--fits` without a GPU to fit on is a usage error.

    The command gets `fits: bool` and `strict: bool`, beside the `configs` of `step_options`.
    """

    def wrapped(*, fits: bool, configs: list[TrainingConfig], **rest: Any) -> Any:
        if fits and configs[0].gpu is None:
            raise UsageError("--fits needs a GPU: name it with --gpu, as in --gpu 'RTX 4090' or --gpu 24GiB.")
        return command(fits=fits, configs=configs, **rest)

    options = (
        click.option("--strict", is_flag=True, help="Fail if anything was assumed or is not modelled."),
        click.option("--fits", is_flag=True, help="Exit with 3 if it does not fit on the GPU of --gpu."),
    )
    return with_options(wrapped, command, options)


def step_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add every option of a training step.

    The command gets `configs: list[TrainingConfig]`: one per optimizer and, of each, one per allocator setting.
    """

    def wrapped(
        *,
        optimizers: tuple[str, ...],
        optimizer_args: tuple[str, ...],
        param_groups: tuple[str, ...],
        alloc_confs: tuple[str, ...],
        config_file: str | None,
        **rest: Any,
    ) -> Any:
        step = {key: rest.pop(key) for key in list(rest) if key in _STEP_FIELDS}
        given = {key: value for key, value in step.items() if value is not None and value != ()}
        if param_groups:
            given["parameter_groups"] = [_parameter_group(text) for text in param_groups]
        options = {**(_read_config(config_file) if config_file else {}), **given}
        configs = _configs(options, optimizers, optimizer_args)
        if alloc_confs:
            configs = [replace(config, alloc_conf=conf) for config in configs for conf in alloc_confs]
        return command(configs=configs, **rest)

    return with_options(wrapped, command, reversed(_STEP_OPTIONS))


_STEP_FIELDS = {f.name for f in fields(TrainingConfig)} - {"optimizer"} | {"optimizer_impl"}


def _configs(options: dict[str, Any], optimizers: tuple[str, ...], pairs: tuple[str, ...]) -> list[TrainingConfig]:
    """Return one configuration per optimizer; the command line goes before the file."""
    from_file = options.pop("optimizer", DEFAULT_OPTIMIZER)
    names = optimizers or tuple(from_file if isinstance(from_file, list) and from_file else [from_file])
    file_args = options.pop("optimizer_args", {})
    if not isinstance(file_args, dict):
        raise UsageError(f"optimizer_args must be a table of arguments, not {shown(file_args)}.")
    base = {} if optimizers else file_args
    return [
        training_config(
            **{**options, "optimizer": name, "optimizer_args": {**base, **_arguments(_pairs_for(name, names, pairs))}}
        )
        for name in names
    ]


def _pairs_for(name: str, names: tuple[str, ...], pairs: tuple[str, ...]) -> list[str]:
    """Return the arguments for one optimizer: those without an optimizer's name before them, and its own."""
    mine = []
    for pair in pairs:
        owner, colon, rest = pair.partition(":")
        if colon and "=" not in owner:
            if owner not in names:
                raise UsageError(f"--optimizer-arg {pair!r}: {owner!r} is none of the optimizers {', '.join(names)}.")
            mine += [rest] if owner == name else []
        else:
            mine.append(pair)
    return mine


def _arguments(pairs: Iterable[str], option: str = "--optimizer-arg") -> dict[str, str]:
    arguments = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{option} {pair!r} is not KEY=VALUE: write it as in amsgrad=true.")
        arguments[key.strip().replace("-", "_")] = value.strip()
    return arguments


_COMMA = re.compile(r",(?![^(\[]*[)\]])")
"""A comma that is not inside brackets."""


def _parameter_group(text: str) -> ParameterGroup:
    pattern, equals, rest = text.partition("=")
    name, *pairs = _COMMA.split(rest)
    if not equals or not pattern.strip() or not name.strip():
        raise UsageError(
            f"--param-group {text!r} is not PATTERN=NAME: write it as in --param-group '*.mlp.*=torch.optim.Muon'."
        )
    args = _arguments(pairs, "--param-group")
    return ParameterGroup(patterns=(pattern.strip(),), optimizer=name.strip(), args=args)


def _read_config(path: str) -> dict[str, Any]:
    """Return the options in a JSON or TOML file; of a saved estimate, its configuration."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--config: cannot read {path!r}: {getattr(error, 'strerror', None) or error}.") from error
    is_toml = path.lower().endswith(".toml")
    try:
        data = _parse_toml(text) if is_toml else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--config: {path!r} is not {'TOML' if is_toml else 'JSON'}: {error}.") from error
    if not isinstance(data, dict):
        raise UsageError(f"--config: {path!r} must hold a table of options, not a {type(data).__name__}.")
    if "results" in data:
        raise UsageError(f"--config: {path!r} holds several results: save one optimizer's alone, or write its options.")
    options = data["config"] if isinstance(data.get("config"), dict) else data
    options = {key.replace("-", "_"): value for key, value in options.items() if value is not None}
    groups = options.get("parameter_groups")
    if isinstance(groups, list):
        options["parameter_groups"] = [_parameter_group(g) if isinstance(g, str) else g for g in groups]
    return _with_saved_optimizer(options, path) if isinstance(options.get("optimizer"), dict) else options


def _with_saved_optimizer(options: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the options with a saved estimate's own form of the optimizer taken apart."""
    try:
        saved = read_data(OptimizerConfig, options["optimizer"], "optimizer")
    except ValueError as error:
        raise UsageError(f"--config: {path!r}: {error}.") from error
    taken = {"optimizer": saved.name, "optimizer_args": dict(saved.args), "parameter_groups": list(saved.groups)}
    return {**options, **taken, **({"optimizer_impl": saved.impl} if saved.impl else {})}


def _parse_toml(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib

        return tomllib.loads(text)
    raise UsageError("--config: TOML needs Python 3.11 or newer: use a JSON file.")
