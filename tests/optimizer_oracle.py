"""Compares the state of a real optimizer with memsim's rule, entry by entry.

The expected side is always the real `optimizer.state` after real steps on the CPU. Entries are named as memsim names
them: parts of dicts, objects and tensor subclasses are dotted (`exp_avg.codes`), items of lists are indexed
(`old_dirs[0]`), and a plain Python number is an entry of dtype `python:int` and the like without storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from memsim.model import ParameterSpec
from memsim.optimizers import OptimizerState, derive_state, resolve_optimizer
from memsim.tensors import Shape, TensorSpec

SHAPES: dict[str, Shape] = {
    "embedding": (997, 64),
    "square": (128, 128),
    "matrix": (96, 256),
    "tall": (9000, 2),
    "wide": (3, 2048),
    "pair_of_columns": (2048, 2),
    "vector": (768,),
    "scalar": (),
    "one_element": (1,),
    "one_by_one": (1, 1),
    "odd": (3, 5),
    "batch_of_matrices": (4, 16, 8),
    "conv": (64, 3, 7, 7),
    "conv_1x1": (16, 16, 1, 1),
    "below_block": (4095,),
    "one_block": (4096,),
    "above_block": (4097,),
    "empty": (0,),
}
"""Shapes that reach every branch of every optimizer's state: rank 0 to 4, both sides of 8-bit block sizes, empty."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class RealEntry(NamedTuple):
    """One value of a live `optimizer.state[parameter]`."""

    parameter: str
    name: str
    shape: Shape
    dtype: str
    nbytes: int
    """Bytes of the storage that the value keeps alive."""
    storage: int
    """Identity of that storage; 0 for a Python number."""


def make_parameters(
    shapes: Mapping[str, Shape] = SHAPES, dtype: str = "float32", device: str = "cpu"
) -> dict[str, torch.nn.Parameter]:
    """Return seeded parameters of the given shapes, without gradients yet."""
    torch.manual_seed(0)
    return {
        name: torch.nn.Parameter(torch.randn(shape, device=device).mul_(0.1).to(DTYPES[dtype]))
        for name, shape in shapes.items()
    }


def fill_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Give every parameter a new random gradient of its own dtype."""
    for p in parameters:
        p.grad = torch.randn(p.shape, device=p.device).mul_(0.01).to(p.dtype)


def step_twice(optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Run two real steps with new gradients."""
    for _ in range(2):
        fill_gradients(parameters.values())
        optimizer.step()


def real_state(
    state: Mapping[Any, Any] | torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]
) -> list[RealEntry]:
    """Return every entry of `optimizer.state` (or of a mapping like it), in memsim's names."""
    names = {id(p): name for name, p in parameters.items()}
    by_parameter = state.state if isinstance(state, torch.optim.Optimizer) else state
    return [
        RealEntry(names[id(key)], *entry)
        for key, values in by_parameter.items()
        for name, value in values.items()
        for entry in _walk(name, value)
    ]


def _walk(name: str, value: Any) -> Iterator[tuple[str, Shape, str, int, int]]:
    if isinstance(value, torch.Tensor):
        yield from _walk_tensor(name, value)
    elif value is None or isinstance(value, (bool, int, float)):
        kind = "none" if value is None else type(value).__name__
        yield name, (), f"python:{kind}", 0, 0
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(f"{name}.{key}", item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _walk(f"{name}[{index}]", item)
    elif hasattr(value, "__dict__"):
        # An object (GaLore's projector): its tensors are state, its settings are not.
        for key, item in vars(value).items():
            if not (item is None or isinstance(item, (bool, int, float, str))):
                yield from _walk(f"{name}.{key}", item)
    else:
        raise TypeError(f"state entry {name!r} holds a {type(value).__name__}: _walk cannot see into it")


def _walk_tensor(name: str, value: torch.Tensor) -> Iterator[tuple[str, Shape, str, int, int]]:
    if hasattr(type(value), "__tensor_flatten__"):
        inner, _ = value.__tensor_flatten__()  # type: ignore[attr-defined]
        for attribute in inner:
            yield from _walk_tensor(f"{name}.{attribute}", getattr(value, attribute))
        return
    storage = value.untyped_storage()
    dtype = str(value.dtype).removeprefix("torch.")
    yield name, tuple(value.shape), dtype, storage.nbytes(), storage._cdata


def state_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return every tensor in the optimizer's state, wherever it is nested."""
    return list(tensors_in(dict(optimizer.state)))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor in a mapping, a list or an object, wherever it is nested."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from (t for item in value.values() for t in tensors_in(item))
    elif isinstance(value, (list, tuple)):
        yield from (t for item in value for t in tensors_in(item))
    elif hasattr(value, "__dict__"):
        yield from tensors_in(vars(value))


def specs(
    parameters: Mapping[str, torch.nn.Parameter], module_classes: Mapping[str, str] | None = None
) -> tuple[ParameterSpec, ...]:
    """Return memsim's description of real parameters; `module_classes` maps a name to its owner's class."""
    return tuple(
        ParameterSpec(
            name=name,
            tensor=TensorSpec(tuple(p.shape), str(p.dtype).removeprefix("torch.")),
            requires_grad=p.requires_grad,
            module_class=(module_classes or {}).get(name, ""),
        )
        for name, p in parameters.items()
    )


def predicted_state(
    rule_name: str,
    args: Mapping[str, Any],
    parameters: Mapping[str, torch.nn.Parameter],
    module_classes: Mapping[str, str] | None = None,
) -> OptimizerState:
    """Return memsim's prediction for the parameters that require a gradient."""
    trainable = [s for s in specs(parameters, module_classes) if s.requires_grad]
    return derive_state(resolve_optimizer(rule_name, args), trainable)


def assert_state_equals(
    rule_name: str,
    args: Mapping[str, Any],
    optimizer: torch.optim.Optimizer | Mapping[Any, Any],
    parameters: Mapping[str, torch.nn.Parameter],
    module_classes: Mapping[str, str] | None = None,
) -> None:
    """Assert that the rule's entries are the optimizer's, and that their bytes and elements are."""
    real = real_state(optimizer, parameters)
    assert_same(real, predicted_state(rule_name, args, parameters, module_classes))


def assert_same(real: Sequence[RealEntry], predicted: OptimizerState) -> None:
    """Assert equality by (parameter, name) of shape, dtype and storage bytes, then of the totals."""
    expected = {(r.parameter, r.name): (r.shape, r.dtype, r.nbytes) for r in real}
    actual = {(r.parameter, r.name): (r.shape, r.dtype, r.nbytes) for r in predicted}
    differences = [
        f"{key}: real {expected.get(key)}, memsim {actual.get(key)}"
        for key in {**expected, **actual}
        if expected.get(key) != actual.get(key)
    ]
    assert not differences, "\n".join(differences[:20])
    assert len(predicted.rows) == len(real), "memsim lists an entry twice"
    each_storage_once = {r.storage: r.nbytes for r in real}
    assert predicted.total_bytes == sum(each_storage_once.values())
    assert predicted.num_elements == sum(TensorSpec(r.shape, r.dtype).numel for r in real)
