"""Schedules of blocks of threads as text, both ways."""

from __future__ import annotations

from typing import Any

from dovetail.schedule.gpu.blocks import BlockSchedule
from dovetail.schedule.notation import COUNT, NAMES, WORD, Notation, written


def _parse_rows(text: str) -> tuple[int, int]:
    rows, columns, count = text.partition(", columns ")
    return int(rows), int(count) if columns else 0


# What may be decided, in the order in which it is written.
BLOCKS = {
    "rows": Notation(str, _parse_rows),
    "warps": COUNT,
    "persistent": WORD,
    "along": NAMES,
    "walked": NAMES,
    "places": COUNT,
    "online": WORD,
    "short": WORD,
    "picoseconds": COUNT,
}


def print_blocks(s: BlockSchedule) -> str:
    """A line a decision; what is not decided is not there."""
    decided = {
        "rows": f"{s.rows}, columns {s.columns}" if s.columns else s.rows,
        "warps": s.warps,
        "persistent": s.persistent,
        "along": s.along,
        "walked": s.walked,
        "places": 64 if s.wide else 32,
        "online": s.online,
        "short": s.short,
        "picoseconds": s.cost,
    }
    return "\n".join([f"schedule {s.target} {{", *written(decided, BLOCKS), "}", ""])


def parsed_blocks(target: str, found: dict[str, Any]) -> BlockSchedule:
    """The schedule that was decided so."""
    rows, columns = found.pop("rows")
    wide, cost = {32: False, 64: True}[found.pop("places")], found.pop("picoseconds", 0)
    return BlockSchedule(target, rows, columns, wide=wide, cost=cost, **found)
