"""``dovetail backends``: what ``torch.compile(backend=…)`` can be given here."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from dovetail import registry
from dovetail.entries import BackendInfo

_COLUMNS = ("name", "tags", "device", "distribution", "available", "reason")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--all", action="store_true", help="also debug and experimental ones")
    parser.add_argument("--json", action="store_true", help="as JSON, with every field")
    parser.add_argument(
        "--check", action="store_true", help="load each backend and ask whether it can run here"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the backends; exit status 0."""
    table = registry.backend_table(load=arguments.check)
    rows = [row for row in table if arguments.all or not {*row.tags} & {*registry.HIDDEN_TAGS}]
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        print(_table([_cells(row) for row in rows]))
        print(*_notes(rows, hidden=len(table) - len(rows)), sep="\n", end="")
    return 0


def _notes(rows: Sequence[BackendInfo], hidden: int) -> list[str]:
    """What the table leaves out, and the option that shows it."""
    notes = []
    if hidden:
        notes.append(f"{hidden} more with --all (debug and experimental)")
    if any(row.available is None for row in rows):
        notes.append(
            "what is not loaded (plug-ins, devices) was not asked; --check loads and asks each"
        )
    return ["", *notes, ""] if notes else []


def _cells(row: BackendInfo) -> list[str]:
    available = {True: "yes", False: "no", None: "not loaded"}[row.available]
    reason = " ".join(row.reason.split())
    columns = (row.name, ", ".join(row.tags), row.device, row.distribution, available)
    return [*(cell or "-" for cell in columns), reason]


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [list(_COLUMNS), *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
