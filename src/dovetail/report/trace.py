"""A report as a trace that Perfetto and Chrome's tracing show: JSON trace events.

Two processes: the compiler, with its stages one after another, and the last run of each graph, with
a thread for each, whose slices are instructions at the time at which the C runtime saw them begin.
A slice's arguments name the lines of the model that its kernel computes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

COMPILER, RUNS = 1, 2  # process ids of the trace
_MICRO = 1e6  # a trace counts microseconds
Event = dict[str, Any]


def trace_events(report: Mapping[str, Any]) -> dict[str, Any]:
    """The trace of a report's data, as an object of the trace event format."""
    events = [_named("process_name", COMPILER, 0, "dovetail: compiling")]
    events.append(_named("process_name", RUNS, 0, "dovetail: the last run"))
    thread = 0
    for compilation in report["compilations"]:
        events += _stages(compilation)
        for graph in compilation["graphs"]:
            thread += 1
            label = f"compilation {compilation['number']}, {graph['kind']} graph"
            events.append(_named("thread_name", RUNS, thread, label))
            events += _from_zero(_instructions(graph, thread))
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": _about(report)}


def trace_json(report: Mapping[str, Any]) -> str:
    """The same as text."""
    return json.dumps(trace_events(report))


def _about(report: Mapping[str, Any]) -> dict[str, Any]:
    return {"dovetail": report["dovetail"], "limits": report["limits"]}


def _named(what: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _slice(
    name: str, category: str, place: tuple[int, int], start: float, took: float, **args: Any
) -> Event:
    where = {"pid": place[0], "tid": place[1]}
    times = {"ts": start * _MICRO, "dur": took * _MICRO}
    return {"ph": "X", "name": name, "cat": category, **where, **times, "args": args}


def _stages(compilation: Mapping[str, Any]) -> Iterator[Event]:
    """Stages have durations alone: they are laid one behind another."""
    place = COMPILER, compilation["number"] + 1
    yield _named("thread_name", *place, f"compilation {compilation['number']}")
    at = 0.0
    for stage in compilation["stages"]:
        took = stage["milliseconds"] * 1e-3
        yield _slice(stage["name"], "stage", place, at, took, graph=stage["graph"])
        at += took


def _instructions(graph: Mapping[str, Any], thread: int) -> Iterator[Event]:
    sources = {call["name"]: call["source"] for call in graph["calls"]}
    for segment in graph["segments"]:
        program = segment["program"]
        for number, row in enumerate(program["instructions"] if program else ()):
            if row["last_started_seconds"] is None:
                continue
            yield _slice(
                row["name"],
                row["kind"],
                (RUNS, thread),
                row["last_started_seconds"],
                row["last_seconds"],
                segment=segment["name"],
                instruction=number,
                calls=row["calls"],
                lines=lines_of(sources.get(name) for name in row["calls"]),
                bytes=row["bytes"],
                operations=row["operations"],
                least_seconds=row["measured_seconds"],
                **({"roofline": row["roofline"]} if row["roofline"] else {}),
            )


def lines_of(sources: Iterable[Mapping[str, Any] | None]) -> list[str]:
    """Each line of the model once: where it is, and what it says."""
    told = (f"{s['file']}:{s['line']}: {s['code'].strip()}" for s in sources if s)
    return list(dict.fromkeys(told))


def _from_zero(events: Iterable[Event]) -> list[Event]:
    """A graph's last run begins at zero: the clock's own numbers say nothing to a reader."""
    found = list(events)
    first = min((event["ts"] for event in found), default=0.0)
    return [{**event, "ts": event["ts"] - first} for event in found]
