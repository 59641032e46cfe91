"""Temporaries of the plainest classes of `pytorch_optimizer`, in their default form, read at 4.1.0.

They make the state of a whole group first. Then they go over its parameters, or in foreach form (their choice wherever
gradients are dense) over lists of all parameters of one dtype; what they make has the weights' shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from memsim.model import ParameterSpec
from memsim.optimizers.arguments import Optional
from memsim.optimizers.registry import known_rules
from memsim.optimizers.rules import Arguments
from memsim.optimizers.step import Frame, Tape, register_step, register_unmodelled_step, scalar

_HARMLESS = frozenset(
    {"lr", "betas", "beta", "eps", "weight_decay", "weight_decouple", "fixed_decay", "foreach", "maximize", "rho"}
    | {"final_lr", "gamma", "delta", "r", "weight_lr_power", "warmup_steps", "decoupling_c", "silent_sgd_phase"}
)
"""Arguments whose value changes numbers, or what is done in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """What one class makes for each parameter, and in foreach form for each dtype."""

    name: str
    """Class name."""
    source: str
    """File."""
    loop: tuple[str, ...] = ()
    """Variables of the for-loop form in the order of their assignment; `_make` reads how each is written."""
    foreach: tuple[str, ...] = ()
    """The same of the foreach form, where each is a list."""
    in_step: bool = False
    """Whether the for-loop's variables are those of `step()` itself, which live into the next group."""
    skips_first: bool = False
    """Whether the first step makes nothing but the state."""
    ignores: str = ""
    """What the form leaves out or takes for granted, in a sentence."""


def _step(form: _Form, tape: Tape, parameters: Sequence[ParameterSpec], args: Arguments) -> None:
    tape.create_state()
    if form.skips_first and tape.first_step:
        return
    if args.get("foreach") is False:
        with tape.step_frame() if form.in_step else tape.frame() as local:
            for p in parameters:
                for name in form.loop:
                    _make(local, name, [p], listed=False)
        return
    for group in by_first_dtype(parameters):
        with tape.frame() as local:
            for name in form.foreach:
                _make(local, name, group, listed=True)


def _make(local: Frame, name: str, group: list[ParameterSpec], *, listed: bool) -> None:
    """Write one assignment: `variable = operation(...)`, of a tensor or a list of them.

    `-variable` dies in the same expression. `variable*2` is `a(...).b(...)`: the first result dies after the second is
    there. `variable+` is `a(...).b_(c(...))`: what `c` makes dies before the variable changes. `variable=other` is one
    more name, `~variable` is the end of one, and `-()` is the number that `foreach_scalar_div_` puts into a tensor
    (utils/foreach.py:178).
    """
    variable = name.lstrip("-~").removesuffix("*2").removesuffix("+")
    if name == "-()":
        p = group[0]
        local.brief(scalar(p.tensor.dtype), parameter=p.name, name="numerator")
    elif "=" in name:
        new, old = name.split("=")
        local.alias(new, old)
    elif name.startswith("~"):
        local.forget(variable)
    elif listed:
        first = [local.open(p, name=variable) for p in group] if name.endswith("*2") else []
        local.new_each(variable, group)
        local.end(*reversed(first))
    elif name.endswith("+"):
        made = local.open(group[0], name=variable)
        local.brief(group[0], name=variable)
        local.receive(variable, made)
    else:
        local.new(variable, *group * (2 if name.endswith("*2") else 1))
    if name.startswith("-") and name != "-()":
        local.forget(variable)


def by_first_dtype(parameters: Sequence[ParameterSpec]) -> Iterator[list[ParameterSpec]]:
    """Yield the parameters of each dtype, the dtype that comes up first first (utils/foreach.py:63)."""
    groups: dict[str, list[ParameterSpec]] = {}
    for p in parameters:
        groups.setdefault(p.tensor.dtype, []).append(p)
    yield from groups.values()


def _refuses(class_path: str, args: Arguments) -> str:
    """Return the first argument that asks for another form than the one that was read."""
    for key, default in known_rules()[class_path].arguments.items():
        usual: Any = None if isinstance(default, Optional) else default
        if key not in _HARMLESS and args[key] != usual:
            return f"its step has been read for {key}={usual!r} only"
    return ""


_RECTIFIED = "A later step is one whose variance is rectified: with the default betas, from the sixth on."

