"""Estimates as text: the bytes of each optimizer, the peak and whose it is, what was assumed and what is missing."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from memsim.report.held import held_parts, phase_parts
from memsim.report.tables import fits, plain_table, render_parts
from memsim.results import Estimate, Estimates, Fit
from memsim.units import format_bytes


def render_estimates(
    estimates: Estimates, *, details: bool = False, width: int | None = None, color: bool = False
) -> str:
    """Return one line per estimate, where its peak is, and under them what was assumed and what is missing.

    Where the lines do not fit into `width` columns, each estimate has a block of its own. One estimate alone shows who
    holds its peak. With `details`, every phase and every state entry of every parameter follow.
    """
    columns = _columns(estimates)
    table = plain_table(columns)
    for estimate in estimates:
        table.add_row(*_cells(estimate, columns))
    figures = (table,) if fits(table, width) else tuple(_block(estimate, columns) for estimate in estimates)
    parts = (
        *heading(estimates[0]),
        *figures,
        *_peaks(estimates),
        *notes(estimates),
        *(_details(estimates) if details else ()),
    )
    return render_parts(parts, width=width, color=color)


def _columns(estimates: Estimates) -> tuple[str, ...]:
    """Return the titles: with the peaks where every estimate has them."""
    static = ("parameters", "buffers", "gradients", "state", "static total")
    columns = ["optimizer", *(["allocator"] if any(e.config.alloc_conf for e in estimates) else []), *static]
    if all(e.whole_step is not None for e in estimates):
        columns += ["peak allocated", "peak reserved", "nvidia-smi"]
        columns += ["left"] if any(e.fit is not None for e in estimates) else []
    else:
        columns += ["bytes/param", "step() adds", "on host"]
    return tuple(columns)


def _cells(estimate: Estimate, columns: Iterable[str]) -> list[str | Text]:
    static, step, peak = estimate.static, estimate.optimizer_step, estimate.peak
    cells: dict[str, str | Text] = {
        "optimizer": estimate.config.optimizer.name,
        "allocator": estimate.config.alloc_conf or "default",
        "parameters": format_bytes(static.parameter_bytes),
        "buffers": format_bytes(static.buffer_bytes),
        "gradients": format_bytes(static.gradient_bytes),
        "state": format_bytes(static.optimizer_state_bytes),
        "static total": Text(format_bytes(static.device_bytes), style="" if peak else "bold"),
        "bytes/param": f"{estimate.bytes_per_parameter:.2f}",
        "step() adds": format_bytes(step.later_step_peak_bytes) if step else "not known",
        "on host": format_bytes(static.optimizer_state_host_bytes),
        "left": _left(estimate.fit),
    }
    if peak is not None:
        cells["peak allocated"] = Text(format_bytes(peak.allocated_bytes), style="bold")
        cells["peak reserved"] = format_bytes(peak.reserved_bytes)
        cells["nvidia-smi"] = format_bytes(peak.device_bytes)
    return [cells[name] for name in columns]


def _left(fit: Fit | None) -> Text:
    if fit is None:
        return Text("-")
    if fit.fits:
        return Text(format_bytes(fit.left_bytes), style="green")
    return Text(f"-{format_bytes(fit.missing_bytes)}", style="bold red")


def _block(estimate: Estimate, columns: Iterable[str]) -> Table:
    """Return the figures of one estimate below each other."""
    block = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    block.add_column(no_wrap=True)
    block.add_column(justify="right", no_wrap=True)
    titles = tuple(columns)
    name, *figures = _cells(estimate, titles)
    block.add_row(Text(str(name), style="bold"))
    for title, figure in zip(titles[1:], figures, strict=True):
        block.add_row(f"  {title}", figure)
    return block


def heading(estimate: Estimate) -> tuple[Text, ...]:
    """Return the model, its size, and the choices that the peak depends on."""
    model, config = estimate.model, estimate.config
    kind = f"{model.model_class or 'class not known'}{f' ({config.task})' if config.task else ''}, {config.dtype}"
    counts = f"{model.num_parameters:,} parameters in {model.num_parameter_tensors:,} tensors"
    if model.num_trainable_parameters != model.num_parameters:
        counts += f", {model.num_trainable_parameters:,} of them trained"
    return Text(model.name, style="bold"), Text(f"{kind}; {counts}\n{_training(estimate)}")


def _training(estimate: Estimate) -> str:
    """Return the choices that the peak depends on, in a line."""
    config = estimate.config
    if estimate.whole_step is None:
        return ""
    words = [f"batch {config.batch_size}"]
    words += [f"{config.seq_len} tokens"] if config.seq_len is not None else []
    words += [f"autocast {config.autocast}"] if config.autocast != "none" else []
    words += ["activation checkpointing"] if config.activation_checkpointing else []
    words += [f"attention {config.attn_implementation}"] if config.attn_implementation else []
    if config.gradient_accumulation_steps > 1:
        words.append(f"{config.gradient_accumulation_steps} micro-batches a step")
    return f"{', '.join(words)}; {config.loop} loop\n"


def _peaks(estimates: Estimates) -> Iterable[Table | Text]:
    told = [estimate for estimate in estimates if estimate.whole_step is not None]
    for estimate in told:
        if estimate.whole_step is not None:
            before = f"{_label(estimate)}: " if len(told) > 1 else ""
            yield Text(f"\n{before}{estimate.whole_step.why}")
            yield from verdict(estimate.fit, before)
    if len(told) == 1 and told[0].whole_step is not None:
        yield from held_parts(told[0].whole_step.held)


def _label(estimate: Estimate) -> str:
    config = estimate.config
    return f"{config.optimizer.name}{f', {config.alloc_conf}' if config.alloc_conf else ''}"


def verdict(fit: Fit | None, before: str = "") -> Iterable[Text]:
    """Yield whether a step fits on the GPU that was named, after the words `before`."""
    if fit is None:
        return
    article = "an" if fit.gpu.startswith(("A", "N")) else "a"  # an NVIDIA, a Tesla, a GPU
    memory = format_bytes(fit.total_bytes)
    where = f"{article} {fit.gpu}{'' if fit.gpu.endswith(memory) else f' with {memory}'}"
    if not fit.fits:
        missing = format_bytes(fit.missing_bytes)
        yield Text(f"{before}It does not fit on {where}: {missing} are missing.", style="bold red")
        return
    share = f"{fit.needed_bytes / fit.total_bytes:.0%}"
    retries = f", after {fit.num_retries} retries that give cached memory back" if fit.num_retries else ""
    yield Text(f"{before}It fits on {where}: {format_bytes(fit.left_bytes)} are left ({share} used){retries}.")


def notes(estimates: Estimates) -> Iterable[Text]:
    """Yield the assumptions and the gaps of all estimates, each sentence once."""
    assumptions = dict.fromkeys(sentence for estimate in estimates for sentence in estimate.assumptions)
    if assumptions:
        yield Text("\nAssumed", style="bold")
        yield from (Text(f"  - {sentence}") for sentence in assumptions)
    gaps = dict.fromkeys(f"{gap.what} ({gap.where}): {gap.reason}" for est in estimates for gap in est.unmodeled)
    if gaps:
        yield Text("\nNot in these figures", style="bold yellow")
        yield from (Text(f"  - {gap}") for gap in gaps)


def _details(estimates: Estimates) -> Iterable[Table | Text]:
    for estimate in estimates:
        if estimate.phases:
            yield Text(f"\n{_label(estimate)}", style="bold")
            yield from phase_parts(estimate.phases)
        yield Text(
            f"\nOptimizer state, {estimate.config.optimizer.name} ({estimate.optimizer.class_path})", style="bold"
        )
        table = plain_table(("parameter", "entry", "shape", "dtype", "device", "bytes"))
        for row in estimate.state_rows():
            table.add_row(row.parameter, row.name, str(list(row.shape)), row.dtype, row.device, f"{row.nbytes:,}")
        yield table
