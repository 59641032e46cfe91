"""State of every optimizer of `bitsandbytes.optim`: one to three moments in 8 or 32 bits.

Read at bitsandbytes 0.50.2: optim/optimizer.py:374-391 (buffers), 492-532 (two states), 664-700 (one state),
optim/ademamix.py:139-173, and each class's constructor for the arguments that it fixes or refuses.

An 8-bit state has one byte per element, a float32 `absmax` for each block of 256 elements (the last block may be
partial; nothing is padded) and a table of 256 float32 values that all parameters of the optimizer share. Tensors with
fewer than `min_8bit_size` elements, and all with `optim_bits=32`, keep float32 whatever the parameter's dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional, Required
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, StateEntry, like, python_number, tensor
from memsim.optimizers.step import Tape, register_step
from memsim.tensors import Device, TensorSpec

BLOCK_ELEMENTS = 256
"""Elements that share one `absmax` (optim/optimizer.py:525)."""
PAGED_ELEMENTS = 100_000
"""Elements from which a paged optimizer takes unified memory for a state (optim/optimizer.py:384, `1e5`)."""

_FACTS = {"package": "bitsandbytes", "version": "0.50.2"}
_SOURCES = {1: "bitsandbytes/optim/optimizer.py:664-700", 2: "bitsandbytes/optim/optimizer.py:492-532"}
_MAPS = ("dynamic", "udynamic")
_IGNORES = (
    "Tables that no parameter uses: `udynamic` (1,024 bytes on the host) of an optimizer with one state, and both of "
    "an 8-bit optimizer whose tensors are all under min_8bit_size. Overrides by GlobalOptimManager, which "
    "bitsandbytes.nn.Embedding and StableEmbedding register too: say embeddings_in_32bit=True for those."
)


@dataclass(frozen=True, slots=True)
class _Form:
    """What one class fixes of the common rule."""

    name: str
    """Class name."""
    states: int
    """Moments: 1 or 2."""
    bits: Literal[8, 32, "argument"]
    """Bits of the state; with `argument` the constructor's `optim_bits` decides."""
    arguments: Mapping[str, Any]
    """The constructor's arguments and defaults."""
    paged: bool = False
    """Whether it is paged without being asked."""
    averages: bool = False
    """Whether `state1` holds two moments and the tables come first (AdEMAMix)."""
    only: Mapping[str, Any] = field(default_factory=dict)
    """Arguments whose every other value the constructor refuses."""
    nonzero: tuple[str, ...] = ()
    """Arguments that the constructor refuses to be 0."""

    @property
    def class_path(self) -> str:
        """Import path of the class."""
        return f"bitsandbytes.optim.{self.name}"


def _state(form: _Form, parameter: ParameterSpec, args: Arguments) -> Entries:
    """Return the entries in the order in which `init_state` makes them."""
    _refuse(form, args)
    eight_bit = _is_eight_bit(form, parameter, args)
    moments = tuple(_moment(form, number, parameter, args, eight_bit) for number in range(1, form.states + 1))
    step = python_number("step")
    norm = (tensor("unorm_vec", (1,), "float32"),) if args.get("max_unorm", 0.0) > 0.0 else ()
    if not eight_bit:
        return (step, *moments, *norm)
    maps = tuple(_map(number) for number in range(1, form.states + 1))
    maxima = tuple(_absmax(form, number, parameter.tensor.numel) for number in range(1, form.states + 1))
    if form.averages:
        return (step, *maps, *maxima, *moments)
    pairs = tuple(entry for pair in zip(moments, maps, strict=True) for entry in pair)
    return (step, *pairs, *maxima, *norm)


def _is_eight_bit(form: _Form, parameter: ParameterSpec, args: Arguments) -> bool:
    """Return whether the parameter's state is quantised (optim/optimizer.py:495-503)."""
    bits = args["optim_bits"] if form.bits == "argument" else form.bits
    if bits == 32 or parameter.tensor.numel < args["min_8bit_size"]:
        return False
    return not (args["embeddings_in_32bit"] and parameter.is_embedding)


