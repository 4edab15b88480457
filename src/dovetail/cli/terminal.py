"""A report in a terminal, by ``rich``: as wide as the terminal, 80 columns and plain in a pipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dovetail.place.worth import show_seconds
from dovetail.report.slowest import Cost, slowest
from dovetail.report.text import show_bytes

Data = Mapping[str, Any]
MOST_ROWS = 12  # of a table; the page and the JSON have the rest
_BAR = 16  # columns of a bar
_COLOURS = {"kernel": "blue", "library": "yellow", "host": "red", "copy": "magenta"}
_NOUNS = {"kernel": "generated kernel", "library": "library call", "host": "host call"}


def show_report(report: Data) -> None:
    """Print a report's data."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not report["compilations"]:
        console.print("nothing was compiled")
    for found in report["graph_breaks"]:
        console.print(Text(f"graph break: {_graph_break(found)}", style="red"))
    for compilation in report["compilations"]:
        for part in _compilation(compilation):
            console.print(part)
    show_limits(report["limits"])


def _compilation(compilation: Data) -> Iterator[Text | Table]:
    backends = ", ".join(compilation["backends"])
    title = f"compilation {compilation['number']}: backends {backends}"
    yield Text(f"{title}, {compilation['milliseconds']:.0f} ms", style="bold")
    for graph in compilation["graphs"]:
        yield from _graph(graph)
    yield Text()
    for note in compilation["notes"]:
        yield Text(f"note: {note}", style="yellow")
    for found in compilation["cache"]:
        near = found["nearest"]
        differs = f"; the nearest entry differs in {', '.join(near)}" if near else ""
        yield Text(f"cache, {found['graph']} graph: {found['state']} {found['reason']}{differs}")
    yield Text()
    yield _stages(compilation["stages"])


def _graph(graph: Data) -> Iterator[Text | Table]:
    calls, segments = len(graph["calls"]), len(graph["segments"])
    head = f"{graph['kind']} graph: {_plural(calls, 'call')}, {_plural(segments, 'segment')}"
    yield Text(f"\n{head}", style="bold")
    counts = graph["counts"]
    if counts:
        parts = [_plural(counts[kind], noun) for kind, noun in _NOUNS.items()]
        parts += [_plural(counts["elsewhere"], "call") + " elsewhere"] * bool(counts["elsewhere"])
        yield Text(f"a run: {', '.join(parts)}")
    plans = [s["program"]["memory"] for s in graph["segments"] if s["program"]]
    plans = [plan for plan in plans if plan]
    if plans:
        peak, total = (sum(plan[key] for plan in plans) for key in ("peak", "sum"))
        yield Text(f"arena {show_bytes(peak)} at its peak, {show_bytes(total)} without sharing")
    changes = sum(segment["reformats"] for segment in graph["segments"])
    if changes:
        yield Text(f"{_plural(changes, 'call')} that only change a tensor's layout")
    yield Text()
    yield _segments(graph["segments"])
    yield from _slowest(graph["segments"])
    yield from _refusals(graph["calls"])


def _segments(segments: Sequence[Data]) -> Table:
    rows = [
        (
            s["name"],
            s["backend"],
            str(sum(s["ops"].values())),
            show_bytes(s["bytes_in"]),
            show_bytes(s["bytes_out"]),
            show_bytes(s["bytes_kept"]),
            "-" if s["estimated_seconds"] is None else show_seconds(s["estimated_seconds"]),
            show_seconds(s["measured"]["least_seconds"]) if s["measured"] else "-",
        )
        for s in segments
    ]
    head = ("segment", "backend", "calls", "in", "out", "kept", "estimated", "measured")
    return _table(head, rows, right=range(2, 8))


def _slowest(segments: Sequence[Data]) -> Iterator[Text | Table]:
    """Instructions by the time that they took, those of one name together."""
    found = slowest(r for s in segments if s["program"] for r in s["program"]["instructions"])
    if found:
        yield Text()
        yield profile_table(found)


def profile_table(found: Sequence[Cost]) -> Table:
    """What each kernel took, its speed, and how near that is to the machine's limit."""
    total = sum(each.seconds for each in found)
    rows = [
        (
            show_seconds(each.seconds),
            f"{each.seconds / total:.0%}",
            f"{each.runs}x",
            each.kind,
            "-" if each.bytes is None else f"{each.bytes / each.seconds / 1e9:.3g}",
            "-" if each.operations is None else f"{each.operations / each.seconds / 1e9:.3g}",
            "-" if each.limit is None else f"{each.limit:.0%} {each.bound}",
            each.name.removeprefix("generated."),
        )
        for each in found
    ]
    head = ("took", "share", "runs", "work", "GB/s", "Gop/s", "of limit", "what")
    return _table(head, rows, right=(0, 1, 2, 4, 5, 6), styles=_COLOURS)


def show_limits(limits: Data | None) -> None:
    """Print what the machine does at most."""
    if limits is not None:
        told = f"{limits['bytes_per_second'] / 1e9:.3g} GB/s copied"
        told += f", {limits['operations_per_second'] / 1e9:.3g} Gop/s multiplied and added"
        console = Console(highlight=False, markup=False, emoji=False)
        console.print(Text(f"limits measured here, {limits['threads']} threads: {told}"))


def show_profile(rows: Iterable[Data], limits: Data | None) -> None:
    """Print what the instructions of one program took."""
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(profile_table(slowest(rows)))
    show_limits(limits)


def _refusals(calls: Iterable[Data]) -> Iterator[Text | Table]:
    counts: Counter[tuple[str, str, str]] = Counter()
    for call in calls:
        for answer in call["answers"]:
            if not answer["takes"]:
                counts[call["op"], answer["backend"], answer["reason"]] += 1
    if counts:
        yield Text()
        rows = [(op, f"{n}x", by, why) for (op, by, why), n in counts.most_common()]
        yield _table(("operator", "times", "refused by", "because"), rows, right=(1,))


def _stages(stages: Sequence[Data]) -> Table:
    most = max((stage["milliseconds"] for stage in stages), default=0) or 1
    rows = [
        (
            stage["name"],
            stage["graph"],
            f"{stage['milliseconds']:.2f}",
            "█" * round(_BAR * stage["milliseconds"] / most),
            "changed it" if stage["changed"] else "",
        )
        for stage in stages
    ]
    return _table(("stage", "graph", "ms", "", ""), rows, right=(2,), most=len(rows))


def _table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Iterable[int] = (),
    styles: Mapping[str, str] | None = None,
    most: int = MOST_ROWS,
) -> Table:
    """A table without borders; a cell that is a key of ``styles`` has that style."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    numbers = set(right)
    for n, name in enumerate(head):
        table.add_column(name, justify="right" if n in numbers else "left", overflow="fold")
    for row in rows[:most]:
        table.add_row(*(Text(cell, style=(styles or {}).get(cell, "")) for cell in row))
    if len(rows) > most:
        table.caption = f"and {len(rows) - most} more"
    return table


def _graph_break(found: Data) -> str:
    source = found["source"]
    where = f" ({source['file']}, line {source['line']}: {source['code']})" if source else ""
    return f"{found['reason'].strip().partition(chr(10))[0]}{where}"


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
