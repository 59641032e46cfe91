"""Which class of transformers a configuration and a task lead to, and the model that it makes.

Nothing is fetched: `auto_map` and everything else in a configuration that makes transformers download or execute
something is dropped before the model is built.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from memsim.config import TASKS
from memsim.errors import MemsimError, MissingPackageError, ModelError, UnknownNameError, shown
from memsim.record.config_guard import checked_config

MAX_REGISTRATIONS = 60_000
"""Modules and parameter tensors of one model; each takes 25 to 100 microseconds to build. Llama-3.1-405B has 126 layers
with 14 modules and 9 parameters each; a mixture of 24 layers whose 128 experts are a module each of two linear layers
(Switch, with 5 modules and 2 parameters an expert) has 24 * 128 * 7 = 21,504."""
MAX_REGISTRATIONS_UNFUSED = 250_000
"""The same with transformers 4.x, where every mixture has a module for each expert: 60 layers with 384 experts of three
linear layers are 60 * 384 * 7 = 161,280."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constructed:
    """A model as its constructor leaves it."""

    model: Any
    """The `transformers.PreTrainedModel`."""
    task: str
    """A key of `memsim.config.TASKS`; empty where no auto class leads to this class."""


def construct(
    config: Mapping[str, Any],
    *,
    task: str | None,
    dtype: str,
    num_labels: int | None,
    creating: AbstractContextManager[Any],
    attn_implementation: str | None = None,
) -> Constructed:
    """Return the model that `config` (the content of a `config.json`, not trusted) describes.

    Args:
        config: needs `model_type`; everything else falls back to the configuration class's own defaults.
        task: key of `memsim.config.TASKS`, built through its auto class; `None` is the class that
            `architectures` names, and the base model where it names none.
        dtype: dtype that the constructor creates weights in.
        num_labels: labels of a classification head; `None` is the configuration's own.
        creating: context that the constructor runs in: it decides where tensors are created.
        attn_implementation: attention code path; `None` is the model's own default.

    Raises:
        MissingPackageError: torch or transformers is not installed.
        UnknownNameError: transformers has no such `model_type` or architecture.
        ModelError: the architecture does not have the task or the attention, or the sizes make no model.
    """
    transformers = import_transformers()
    import torch

    model_type = _model_type(config, transformers)
    clean = checked_config(config if num_labels is None else {**config, "num_labels": num_labels})
    with quiet(), _one_line_errors(model_type, attn_implementation):
        built = transformers.CONFIG_MAPPING[model_type].from_dict(clean)
        if num_labels is not None:
            built.num_labels = num_labels  # replaces id2label, which would win over the key
        build = _builder(built, task, transformers)
        options: dict[str, Any] = {dtype_word(transformers): getattr(torch, dtype)}
        if attn_implementation is not None:
            options["attn_implementation"] = attn_implementation
        most = MAX_REGISTRATIONS if major(transformers) >= 5 else MAX_REGISTRATIONS_UNFUSED
        with creating, _bounded(torch.nn.modules.module, most):
            model = build(built, **options)
    return Constructed(model=model, task=task or task_of_class(type(model), built, transformers))


def tasks_of(model_type: str) -> tuple[str, ...]:
    """Return the tasks of `memsim.config.TASKS` that transformers has a class for, in the order of `TASKS`.

    Raises:
        MissingPackageError: torch or transformers is not installed.
        UnknownNameError: transformers has no such `model_type`.
    """
    transformers = import_transformers()
    config_class = transformers.CONFIG_MAPPING[_model_type({"model_type": model_type}, transformers)]
    with quiet():
        return tuple(task for task in TASKS if classes_of_task(task, config_class, transformers))


def import_transformers() -> Any:
    """Return the module `transformers`, imported without its warnings.

    Raises:
        MissingPackageError: torch or transformers is not installed.
        ModelError: one of them is installed and cannot be imported.
    """
    try:
        with quiet():
            import torch  # noqa: F401
            import transformers

            transformers.PreTrainedModel  # noqa: B018 -- transformers imports lazily: most of it, and torchao, only now
    except ImportError as error:
        raise MissingPackageError(
            f"building a model from its configuration needs {error.name or 'torch and transformers'}, "
            'which is not installed: pip install "memsim[torch]"'
        ) from error
    except Exception as error:  # a variable of the environment that is no number, a library that does not load
        raise ModelError(
            f"torch and transformers are installed but cannot be imported ({_one_line(error)}).\n"
            "Correct the environment: 'python -c \"import transformers\"' shows where it fails."
        ) from error
    return transformers


def dtype_word(transformers: Any) -> str:
    """Return the keyword by which `from_config` and `from_pretrained` take the dtype of the weights."""
    return "dtype" if major(transformers) >= 5 else "torch_dtype"


def major(transformers: Any) -> int:
    """Return the first number of transformers' version."""
    return int(transformers.__version__.partition(".")[0])


def _model_type(config: Mapping[str, Any], transformers: Any) -> str:
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ModelError(f"the configuration's model_type must be a name such as 'llama', not {shown(model_type)}.")
    if model_type not in transformers.CONFIG_MAPPING:
        raise UnknownNameError(
            "model_type",
            model_type[:80],
            list(transformers.CONFIG_MAPPING.keys()),
            f"transformers {transformers.__version__} has no such architecture; remote code is never run.",
        )
    return model_type


