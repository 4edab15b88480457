"""The report as plain data. ``schema.json`` describes it; ``docs/report.md`` explains it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dovetail import __version__
from dovetail.history import CacheVerdict, Compilation, Copies, GraphRecord, SegmentRecord, Stage
from dovetail.page.program import count_kinds

if TYPE_CHECKING:
    from dovetail.report.collect import CompilationDetails, GraphDetails

FORMAT = "dovetail.report/1"  # the number changes when a field changes its meaning or goes


# What is said of a call, beside its placement, where nobody watched the compilation.
_UNSEEN: Mapping[str, Any] = {
    "text": "",
    "reads": [],
    "source": None,
    "module": "",
    "estimated_seconds": None,
    "expression": "",
    "instructions": [],
}


def report_data(
    compilations: Iterable[Compilation],
    details: Mapping[int, CompilationDetails] | None = None,
    graph_breaks: Sequence[dict[str, Any]] = (),
    limits: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything that is known of these compilations; ``details`` by their numbers."""
    known = details or {}
    return {
        "format": FORMAT,
        "dovetail": __version__,
        "graph_breaks": list(graph_breaks),
        "limits": dict(limits) if limits is not None else None,
        "compilations": [_compilation(c, known.get(c.number)) for c in compilations],
    }


def _compilation(compilation: Compilation, details: CompilationDetails | None) -> dict[str, Any]:
    graphs = details.graphs if details else {}
    return {
        "number": compilation.number,
        "backends": list(compilation.backends or (compilation.backend,)),
        "milliseconds": compilation.ms,
        "notes": list(compilation.notes),
        "cache": [_cache(found) for found in compilation.cache],
        "stages": [_stage(stage) for stage in compilation.stages],
        "graphs": [_graph(graph, graphs.get(graph.kind)) for graph in compilation.graphs],
        "kernels": details.kernels if details else [],
    }


def _cache(found: CacheVerdict) -> dict[str, Any]:
    named = _fields(found, "graph", "state", "reason", "key")
    return {**named, "nearest": list(found.nearest)}


def _stage(stage: Stage) -> dict[str, Any]:
    times = {"milliseconds": stage.ms}
    return _fields(stage, "name", "graph") | times | _fields(stage, "changed", "before", "after")


def _graph(graph: GraphRecord, details: GraphDetails | None) -> dict[str, Any]:
    home = {call: segment.name for segment in graph.segments for call in segment.calls}
    about = details.calls if details else {}
    programs = details.programs if details else {}
    return {
        "kind": graph.kind,
        "inputs": details.inputs if details else [],
        "outputs": details.outputs if details else [],
        "calls": [
            {**_call(verdict, home.get(verdict.call)), **about.get(verdict.call, _UNSEEN)}
            for verdict in graph.verdicts
        ],
        "segments": [_segment(s) | {"program": programs.get(s.name)} for s in graph.segments],
        "counts": graph_counts(graph, details),
        "copies": [_copies(copies) for copies in graph.copies()],
    }


def graph_counts(graph: GraphRecord, details: GraphDetails | None) -> dict[str, int] | None:
    """What one run of a graph consists of, by kind; None where nobody watched.

    ``elsewhere``: calls in segments of backends whose code cannot be read.
    """
    if details is None:
        return None
    programs = details.programs
    rows = (program["instructions"] for program in programs.values() if program)
    counts = count_kinds(row["kind"] for each in rows for row in each)
    unread = (len(s.calls) for s in graph.segments if not programs.get(s.name))
    return {**counts, "elsewhere": sum(unread)}


def _call(verdict: Any, segment: str | None) -> dict[str, Any]:
    return {
        "name": verdict.call,
        "op": verdict.op,
        "backend": verdict.backend,
        "segment": segment,
        "answers": [
            {
                "backend": backend,
                "takes": answer.ok,
                "reason": answer.reason,
                "cost_seconds": answer.cost or None,
            }
            for backend, answer in verdict.answers
        ],
        "selection": _selection(verdict.selection),
    }


def _selection(found: Any) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        **_fields(found, "chosen", "reason"),
        "rules": found.taken,
        "measured_seconds": dict(found.seconds),
        "modelled_seconds": dict(found.estimates),
    }


def _segment(segment: SegmentRecord) -> dict[str, Any]:
    measured = segment.measured
    sizes = ("inputs", "bytes_in", "outputs", "bytes_out", "kept", "bytes_kept")
    return {
        **_fields(segment, "name", "backend"),
        "ops": dict(segment.ops),
        **_fields(segment, *sizes, "reformats", "symbolic", "estimated_seconds"),
        "measured": {
            "calls": measured.calls,
            "mean_seconds": measured.seconds / measured.calls,
            "least_seconds": measured.least,
            "instructions": [
                {"name": name, "least_seconds": least} for name, least in measured.instructions()
            ],
        }
        if measured is not None and measured.calls
        else None,
        "copies": [_copies(copies) for copies in segment.copies],
        "text": segment.text,
    }


def _copies(copies: Copies) -> dict[str, Any]:
    return {"from": copies.source, "to": copies.target, **_fields(copies, "count", "bytes")}


def _fields(value: Any, *names: str) -> dict[str, Any]:
    """What the report calls as the record does."""
    return {name: getattr(value, name) for name in names}
