"""Who held memory at a peak, and the peaks of every phase, as tables that every result shares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text

from memsim.ledger import Category
from memsim.report.tables import plain_table
from memsim.step import OutOfMemory
from memsim.step.held import Held
from memsim.step.peaks import HeldTensor, PhasePeak
from memsim.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table

_NUM_MODULES = 12
_UNNAMED = {Category.WORKSPACE: "cuBLAS workspace", Category.COMMUNICATION: "torch.distributed"}


def held_parts(held: Held) -> Iterable[Table | Text]:
    """Yield who held memory: by category, by module, the largest tensors."""
    moment = "at the peak" if held.moment == "peak" else "when memory ran out"
    yield Text(f"\nWhat held memory {moment}", style="bold")
    table = plain_table(("category", "bytes", "share"))
    for name, nbytes in held.by_category.items():
        table.add_row(name, format_bytes(nbytes), _share(nbytes, held.allocated_bytes))
    yield table
    yield Text("\nBy module", style="bold")
    table = plain_table(("module", "bytes", "share", "mostly"))
    for row in held.modules[:_NUM_MODULES]:
        name = f"{row.num_modules} x {row.module}" if row.num_modules > 1 else row.module
        most = next(iter(row.by_category), "")
        table.add_row(name, format_bytes(row.allocated_bytes), _share(row.allocated_bytes, held.allocated_bytes), most)
    rest = held.modules[_NUM_MODULES:]
    if rest:
        nbytes = sum(row.allocated_bytes for row in rest)
        table.add_row(f"{len(rest)} more", format_bytes(nbytes), _share(nbytes, held.allocated_bytes), "")
    yield table
    yield Text("\nLargest tensors", style="bold")
    columns: tuple[str, ...] = ("tensor", "bytes", "category", "shape", "dtype", "line")
    if not any(tensor.holder.line or tensor.holder.library_line for tensor in held.tensors):
        columns = columns[:-1]  # a step program has no lines of code
    table = plain_table(columns)
    for tensor in held.tensors:
        table.add_row(*_tensor_row(tensor)[: len(columns)])
    yield table


def _tensor_row(tensor: HeldTensor) -> tuple[str, ...]:
    holder = tensor.holder
    shape = str(list(holder.shape)) if holder.shape is not None else "not seen"
    line = " < ".join(dict.fromkeys(filter(None, (holder.library_line, holder.line)))) or "-"
    return (
        tensor_name(tensor),
        format_bytes(tensor.allocated_bytes),
        holder.category.value,
        shape,
        holder.dtype or "-",
        line,
    )


def tensor_name(tensor: HeldTensor) -> str:
    """Return the tensor's own name, or the module and operation that made it; `-` where nothing is known."""
    holder = tensor.holder
    return holder.name or " ".join(filter(None, (holder.module, holder.op))) or _UNNAMED.get(holder.category, "-")


def phase_parts(phases: Iterable[PhasePeak]) -> Iterable[Table | Text]:
    """Yield the peaks of every phase of every step."""
    yield Text("\nPhases", style="bold")
    table = plain_table(("phase", "step", "peak allocated", "at its end", "peak reserved", "mostly"))
    for phase in phases:
        most = next(iter(phase.by_category), "")
        table.add_row(
            phase.phase.value,
            str(phase.step),
            format_bytes(phase.peak_allocated_bytes),
            format_bytes(phase.end_allocated_bytes),
            format_bytes(phase.peak_reserved_bytes),
            most,
        )
    yield table


def oom_lines(oom: OutOfMemory) -> Iterable[Text]:
    """Yield where memory ran out, what was asked, what was free and what was held."""
    where = f"step {oom.step}, {oom.phase.value}{f', {oom.module}' if oom.module else ''}"
    yield Text(f"  asked         {format_bytes(oom.asked_bytes)} in {where}")
    yield Text(
        f"  free          {format_bytes(oom.free_bytes)} of {format_bytes(oom.total_bytes)}: "
        f"{format_bytes(oom.shortfall_bytes)} short at this moment"
    )
    cached = oom.reserved_bytes - oom.allocated_bytes
    yield Text(f"  held          {format_bytes(oom.allocated_bytes)} in tensors, {format_bytes(cached)} in the cache")
    if oom.line or oom.library_line:
        yield Text(f"  line          {oom.line or oom.library_line}")


def _share(nbytes: int, total: int) -> str:
    return f"{nbytes / total:.1%}" if total else "-"
