"""Muon for hidden matrices and Adam for everything else: one optimizer, or the two that people combine.

Read at muon-optimizer 0.1.0 (muon.py:85-240, Keller Jordan's), MoonshotAI/Moonlight and torch 2.13.0. Muon keeps one
momentum; its README leaves embeddings, the output head, gains and biases to Adam, which keeps two moments.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import register
from memsim.optimizers.rules import Arguments, Entries, like, python_number, step_tensor

ADAM_PATTERNS = (
    "*embed*",
    "*embd*",
    "*wte*",
    "*wpe*",
    "*shared.weight",
    "*lm_head*",
    "*embed_out*",
    "*output_projection*",
)
"""Names of input and output embeddings in common models."""

_FACTS: dict[str, Any] = {"package": "muon-optimizer", "version": "0.1.0"}
GROUPS: dict[str, Any] = {"adam_patterns": Optional(str, tuple, list)}
"""Patterns of the names that Adam takes besides vectors and embeddings; `None` is `ADAM_PATTERNS`."""
_SINGLE: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.0, "momentum": 0.95}


def takes_muon(parameter: ParameterSpec, args: Arguments) -> bool:
    """Return whether a parameter is a hidden matrix: two dimensions or more, and neither embedding nor head."""
    given = args["adam_patterns"]
    patterns = ADAM_PATTERNS if given is None else (given,) if isinstance(given, str) else given
    return (
        len(parameter.tensor.shape) >= 2
        and parameter.module_class != "Embedding"
        and not any(fnmatchcase(parameter.name, pattern) for pattern in patterns)
    )


@register("muon.SingleDeviceMuon", arguments=_SINGLE, source="muon.py:88-107", **_FACTS)
def single_device_muon(parameter: ParameterSpec, args: Arguments) -> Entries:  # noqa: ARG001
    """One momentum."""
    _refuse_what_it_fails_with(parameter)
    return (like("momentum_buffer", parameter),)


@register(
    "muon.SingleDeviceMuonWithAuxAdam",
    arguments={},
    source="muon.py:196-245",
    by_name=True,
    own_arguments=GROUPS,
    **_FACTS,
)
def muon_with_adam(parameter: ParameterSpec, args: Arguments) -> Entries:
    """One momentum for hidden matrices, Adam's two moments for the rest; `adam_patterns` names more of the latter."""
    if takes_muon(parameter, args):
        return single_device_muon(parameter, args)
    return (like("exp_avg", parameter), like("exp_avg_sq", parameter), python_number("step"))


def _refuse_what_it_fails_with(parameter: ParameterSpec) -> None:
    if len(parameter.tensor.shape) < 2:
        raise UsageError(
            f"{parameter.name} {parameter.tensor.shape}: muon 0.1.0 takes matrices only (muon.py:16 asserts it). "
            "Give the others to another optimizer with --param-group, or use muon.SingleDeviceMuonWithAuxAdam."
        )
    if len(parameter.tensor.shape) == 4:
        raise UsageError(
            f"{parameter.name} {parameter.tensor.shape}: muon 0.1.0 flattens a 4-D update and then cannot add it to "
            "the weight. Name the parameter in adam_patterns."
        )


@register(
    "moonlight.examples.toy_train.Muon",
    arguments={
        "lr": 1e-3,
        "wd": 0.1,
        "momentum": 0.95,
        "nesterov": True,
        "ns_steps": 5,
        "adamw_betas": (0.9, 0.95),
        "adamw_eps": 1e-8,
    },
    package="MoonshotAI/Moonlight",
    version="git abaa96e",
    source="examples/toy_train.py:57-215",
    not_run="it is no package",
    by_name=True,
    own_arguments=GROUPS,
    ignores="The example takes only embed_tokens and lm_head for embeddings; memsim the usual names of both.",
)
def moonlight_muon(parameter: ParameterSpec, args: Arguments) -> Entries:
    """One momentum for hidden matrices, two moments for the rest, and a flag that tells them apart."""
    flag = python_number("use_muon", "bool")
    if takes_muon(parameter, args):
        if len(parameter.tensor.shape) != 2:
            raise UsageError(
                f"{parameter.name} {parameter.tensor.shape}: Moonlight's Muon takes 2-D weights only. Name the "
                "parameter in adam_patterns."
            )
        return (flag, like("momentum_buffer", parameter))
    return (flag, python_number("step"), like("moment1", parameter), like("moment2", parameter))


@register(
    "Muon+AdamW",
    arguments={},
    package="torch",
    version="2.13.0",
    source="torch/optim/_muon.py, torch/optim/adam.py:168-191",
    by_name=True,
    own_arguments=GROUPS | {"fused": False},
    ignores="Arguments of the two optimizers, which change nothing in memory but AdamW's amsgrad and capturable.",
)
def torch_muon_and_adamw(parameter: ParameterSpec, args: Arguments) -> Entries:
    """`torch.optim.Muon` for 2-D hidden matrices and `torch.optim.AdamW` for all other parameters."""
    if len(parameter.tensor.shape) == 2 and takes_muon(parameter, args):
        return (like("momentum_buffer", parameter),)
    return (step_tensor(on_device=args["fused"]), like("exp_avg", parameter), like("exp_avg_sq", parameter))
