"""``dovetail backends``: what ``torch.compile(backend=…)`` can be given here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from dovetail import registry
from dovetail.cli.command import Command
from dovetail.cli.progress import progress
from dovetail.entries import BackendInfo

_COLUMNS = ("name", "tags", "device", "distribution", "available", "reason")


@click.command(
    cls=Command,
    examples={
        "dovetail backends": "Those that are meant for use.",
        "dovetail backends --check": "Load each, plug-ins too, and say which can run here.",
    },
)
@click.option("--all", "everything", is_flag=True, help="Also debug and experimental ones.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with every field.")
@click.option("--check", is_flag=True, help="Load each backend and ask whether it can run here.")
def command(everything: bool, as_json: bool, check: bool) -> int:
    """List what torch.compile(backend=...) can be given here."""
    with progress("asking each backend"):
        table = registry.backend_table(load=check)
    rows = [row for row in table if everything or not {*row.tags} & {*registry.HIDDEN_TAGS}]
    if as_json:
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
