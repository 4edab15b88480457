"""The report for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dovetail.history import Compilation, Copies, GraphRecord, SegmentRecord
from dovetail.place.worth import show_seconds
from dovetail.report.data import graph_counts

if TYPE_CHECKING:
    from dovetail.report.collect import CompilationDetails, GraphDetails

MAX_SEGMENTS = 40  # the data has the rest
MAX_OPS = 4


def compilation_lines(
    compilation: Compilation, details: CompilationDetails | None = None
) -> Iterator[str]:
    """A compilation: its graphs, with segments and refusals, then notes and stages."""
    names = ", ".join(compilation.backends or (compilation.backend,))
    yield f"compilation {compilation.number}: backends {names}"
    for graph in compilation.graphs:
        counts = graph.backend_counts()
        where = ", ".join(f"{n} on {b}" for b, n in counts.items()) or "no calls"
        segments = _plural(len(graph.segments), "segment")
        yield f"  {graph.kind} graph: {_plural(sum(counts.values()), 'call')}, {segments}: {where}"
        yield from _runs(graph, details.graphs.get(graph.kind) if details else None)
        yield from _segments(graph)
        yield from _copies(graph.copies())
        yield from _reformats(graph)
        yield from _selections(graph)
        yield from _refusals(graph)
        yield from _cheaper(graph)
    for note in compilation.notes:
        yield f"  note: {note}"
    for found in compilation.cache:
        yield f"  cache, {found.graph} graph: {found}"
    yield f"  {'stage':<14}{'graph':<16}{'ms':>8}  changed"
    for stage in compilation.stages:
        changed = "yes" if stage.changed else ""
        yield f"  {stage.name:<14}{stage.graph:<16}{stage.ms:>8.2f}  {changed}".rstrip()


def _runs(graph: GraphRecord, details: GraphDetails | None) -> Iterator[str]:
    """What one run consists of: who does the work that the calls stand for."""
    counts = graph_counts(graph, details)
    if not counts or not any(counts.values()):
        return
    parts = [
        _plural(counts[kind], noun)
        for kind, noun in (
            ("kernel", "generated kernel"),
            ("library", "library call"),
            ("host", "host call"),
            ("copy", "copy"),
            ("device", "device call"),
        )
        if counts[kind] or kind in ("kernel", "library", "host")
    ]
    if counts["elsewhere"]:
        parts.append(f"{_plural(counts['elsewhere'], 'call')} as its backend runs them")
    yield f"    a run: {', '.join(parts)}"


def call_lines(compilation: Compilation) -> Iterator[str]:
    """A line for every call of every graph."""
    for graph in compilation.graphs:
        yield f"compilation {compilation.number}, {graph.kind} graph"
        width = max((len(v.call) for v in graph.verdicts), default=0)
        for verdict in graph.verdicts:
            why = "".join(f"; {name}: {reason}" for name, reason in verdict.refusals)
            by = f" by {selection_text(verdict.selection)}" if verdict.selection else ""
            yield f"  {verdict.call:<{width}}  {verdict.op}  on {verdict.backend}{by}{why}"


def _segments(graph: GraphRecord) -> Iterator[str]:
    rows = [_row(segment) for segment in graph.segments[:MAX_SEGMENTS]]
    if not rows:
        return
    head = ("segment", "backend", "calls", "in", "out", "kept", "estimated", "measured", "ops")
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"    {'  '.join(cells)}".rstrip()
    if len(graph.segments) > MAX_SEGMENTS:
        yield f"    and {len(graph.segments) - MAX_SEGMENTS} more"


def _row(segment: SegmentRecord) -> tuple[str, ...]:
    measured = segment.measured
    estimated = segment.estimated_seconds
    return (
        segment.name,
        segment.backend,
        str(len(segment.calls)),
        _tensors(segment.inputs, segment.bytes_in),
        _tensors(segment.outputs, segment.bytes_out),
        _tensors(segment.kept, segment.bytes_kept),
        "-" if estimated is None else show_seconds(estimated),
        f"{show_seconds(measured.least)} ({measured.calls}x)"
        if measured is not None and measured.calls
        else "-",
        _ops(segment.ops),
    )


def _ops(ops: dict[str, int]) -> str:
    """The most frequent operators, without what all of them share."""
    names = sorted(ops.items(), key=lambda item: -item[1])
    shown = [
        name.removeprefix("aten.").removesuffix(".default") + (f" {n}x" if n > 1 else "")
        for name, n in names[:MAX_OPS]
    ]
    more = len(names) - MAX_OPS
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _reformats(graph: GraphRecord) -> Iterator[str]:
    count = sum(segment.reformats for segment in graph.segments)
    if count:
        yield f"    {_plural(count, 'change')} of layout"


def _selections(graph: GraphRecord) -> Iterator[str]:
    """Which of several ways computes a call, and why; calls alike once."""
    counts: dict[tuple[str, Any], int] = {}
    for verdict in graph.verdicts:
        if verdict.selection is not None:
            key = verdict.op, verdict.selection
            counts[key] = counts.get(key, 0) + 1
    for (op, selection), times in counts.items():
        yield f"    {op} ({times}x) by {selection_text(selection)}"


def selection_text(selection: Any) -> str:
    """What was taken, why, and the seconds of all, the fastest first."""
    rows = sorted(selection.seconds or selection.estimates, key=lambda row: row[1])
    kind = "" if selection.seconds else ", modelled"
    listed = "; ".join(f"{name} {show_seconds(seconds)}" for name, seconds in rows)
    return f"{selection.chosen} ({selection.reason}{kind if rows else ''})" + (
        f": {listed}" if rows else ""
    )


def _copies(copies: list[Copies]) -> Iterator[str]:
    for each in copies:
        tensors = _tensors(each.count, each.bytes)
        yield f"    copies from {each.source} to {each.target}: {tensors} a call"


def _refusals(graph: GraphRecord) -> Iterator[str]:
    """Each distinct refusal once, with how often it occurred."""
    counts: dict[tuple[str, str, str], int] = {}
    for verdict in graph.verdicts:
        for backend, reason in verdict.refusals:
            key = (verdict.op, backend, reason)
            counts[key] = counts.get(key, 0) + 1
    for (op, backend, reason), times in counts.items():
        yield f"    {op} ({times}x) refused by {backend}: {reason}"


def _cheaper(graph: GraphRecord) -> Iterator[str]:
    """Calls that one backend takes and another runs, since it gives a lower cost."""
    counts: dict[tuple[str, str, str], int] = {}
    for verdict in graph.verdicts:
        for backend in _passed_over(verdict):
            key = (verdict.op, verdict.backend, backend)
            counts[key] = counts.get(key, 0) + 1
    for (op, backend, other), times in counts.items():
        yield f"    {op} ({times}x) on {backend}, which is cheaper than {other}"


def _passed_over(verdict: Any) -> Iterator[str]:
    """The backends before the one that runs a call that would have taken it."""
    for backend, answer in verdict.answers:
        if backend == verdict.backend:
            return
        if answer:
            yield backend


def _tensors(count: int, size: int) -> str:
    return f"{count} ({show_bytes(size)})" if count else "-"


def show_bytes(size: int) -> str:
    """A number of bytes in the unit that reads best."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} B"


def _plural(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun.removesuffix('y')}ies" if noun.endswith("y") else f"{number} {noun}s"
