"""Instructions by what they took, those of one name together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Cost(NamedTuple):
    """All instructions of one name in a run of a graph."""

    kind: str
    name: str
    seconds: float  # the least of each, added up
    runs: int
    bytes: int | None  # None: not known of one of them
    operations: int | None
    limit: float | None  # the share of the machine's limit, by the time that the limit would take
    bound: str  # what that limit is of most of their time


def slowest(rows: Iterable[Mapping[str, Any]]) -> list[Cost]:
    """The instructions that were measured, the slowest first."""
    named: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["measured_seconds"]:
            named.setdefault((row["kind"], row["name"]), []).append(row)
    found = [_cost(kind, name, held) for (kind, name), held in named.items()]
    return sorted(found, key=lambda each: -each.seconds)


def _cost(kind: str, name: str, rows: list[Mapping[str, Any]]) -> Cost:
    seconds = sum(row["measured_seconds"] for row in rows)
    placed = [row for row in rows if row["roofline"]]
    limit = bound = None
    if len(placed) == len(rows):
        limit = sum(r["roofline"]["share"] * r["measured_seconds"] for r in rows) / seconds
        bound = max(rows, key=lambda row: row["measured_seconds"])["roofline"]["bound"]
    moved, done = (_total(row[key] for row in rows) for key in ("bytes", "operations"))
    return Cost(kind, name, seconds, len(rows), moved, done, limit, bound or "")


def _total(parts: Iterable[int | None]) -> int | None:
    known = list(parts)
    return None if None in known else sum(part for part in known if part is not None)