def _moment(form: _Form, number: int, parameter: ParameterSpec, args: Arguments, eight_bit: bool) -> StateEntry:
    paged = form.paged or args.get("is_paged", False)
    device: Device = "managed" if paged and parameter.tensor.numel >= PAGED_ELEMENTS else "device"
    doubled = (2,) if form.averages and number == 1 else ()
    shape = doubled + parameter.tensor.shape
    return StateEntry(f"state{number}", TensorSpec(shape, "uint8" if eight_bit else "float32", device))


def _map(number: int) -> StateEntry:
    return StateEntry(f"qmap{number}", TensorSpec((256,), "float32"), shared=_MAPS[number - 1])


def _absmax(form: _Form, number: int, numel: int) -> StateEntry:
    blocks = -(-numel // BLOCK_ELEMENTS)
    return tensor(f"absmax{number}", (2, blocks) if form.averages and number == 1 else (blocks,), "float32")


def _step(form: _Form, tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """Make the state, and the norm that LAMB and LARS want; the CUDA kernels update everything in place.

    Read at bitsandbytes 0.50.2: optim/optimizer.py:306-340, functional.py:1142-1166, backends/cuda/ops.py:1059-1212.
    Parameters and gradients are assumed contiguous: others are copied and stay so. The kernels for the CPU have
    temporaries of their own.
    """
    for p in parameters:
        entries = _state(form, p, args)
        if tape.first_step:
            _create(tape, p, entries)
        if args.get("max_unorm", 0.0) > 0.0 and not any(e.name == "qmap1" for e in entries):
            with tape.frame() as local:
                copy = p.tensor.dtype != "float32"  # p.data.float()
                copied = [local.open(p.tensor.with_dtype("float32"), parameter=p.name, name="float")] if copy else []
                local.new("param_norm", TensorSpec((), "float32"), parameter=p.name)
                local.end(*copied)


def _create(tape: Tape, p: ParameterSpec, entries: Entries) -> None:
    """Allocate the entries in the order of `init_state`: the tables first, and each of them once per optimizer.

    On the CPU the tables are there since the constructor.
    """
    maps = [e for e in entries if e.shared is not None and e.shared not in tape.shared and not tape.on_cpu]
    tape.shared.update(e.shared for e in maps if e.shared is not None)
    tensors = [e for e in entries if e.shared is None and e.name != "step"]
    for entry in (*maps, *tensors):
        tape.allocate(entry.tensor, p.name, entry.name, "optimizer_state")


def _refuse(form: _Form, args: Arguments) -> None:
    """Raise for the arguments that the real constructor raises for."""
    for key, value in form.only.items():
        if args[key] != value:
            raise UsageError(
                f"{form.class_path}: {key}={args[key]!r} is refused by bitsandbytes; leave it at {value!r}."
            )
    for key in form.nonzero:
        if args[key] == 0:
            raise UsageError(f"{form.class_path}: {key}=0 is refused by bitsandbytes; give another value.")
    if args.get("optim_bits", 32) not in {8, 32}:
        raise UsageError(f"{form.class_path}: optim_bits must be 8 or 32, not {args['optim_bits']!r}.")
    if args.get("args") is not None:
        raise UsageError(
            f"{form.class_path}: memsim cannot look into args=; give optim_bits, min_8bit_size, max_unorm."
        )


_BITS: dict[str, Any] = {"optim_bits": 32}
_TAIL: dict[str, Any] = {"args": Optional(object), "min_8bit_size": 4096}
_PAGED: dict[str, Any] = {"is_paged": False}
_BETAS: dict[str, Any] = {"betas": (0.9, 0.999), "eps": 1e-8}

_ADAM: dict[str, Any] = {"lr": 1e-3, **_BETAS, "weight_decay": 0.0, "amsgrad": False, **_BITS, **_TAIL}
_ADAMW: dict[str, Any] = {**_ADAM, "weight_decay": 1e-2}
_ADEMAMIX: dict[str, Any] = {
    "lr": 1e-3,
    "betas": (0.9, 0.999, 0.9999),
    "alpha": 5.0,
    "t_alpha": Optional(int),
    "t_beta3": Optional(int),
    "eps": 1e-8,
    "weight_decay": 1e-2,
    "min_8bit_size": 4096,
}
_LAMB: dict[str, Any] = {
    "lr": 1e-3,
    "bias_correction": True,
    **_BETAS,
    "weight_decay": 0.0,
    "amsgrad": False,
    "adam_w_mode": True,
    **_TAIL,
    "max_unorm": 1.0,
}
_LION: dict[str, Any] = {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0, **_TAIL}
_SGD: dict[str, Any] = {
    "lr": Required(float),
    "momentum": Required(float, refused=0),
    "dampening": 0.0,
    "weight_decay": 0.0,
    "nesterov": False,
    **_TAIL,
}
_LARS: dict[str, Any] = {**_SGD, "max_unorm": 0.02}
_RMSPROP: dict[str, Any] = {
    "lr": 1e-2,
    "alpha": 0.99,
    "eps": 1e-8,
    "weight_decay": 0.0,
    "momentum": 0.0,
    "centered": False,
    **_TAIL,
}
_ADAGRAD: dict[str, Any] = {
    "lr": 1e-2,
    "lr_decay": 0.0,
    "weight_decay": 0.0,
    "initial_accumulator_value": 0.0,
    "eps": 1e-10,
    **_BITS,
    **_TAIL,
}
_AS_ADAM = {"amsgrad": False, "optim_bits": 32}
_UNCENTERED = {"centered": False}
_PLAIN_SUM = {"lr_decay": 0.0, "initial_accumulator_value": 0.0}

_FORMS = (
    _Form("Adam", 2, "argument", {**_ADAM, **_PAGED}),
    _Form("Adam8bit", 2, 8, {**_ADAM, **_PAGED}, only=_AS_ADAM),
    _Form("Adam32bit", 2, 32, {**_ADAM, **_PAGED}),
    _Form("PagedAdam", 2, "argument", {**_ADAM, **_PAGED}, paged=True),
    _Form("PagedAdam8bit", 2, 8, {**_ADAM, **_PAGED}, paged=True, only=_AS_ADAM),
    _Form("PagedAdam32bit", 2, 32, {**_ADAM, **_PAGED}, paged=True),
    _Form("AdamW", 2, "argument", {**_ADAMW, **_PAGED}),
    _Form("AdamW8bit", 2, 8, {**_ADAMW, **_PAGED}, only=_AS_ADAM),
    _Form("AdamW32bit", 2, 32, {**_ADAMW, **_PAGED}),
    _Form("PagedAdamW", 2, "argument", _ADAMW, paged=True),
    _Form("PagedAdamW8bit", 2, 8, _ADAMW, paged=True, only=_AS_ADAM),
    _Form("PagedAdamW32bit", 2, 32, _ADAMW, paged=True),
    _Form("AdEMAMix", 2, "argument", {**_ADEMAMIX, **_BITS, **_PAGED}, averages=True),
    _Form("AdEMAMix8bit", 2, 8, {**_ADEMAMIX, **_PAGED}, averages=True),
    _Form("PagedAdEMAMix", 2, "argument", {**_ADEMAMIX, **_BITS}, paged=True, averages=True),
    _Form("PagedAdEMAMix8bit", 2, 8, _ADEMAMIX, paged=True, averages=True),
    # These two do not inherit AdEMAMix's `init_state`: their state1 has one average, and CPU kernels fail on it.
    _Form("AdEMAMix32bit", 2, 32, {**_ADEMAMIX, **_PAGED}),
    _Form("PagedAdEMAMix32bit", 2, 32, _ADEMAMIX, paged=True),
    _Form("LAMB", 2, "argument", {**_LAMB, **_BITS}),
    _Form("LAMB8bit", 2, 8, _LAMB, only={"amsgrad": False, "max_unorm": 1.0}),
    _Form("LAMB32bit", 2, 32, _LAMB),
    _Form("LARS", 1, "argument", {**_LARS, **_BITS}),
    _Form("LARS8bit", 1, 8, _LARS),
    _Form("LARS32bit", 1, 32, _LARS),
    _Form("Lion", 1, "argument", {**_LION, **_BITS, **_PAGED}),
    _Form("Lion8bit", 1, 8, {**_LION, **_PAGED}),
    _Form("Lion32bit", 1, 32, {**_LION, **_PAGED}),
    _Form("PagedLion", 1, "argument", {**_LION, **_BITS}, paged=True),
    _Form("PagedLion8bit", 1, 8, _LION, paged=True),
    _Form("PagedLion32bit", 1, 32, _LION, paged=True),
    _Form("RMSprop", 1, "argument", {**_RMSPROP, **_BITS}, only=_UNCENTERED, nonzero=("alpha",)),
    _Form("RMSprop8bit", 1, 8, _RMSPROP, only=_UNCENTERED, nonzero=("alpha",)),
    _Form("RMSprop32bit", 1, 32, _RMSPROP, only=_UNCENTERED, nonzero=("alpha",)),
    _Form("SGD", 1, "argument", {**_SGD, **_BITS}),
    _Form("SGD8bit", 1, 8, _SGD),
    _Form("SGD32bit", 1, 32, _SGD),
    _Form("Adagrad", 1, "argument", _ADAGRAD, only=_PLAIN_SUM),
    _Form("Adagrad8bit", 1, 8, {**_ADAGRAD, "optim_bits": 8}, only={**_PLAIN_SUM, "optim_bits": 8}),
    _Form("Adagrad32bit", 1, 32, _ADAGRAD, only=_PLAIN_SUM),
)

for _form in _FORMS:
    register(
        _form.class_path,
        arguments=_form.arguments,
        own_arguments={"embeddings_in_32bit": False},
        source="bitsandbytes/optim/ademamix.py:139-173" if _form.averages else _SOURCES[_form.states],
        ignores=_IGNORES,
        **_FACTS,
    )(partial(_state, _form))
    register_step(_form.class_path, source="bitsandbytes/optim/optimizer.py:306-340")(partial(_step, _form))


@register(
    "bitsandbytes.optim.PytorchLARS",
    arguments={
        "lr": 0.01,
        "momentum": Required(float, refused=0),
        "dampening": 0.0,
        "weight_decay": 0.0,
        "nesterov": False,
        "max_unorm": 0.02,
    },
    source="bitsandbytes/optim/lars.py:206-259",
    ignores="The class itself fails on parameters that are not float32 unless max_unorm=0.",
    **_FACTS,
)
def pytorch_lars(parameter: ParameterSpec, args: Arguments) -> Entries:  # noqa: ARG001
    """One momentum buffer in the gradient's dtype; without momentum the class's `step()` fails."""
    return (like("momentum_buffer", parameter),)


@register_step("bitsandbytes.optim.PytorchLARS", source="bitsandbytes/optim/lars.py:206-259")
def pytorch_lars_step(tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    """One parameter after the other.

    Whether an update is scaled depends on its norm: it is assumed to be (8 bytes less where it is not). An empty
    parameter's never is.
    """
    scalar = TensorSpec((), "float32")
    with tape.frame() as local:
        for p in parameters:
            local.forget("d_p")
            if args["weight_decay"] != 0:
                local.new("d_p", p)
            if tape.first_step:
                tape.allocate(p.tensor, p.name, "momentum_buffer", "optimizer_state")
            if args["nesterov"]:
                local.new("update", p, p)  # d_p + buf * momentum
            scaled = args["max_unorm"] > 0.0 and p.tensor.numel > 0
            local.forget("update_scale")
            if args["max_unorm"] > 0.0:
                local.new("pnorm", scalar, parameter=p.name)
                local.new("unorm", scalar, parameter=p.name)
                limit = local.open(scalar, parameter=p.name, name="max_unorm * pnorm")
                above = local.open(TensorSpec((), "bool"), parameter=p.name, name="unorm > limit")
                local.end(limit, above)
            if scaled:
                local.new("update_scale", scalar, scalar, parameter=p.name)
                local.brief(scalar, parameter=p.name, name="-lr * update_scale")
