"""A snapshot as text: tables for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from devicekit.monitor.data import Gpu, GpuProcess, OwnMemory, Snapshot
from devicekit.monitor.reasons import sentence
from devicekit.records import Record

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["as_markdown", "as_rich", "size"]

NA = "N/A"
_NARROW = 80
_KINDS = {"compute": "C", "graphics": "G", "compute+graphics": "C+G"}
# What the rows show, by key, as the notes call it.
_SHOWN = {
    "cuda_index": "CUDA index",
    "name": "name",
    "temperature_celsius": "temperature",
    "power_milliwatts": "power",
    "power_limit_milliwatts": "power limit",
    "memory_used_bytes": "memory",
    "utilization_percent": "utilisation",
    "processes": "processes",
    "sm_percent": "utilisation",
    "process_bytes": "memory of this process",
}


@dataclass(frozen=True)
class Table:
    """A table before it has a form: the title, the headings and the cells."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    # The headings of the columns that hold words; the others hold numbers.
    words: frozenset[str]


def size(count: int | None) -> str:
    """Write a number of bytes for people, in the binary units of `nvidia-smi`.

    Example:
        >>> size(2 * 1024**3), size(300 * 1024**2), size(None)
        ('2.0 GiB', '300 MiB', 'N/A')
    """
    if count is None:
        return NA
    if count >= 1024**3:
        return f"{count / 1024**3:.1f} GiB"
    return f"{count / 1024**2:.0f} MiB"


def as_markdown(shot: Snapshot) -> str:
    """Return the snapshot as Markdown, which is readable as plain text too."""
    if not shot.gpus:
        return f"{shot.problem}\n{shot.remedy}\n"
    parts = [_headline(shot)]
    for table in _tables(shot, narrow=False):
        widths = [
            max(len(row[column]) for row in (table.heads, *table.rows))
            for column in range(len(table.heads))
        ]
        lines = [f"**{table.title}**", "", _line(table.heads, widths, table)]
        rule = [
            "-" * width if head in table.words else "-" * (width - 1) + ":"
            for head, width in zip(table.heads, widths, strict=True)
        ]
        lines.append("| " + " | ".join(rule) + " |")
        lines += [_line(row, widths, table) for row in table.rows]
        parts.append("\n".join(lines))
    notes = "\n".join(f"- {note}" for note in _notes(shot))
    return "\n\n".join([*parts, notes] if notes else parts) + "\n"


def _line(cells: Sequence[str], widths: Sequence[int], table: Table) -> str:
    padded = [
        cell.ljust(width) if head in table.words else cell.rjust(width)
        for cell, width, head in zip(cells, widths, table.heads, strict=True)
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in padded) + " |"


def as_rich(shot: Snapshot, *, width: int) -> RenderableType:
    """Return the snapshot as tables of rich.

    Args:
        shot: The snapshot.
        width: The columns of the terminal; on narrow ones the power limit is left out.
    """
    from rich import box
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    if not shot.gpus:
        return Text(f"{shot.problem}\n{shot.remedy}")
    parts: list[RenderableType] = [Text(_headline(shot))]
    for table in _tables(shot, narrow=width < _NARROW):
        table = _fitted(table, width)
        # ASCII draws the same on every terminal and in every log.
        drawn = RichTable(box=box.ASCII2, padding=(0, 1))
        for head in table.heads:
            drawn.add_column(head, justify="left" if head in table.words else "right", no_wrap=True)
        for row in table.rows:
            drawn.add_row(*(Text(cell, style="yellow" if cell == NA else "") for cell in row))
        parts += [Text(table.title, style="bold"), drawn]
    parts += [Text(note, style="dim") for note in _notes(shot)]
    return Group(*parts)


def _fitted(table: Table, width: int) -> Table:
    """Shorten the names so that the table is no wider than the terminal; numbers are never cut."""
    if "Name" not in table.heads:
        return table
    place = table.heads.index("Name")
    rows = (table.heads, *table.rows)
    others = sum(
        max(len(row[column]) for row in rows) + 3
        for column in range(len(table.heads))
        if column != place
    )
    space = max(width - others - 4, len("Name") + 2)

    def short(row: tuple[str, ...]) -> tuple[str, ...]:
        name = row[place]
        if len(name) > space:
            name = name[: space - 2] + ".."
        return (*row[:place], name, *row[place + 1 :])

    return replace(table, rows=tuple(short(row) for row in table.rows))


def _headline(shot: Snapshot) -> str:
    return f"NVIDIA driver {shot.driver or NA}, supports CUDA up to {shot.driver_max_cuda or NA}"


