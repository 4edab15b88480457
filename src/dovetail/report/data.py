"""The report as plain data. ``schema.json`` describes it; ``docs/report.md`` explains it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dovetail import __version__
from dovetail.history import CacheVerdict, Compilation, Copies, GraphRecord, SegmentRecord, Stage

FORMAT = "dovetail.report/1"  # the number changes when a field changes its meaning or goes


def report_data(compilations: Iterable[Compilation]) -> dict[str, Any]:
    """Everything that is known of these compilations."""
    return {
        "format": FORMAT,
        "dovetail": __version__,
        "compilations": [_compilation(c) for c in compilations],
    }


def _compilation(compilation: Compilation) -> dict[str, Any]:
    return {
        "number": compilation.number,
        "backends": list(compilation.backends or (compilation.backend,)),
        "milliseconds": compilation.ms,
        "notes": list(compilation.notes),
        "cache": [_cache(found) for found in compilation.cache],
        "stages": [_stage(stage) for stage in compilation.stages],
        "graphs": [_graph(graph) for graph in compilation.graphs],
    }


def _cache(found: CacheVerdict) -> dict[str, Any]:
    named = _fields(found, "graph", "state", "reason", "key")
    return {**named, "nearest": list(found.nearest)}


def _stage(stage: Stage) -> dict[str, Any]:
    times = {"milliseconds": stage.ms}
    return _fields(stage, "name", "graph") | times | _fields(stage, "changed", "before", "after")


def _graph(graph: GraphRecord) -> dict[str, Any]:
    home = {call: segment.name for segment in graph.segments for call in segment.calls}
    return {
        "kind": graph.kind,
        "calls": [_call(verdict, home.get(verdict.call)) for verdict in graph.verdicts],
        "segments": [_segment(segment) for segment in graph.segments],
        "copies": [_copies(copies) for copies in graph.copies()],
    }


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
    }


def _segment(segment: SegmentRecord) -> dict[str, Any]:
    measured = segment.measured
    sizes = ("inputs", "bytes_in", "outputs", "bytes_out", "kept", "bytes_kept")
    return {
        **_fields(segment, "name", "backend"),
        "ops": dict(segment.ops),
        **_fields(segment, *sizes, "symbolic", "estimated_seconds"),
        "measured": {
            "calls": measured.calls,
            "mean_seconds": measured.seconds / measured.calls,
            "least_seconds": measured.least,
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