_FORMS = (
    _Form(name="ADOPT", source="adopt.py", loop=("de_nom",), foreach=("de_noms", "normed_grads"), skips_first=True),
    _Form(name="AccSGD", source="sgd.py"),
    _Form(
        name="AdEMAMix", source="ademamix.py", loop=("de_nom", "update"), foreach=("de_noms", "updates"), in_step=True
    ),
    _Form(
        name="AdaBelief", source="adabelief.py", loop=("grad_residual", "de_nom"), foreach=("grad_residuals", "de_noms")
    ),
    _Form(name="AdaDelta", source="adadelta.py", loop=("std", "delta"), foreach=("stds", "deltas"), in_step=True),
    _Form(name="AdaMax", source="adamax.py", loop=("-grad_abs",), foreach=("grad_abs",)),
    _Form(name="AdaPNM", source="adapnm.py", loop=("de_nom", "update"), foreach=("de_noms", "updates"), in_step=True),
    _Form(name="AdamC", source="adamc.py", loop=("de_nom", "-update"), foreach=("de_noms", "updates"), in_step=True),
    _Form(name="AdamG", source="adamg.py", loop=("-scale", "de_nom"), foreach=("scales", "de_noms"), in_step=True),
    _Form(name="AdamWSN", source="snsm.py", loop=("square", "de_nom"), foreach=("squares", "de_noms"), in_step=True),
    _Form(name="Adan", source="adan.py", loop=("de_nom",), foreach=("de_noms",)),
    _Form(name="AggMo", source="aggmo.py"),
    _Form(name="DiffGrad", source="diffgrad.py", loop=("de_nom",), foreach=("de_noms",)),
    _Form(name="GrokFastAdamW", source="grokfast.py", loop=("de_nom",), foreach=("de_noms",)),
    _Form(name="Lion", source="lion.py", loop=("update",), foreach=("updates",)),
    _Form(name="PAdam", source="padam.py", loop=("de_nom",), foreach=("de_noms",)),
    _Form(name="PID", source="pid.py"),
    _Form(name="PNM", source="pnm.py", loop=("update",), foreach=("updates",), in_step=True),
    _Form(name="QHM", source="qhm.py"),
    _Form(name="SGDW", source="sgd.py"),
    _Form(name="SRMM", source="srmm.py"),
    _Form(name="ScheduleFreeSGD", source="schedulefree.py"),
    _Form(name="SignSGD", source="sgd.py", loop=("-update",), foreach=("updates",)),
    _Form(name="Tiger", source="tiger.py", loop=("-update",), foreach=("updates",)),
    _Form(name="AdaBound", source="adabound.py", loop=("de_nom", "-()"), foreach=("de_noms", "-()")),
    _Form(name="AdaMod", source="adamod.py", loop=("de_nom", "-()"), foreach=("de_noms", "-()")),
    _Form(
        name="AdaSmooth",
        source="adasmooth.py",
        loop=("p_diff", "-abs", "c+", "c_p2", "-square", "step_size", "-de_nom*2", "-neg"),
        foreach=("diffs", "-abs", "weights", "-sums", "-squares", "de_noms", "-()"),
        in_step=True,
    ),
    _Form(
        name="Ano",
        source="ano.py",
        loop=("square_grad", "sign_term*2", "de_nom=square_grad", "-update+"),
        foreach=("square_grads", "signs", "de_noms", "updates", "-exp_avg_signs"),
        in_step=True,
    ),
    _Form(
        name="DualAdam",
        source="dual_adam.py",
        loop=("exp_avg_hat", "de_nom", "update"),
        foreach=("exp_avg_hats", "de_noms", "updates"),
        in_step=True,
        ignores="Once the inverse rate is below switch_rate (with the default, after 99 steps) there is no update.",
    ),
    _Form(
        name="EXAdam",
        source="exadam.py",
        loop=("d1", "exp_avg_p2", "d2", "update", "-grad_hat", "-exp_avg_sq_hat", "de_nom=d2"),
        foreach=("d1*2", "d2", "denominators", "updates", "-grad_hats", "-exp_avg_sq_hats"),
        in_step=True,
    ),
    _Form(name="EmoLynx", source="emonavi.py", loop=("blended_grad",), foreach=("updates",), in_step=True),
    _Form(name="EmoNavi", source="emonavi.py", loop=("de_nom",), foreach=("de_noms",), in_step=True),
    _Form(
        name="FOCUS",
        source="focus.py",
        loop=("pbar_hat", "update+"),
        foreach=("pbar_hats", "updates", "-signs"),
        in_step=True,
    ),
    _Form(
        name="Grams",
        source="grams.py",
        loop=("de_nom", "update", "-sign"),
        foreach=("de_noms", "updates", "-signs"),
        in_step=True,
    ),
    _Form(
        name="Kate",
        source="kate.py",
        loop=("grad_p2", "-quotient", "update"),
        foreach=("grad_sqs", "-quotients", "updates"),
        in_step=True,
    ),
    _Form(
        name="RAdam", source="radam.py", loop=("de_nom",), foreach=("de_noms",), skips_first=True, ignores=_RECTIFIED
    ),
    _Form(
        name="ScheduleFreeAdamW",
        source="schedulefree.py",
        loop=("de_nom*2",),
        foreach=("corrected", "de_noms"),
        in_step=True,
    ),
    _Form(
        name="ScheduleFreeRAdam",
        source="schedulefree.py",
        loop=("de_nom",),
        foreach=("de_noms",),
        in_step=True,
        skips_first=True,
        ignores=_RECTIFIED,
    ),
    _Form(
        name="Yogi",
        source="yogi.py",
        loop=("grad_p2", "-sign", "de_nom"),
        foreach=("grad_p2", "-signs", "~grad_p2", "de_noms"),
    ),
)

for _form in _FORMS:
    _path = f"pytorch_optimizer.{_form.name}"
    register_step(
        _path,
        source=f"pytorch_optimizer/optimizer/{_form.source}, step",
        refuses=partial(_refuses, _path),
        ignores=_form.ignores,
    )(partial(_step, _form))

_HESSIAN = "its step() runs a second backward inside itself for the diagonal of the Hessian"
_PROJECTION = "whether an update is projected, and from which side, depends on the direction of the gradient"
for _name, _reason in {
    "AdaHessian": _HESSIAN,
    "SophiaH": _HESSIAN,
    "AdamP": _PROJECTION,
    "SGDP": _PROJECTION,
    "AliG": "its step() needs a closure that returns the loss",
    "SWATS": "the gradients decide at which step it turns from Adam to SGD",
}.items():
    register_unmodelled_step(f"pytorch_optimizer.{_name}", _reason)