def _tables(shot: Snapshot, *, narrow: bool) -> Iterator[Table]:
    parts = [part for gpu in shot.gpus for part in (gpu, *gpu.mig_devices)]
    yield Table(
        "GPUs",
        ("GPU", "CUDA", "Name", "Temp", "Power", "Memory", "Util"),
        tuple(_gpu_row(part, narrow) for part in parts),
        frozenset({"Name"}),
    )
    running = [(part, process) for part in parts for process in part.processes]
    if running:
        yield Table(
            "Processes",
            ("GPU", "PID", "Type", "Memory", "SM", "Name"),
            tuple(_process_row(part, process) for part, process in running),
            frozenset({"Type", "Name"}),
        )
    own = [each for each in shot.own if each.reserved_bytes is not None]
    if own:
        yield Table(
            "This process",
            ("CUDA", "Allocated", "Reserved", "Peak", "NVML", "Context"),
            tuple(_own_row(each) for each in own),
            frozenset(),
        )


def _place(gpu: Gpu) -> str:
    """Return the number of a GPU, with that of the MIG device on it if it is one."""
    return str(gpu.nvml_index) + ("" if gpu.mig_index is None else f":{gpu.mig_index}")


def _gpu_row(gpu: Gpu, narrow: bool) -> tuple[str, ...]:
    power = _unit(gpu.power_milliwatts, 1000, "W")
    if not narrow:
        power += f" / {_unit(gpu.power_limit_milliwatts, 1000, 'W')}"
    return (
        _place(gpu),
        "-" if gpu.cuda_index is None else str(gpu.cuda_index),
        (gpu.name or NA).removeprefix("NVIDIA " if narrow else ""),
        _unit(gpu.temperature_celsius, 1, "C"),
        NA if power == f"{NA} / {NA}" else power,
        _memory(gpu, narrow),
        _unit(gpu.utilization_percent, 1, "%"),
    )


def _memory(gpu: Gpu, narrow: bool) -> str:
    if gpu.unified_memory:
        return "shared"
    if gpu.memory_total_bytes is None:
        return NA
    used, total = size(gpu.memory_used_bytes), size(gpu.memory_total_bytes)
    if narrow:
        return f"{used}/{total}".replace(" GiB", "G").replace(" MiB", "M")
    unit = f" {total.split()[1]}"
    return f"{used.removesuffix(unit)} / {total}"


def _unit(value: int | None, divisor: int, unit: str) -> str:
    return NA if value is None else f"{value / divisor:.0f}{unit}"


def _process_row(gpu: Gpu, process: GpuProcess) -> tuple[str, ...]:
    return (
        _place(gpu),
        f"{process.pid}{'*' if process.is_this_process else ''}",
        _KINDS[process.kind],
        size(process.memory_used_bytes),
        _unit(process.sm_percent, 1, "%"),
        process.name or NA,
    )


def _own_row(own: OwnMemory) -> tuple[str, ...]:
    return (
        str(own.cuda_index),
        size(own.allocated_bytes),
        size(own.reserved_bytes),
        size(own.peak_allocated_bytes),
        size(own.process_bytes),
        size(own.context_bytes),
    )


def _notes(shot: Snapshot) -> list[str]:
    """Return one line for each reason that made cells empty, with the cells."""
    # reason -> what is missing -> where
    missing: dict[str, dict[str, list[str]]] = {}
    for place, record in _records(shot):
        for key, why in record.reasons.items():
            if key not in _SHOWN or why == "not_applicable":
                continue
            what = _SHOWN[key]
            if "uuid" in record.reasons:
                what = "everything"
            places = missing.setdefault(why, {}).setdefault(what, [])
            if place not in places:
                places.append(place)
    lines = []
    if any(p.is_this_process for _, p in _records(shot) if isinstance(p, GpuProcess)):
        lines.append("* this process")
    for why, cells in missing.items():
        together: dict[str, list[str]] = {}
        for what, places in cells.items():
            together.setdefault(_join(places), []).append(what)
        found = "; ".join(f"{', '.join(whats)} of {places}" for places, whats in together.items())
        lines.append(f"{why}: {found}: {sentence(why)}.")
    return lines


def _join(places: list[str]) -> str:
    """Join places as in "GPU 0, 1 and processes on GPU 0"."""
    grouped: dict[str, list[str]] = {}
    for place in places:
        kind, _, number = place.rpartition(" ")
        grouped.setdefault(kind, []).append(number)
    return " and ".join(f"{kind} {', '.join(numbers)}" for kind, numbers in grouped.items())


def _records(shot: Snapshot) -> Iterable[tuple[str, Record]]:
    for gpu in shot.gpus:
        for part in (gpu, *gpu.mig_devices):
            yield f"GPU {_place(part)}", part
            for process in part.processes:
                yield f"processes on GPU {_place(part)}", process
    for own in shot.own:
        if own.reserved_bytes is not None:
            yield f"CUDA device {own.cuda_index}", own