def classes_of_task(task: str, config_class: type, transformers: Any) -> tuple[type, ...]:
    """Return the model classes that a task's auto class has for a configuration class, the first the usual one."""
    auto = getattr(transformers, TASKS[task], None)
    if auto is None:  # transformers 4.45 has no AutoModelForImageTextToText
        return ()
    try:
        found = auto._model_mapping.get(config_class, ())
    except (ImportError, AttributeError, ValueError):
        return ()  # a class whose own optional package is absent
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def _builder(config: Any, task: str | None, transformers: Any) -> Any:
    if task is None:
        return _architecture_builder(config, transformers)
    if task not in TASKS:
        raise UnknownNameError("task", task, TASKS, f"Tasks: {', '.join(TASKS)}.")
    if not classes_of_task(task, type(config), transformers):
        raise task_error(config.model_type, task, tasks_of(config.model_type))
    if config.architectures is None:
        config.architectures = []  # from_config looks in it where a task has several classes (DeiT), and needs a list
    return getattr(transformers, TASKS[task]).from_config


def task_error(what: str, task: str, tasks: tuple[str, ...]) -> ModelError:
    """Return the error for a task that `what` (a model or an architecture) does not have."""
    return ModelError(f"{what} has no {task} model in transformers. It has: {', '.join(tasks) or 'none'}.")


def _architecture_builder(config: Any, transformers: Any) -> Any:
    architectures = config.architectures
    if not architectures:
        return transformers.AutoModel.from_config
    given = architectures[0] if isinstance(architectures, (list, tuple)) else architectures
    known = _classes_of_config(config, transformers)
    # The hub writes PhiMoEForCausalLM and MPTForCausalLM for what transformers calls Phimoe... and Mpt...
    found = known.get(str(given).lower())
    if found is None:
        tasks = ", ".join(tasks_of(config.model_type))
        names = [cls.__name__ for cls in known.values()]
        hint = f"It is no {config.model_type} class of transformers; choose a --task it has: {tasks}."
        raise UnknownNameError("architecture", str(given)[:80], names, hint)

    def build(config: Any, **dtype: Any) -> Any:
        # As AutoModel does for the text tower of a multimodal model (auto_factory.py:234 @transformers 5.24).
        return found._from_config(config if found.config_class is type(config) else config.get_text_config(), **dtype)

    return build


def _classes_of_config(config: Any, transformers: Any) -> dict[str, Any]:
    """Return the model classes for `config` by lower-case name: those of its module and of its auto classes."""
    import importlib

    config_classes = (type(config), type(config.get_text_config()))
    classes = [cls for task in TASKS for cls in classes_of_task(task, type(config), transformers)]
    try:
        module = importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
    except ImportError:
        module = None
    classes += [cls for cls in vars(module).values() if isinstance(cls, type)] if module else []
    return {
        cls.__name__.lower(): cls
        for cls in classes
        if issubclass(cls, transformers.PreTrainedModel)
        and getattr(cls, "config_class", None) in config_classes
        and not cls.__name__.endswith("PreTrainedModel")  # the abstract class of a family, without a parameter
    }


def task_of_class(model_class: type, config: Any, transformers: Any) -> str:
    """Return the task whose auto class leads to `model_class`; empty where none does."""
    # Auto classes share classes: that of pretraining leads to the main head of most families, those of causal-lm and
    # masked-lm also to multimodal and sequence-to-sequence ones. The most telling name wins.
    weak = ("causal-lm", "masked-lm", "pretraining")
    for task in sorted(TASKS, key=lambda name: weak.index(name) if name in weak else -1):
        if model_class in classes_of_task(task, type(config), transformers):
            return task
    return ""


@contextmanager
def _bounded(torch_module: Any, most: int) -> Iterator[None]:
    """Stop a model that registers modules or parameters without end: a configuration can ask for any number of them."""
    thread = threading.get_ident()
    registered = 0

    def count(*_: Any) -> None:
        nonlocal registered
        registered += threading.get_ident() == thread
        if registered > most:
            raise ModelError(
                f"the configuration makes more than {most:,} modules and parameter tensors, as no model "
                "has. Check its numbers of layers, groups and experts."
            )

    hooks = [
        torch_module.register_module_module_registration_hook(count),
        torch_module.register_module_parameter_registration_hook(count),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings, and transformers' log: their advice is about models that will run, on this machine.

    `import transformers` imports torchao where it is installed, which warns of kernels that it cannot load.
    """
    logger, disabled = logging.getLogger("transformers"), logging.root.manager.disable
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    logging.disable(max(disabled, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        logger.setLevel(level)


@contextmanager
def _one_line_errors(model_type: str, attn_implementation: str | None) -> Iterator[None]:
    try:
        yield
    except MemsimError:
        raise
    except Exception as error:
        if attn_implementation is not None and "ttention" in str(error):
            raise ModelError(
                f"{model_type} cannot use attn_implementation={attn_implementation!r} here: {_one_line(error)}\n"
                "Choose eager or sdpa, or leave it out."
            ) from error
        raise ModelError(
            f"transformers cannot build a {model_type} model from this configuration: {_one_line(error)}"
        ) from error


def _one_line(error: BaseException) -> str:
    said = "".join(c if c.isprintable() else " " for c in str(error)[:1000])
    return " ".join(said.split())[:300] or type(error).__name__
