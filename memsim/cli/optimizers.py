"""`memsim optimizers [NAME]`."""

from __future__ import annotations

from typing import Any

import click

from memsim.cli.options import complete_optimizer
from memsim.cli.output import Output, output_options
from memsim.errors import UsageError
from memsim.model import ParameterSpec
from memsim.optimizers import OptimizerState, derive_state, names, resolve_optimizer, rules, step_source
from memsim.report.frames import frame_of
from memsim.report.tables import render_facts, render_rows
from memsim.tensors import TensorSpec

_WEIGHT = ParameterSpec(
    name="model.layers.0.mlp.up_proj.weight", tensor=TensorSpec((4096, 4096), "bfloat16"), module_class="Linear"
)
"""What bytes per parameter are listed for: a square bf16 weight of a linear layer."""


@click.command("optimizers", short_help="Optimizers whose state memsim derives.")
@click.argument("name", required=False, shell_complete=complete_optimizer)
@output_options
def command(*, name: str | None, output: Output) -> None:
    """List every optimizer that memsim knows, or tell all about one.

    Bytes per parameter are those of the state of a bfloat16 weight [4096, 4096], on the device and on the host.
    """
    if name is None:
        _write_list(output)
    else:
        _write_one(name, output)


def optimizer_rows() -> list[dict[str, Any]]:
    """Return one row per name: the Trainer's first, then memsim's short names, then classes without a short name."""
    known = sorted(names().values(), key=lambda name: not name.framework)
    named = {name.class_path for name in known if not name.args}
    return [_row(name) for name in (*(name.name for name in known), *(path for path in rules() if path not in named))]


def _write_list(output: Output) -> None:
    rows = optimizer_rows()
    output.write(
        table=lambda width, color: render_rows(
            ("optimizer", "bytes/parameter", "on host", "class", "package"),
            [(r["optimizer"], _number(r["device"]), _number(r["host"]), r["class_path"], r["package"]) for r in rows],
            width=width,
            color=color,
        ),
        data=lambda: rows,
        frame=lambda: frame_of(rows),
    )


def _row(name: str) -> dict[str, Any]:
    optimizer = resolve_optimizer(name)
    rule = optimizer.rule
    state = _state(name)
    return {
        "optimizer": name,
        "class_path": rule.class_path,
        "device": state.device_bytes / _WEIGHT.tensor.numel if state else None,
        "host": state.host_bytes / _WEIGHT.tensor.numel if state else None,
        "package": f"{rule.package} {rule.version}",
        "source": rule.source,
        "compared": not rule.not_run,
        "not_run": rule.not_run,
        "ignores": rule.ignores,
    }


def _state(name: str) -> OptimizerState | None:
    """Return the state for the example weight; `None` where the optimizer does not take such a parameter."""
    try:
        return derive_state(resolve_optimizer(name), [_WEIGHT])
    except UsageError:
        return None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _write_one(name: str, output: Output) -> None:
    optimizer = resolve_optimizer(name)
    rule = optimizer.rule
    others = [n for n, known in names().items() if known.class_path == rule.class_path and n != name]
    state = _state(name)
    facts: dict[str, Any] = {
        **_row(name),
        "other_names": others,
        "arguments": {key: _plain(value) for key, value in optimizer.args.items()},
        "step": _step(name),
        "state": [row._asdict() for row in state] if state else [],
    }
    output.write(
        table=lambda width, color: render_facts(_lines(facts), width=width, color=color),
        data=lambda: facts,
        frame=lambda: frame_of(facts["state"]),
    )


def _step(name: str) -> str:
    """Return where the rule for the temporaries of `step()` was read, or why there is none."""
    known = step_source(resolve_optimizer(name))
    return f"{known.source}. {known.ignores}".removesuffix(". ") if known.rule else f"not modelled: {known.reason}"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    lines = [
        ("optimizer", facts["optimizer"]),
        ("class", facts["class_path"]),
        ("package", facts["package"]),
        ("source", facts["source"]),
        ("compared", "with the real optimizer's state" if facts["compared"] else f"no, only read: {facts['not_run']}"),
        ("ignores", facts["ignores"]),
        ("temporaries of step()", facts["step"]),
        ("other names", ", ".join(facts["other_names"])),
        ("arguments", ", ".join(f"{key}={value!r}" for key, value in facts["arguments"].items())),
        ("bytes/parameter", f"{_number(facts['device'])} on the device, {_number(facts['host'])} on the host"),
    ]
    shown = "state of a bfloat16 weight [4096, 4096]"
    for row in facts["state"]:
        lines.append(
            (shown, f"{row['name']} {list(row['shape'])} {row['dtype']} on {row['device']}, {row['nbytes']:,} B")
        )
        shown = " "
    return lines
