"""Names that users type instead of a class path.

Three kinds, in this order: what `optim=` of transformers' Trainer accepts, where a name means a class and the arguments
that the Trainer gives it; names of other packages; and the class names of `torch.optim` and `bitsandbytes.optim`, which
mean the plain class with its own defaults (`adamw`, `adamw8bit`; torch's where both packages have the class).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsim.optimizers import adafactor, bitsandbytes, torch_optim  # noqa: F401  (registers rules)
from memsim.optimizers.registry import OptimizerName, known_names, known_rules, register_names


def _trainer(name: str, class_path: str, args: Mapping[str, Any], unbuildable: str = "") -> OptimizerName:
    return OptimizerName(name=name, class_path=class_path, args=args, framework="transformers", unbuildable=unbuildable)


# What the Trainer builds with its own default arguments: transformers 5.24.0, trainer_optimizer.py and
# trainer.py:1259-1342. `weight_decay` comes with the parameter groups, which change nothing else in memory.
_LR: dict[str, Any] = {"lr": 5e-5, "weight_decay": 0.0}
_ADAM: dict[str, Any] = {**_LR, "betas": (0.9, 0.999), "eps": 1e-8}

_TRAINER_TORCH = (
    _trainer("adamw_torch", "torch.optim.AdamW", _ADAM),
    _trainer("adamw_torch_fused", "torch.optim.AdamW", {**_ADAM, "fused": True}),
    _trainer("sgd", "torch.optim.SGD", _LR),
    _trainer("adagrad", "torch.optim.Adagrad", _LR),
    _trainer("rmsprop", "torch.optim.RMSprop", _LR),
)

_TRAINER_TRANSFORMERS = (
    _trainer(
        "adafactor",
        "transformers.optimization.Adafactor",
        {**_LR, "scale_parameter": False, "relative_step": False},
    ),
)

# With 8 bits the Trainer keeps the weight of every nn.Embedding in 32 (trainer.py:1328-1340).
_8BIT: dict[str, Any] = {"optim_bits": 8, "embeddings_in_32bit": True}
_32BIT: dict[str, Any] = {"optim_bits": 32}
_PLAIN: dict[str, Any] = {"is_paged": False}
_PAGED: dict[str, Any] = {"is_paged": True}
_LION: dict[str, Any] = {**_LR, "betas": (0.9, 0.999)}
_ADEMAMIX: dict[str, Any] = {**_ADAM, "betas": (0.9, 0.999, 0.9999), "alpha": 5.0}

_TRAINER_BITSANDBYTES = (
    _trainer("adamw_bnb_8bit", "bitsandbytes.optim.AdamW", {**_ADAM, **_8BIT, **_PLAIN}),
    _trainer("adamw_8bit", "bitsandbytes.optim.AdamW", {**_ADAM, **_8BIT, **_PLAIN}),
    _trainer("paged_adamw_32bit", "bitsandbytes.optim.AdamW", {**_ADAM, **_32BIT, **_PAGED}),
    _trainer("paged_adamw_8bit", "bitsandbytes.optim.AdamW", {**_ADAM, **_8BIT, **_PAGED}),
    _trainer("ademamix", "bitsandbytes.optim.AdEMAMix", {**_ADEMAMIX, **_32BIT, **_PLAIN}),
    _trainer("ademamix_8bit", "bitsandbytes.optim.AdEMAMix", {**_ADEMAMIX, **_8BIT, **_PLAIN}),
    _trainer("paged_ademamix_32bit", "bitsandbytes.optim.AdEMAMix", {**_ADEMAMIX, **_32BIT, **_PAGED}),
    _trainer("paged_ademamix_8bit", "bitsandbytes.optim.AdEMAMix", {**_ADEMAMIX, **_8BIT, **_PAGED}),
    _trainer("lion_32bit", "bitsandbytes.optim.Lion", {**_LION, **_32BIT, **_PLAIN}),
    _trainer("lion_8bit", "bitsandbytes.optim.Lion", {**_LION, **_8BIT, **_PLAIN}),
    _trainer("paged_lion_32bit", "bitsandbytes.optim.Lion", {**_LION, **_32BIT, **_PAGED}),
    _trainer("paged_lion_8bit", "bitsandbytes.optim.Lion", {**_LION, **_8BIT, **_PAGED}),
    _trainer("rmsprop_bnb", "bitsandbytes.optim.RMSprop", {**_LR, **_32BIT}),
    _trainer("rmsprop_bnb_8bit", "bitsandbytes.optim.RMSprop", {**_LR, **_8BIT}),
    _trainer("rmsprop_bnb_32bit", "bitsandbytes.optim.RMSprop", {**_LR, **_32BIT}),
)

register_names(_TRAINER_TORCH)
register_names(_TRAINER_TRANSFORMERS)
register_names(_TRAINER_BITSANDBYTES)


_NOT_THE_CLASS = frozenset({"muon"})
"""Short names that mean something else: `muon` is Muon for matrices with AdamW for the rest (third_party_names.py)."""


def _class_names(module: str) -> Iterator[OptimizerName]:
    """Yield the classes of a module by their own names in lower case, as far as the names are still free."""
    for class_path in known_rules():
        owner, _, name = class_path.rpartition(".")
        if owner == module and name.lower() not in {*known_names(), *_NOT_THE_CLASS}:
            yield OptimizerName(name=name.lower(), class_path=class_path)


# Last, since they give way to every name above.
register_names(_class_names("torch.optim"))
register_names(_class_names("bitsandbytes.optim"))
