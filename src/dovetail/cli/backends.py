"""``dovetail backends``: what ``torch.compile(backend=…)`` can be given here."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dovetail import registry

_COLUMNS = ("name", "tags", "device", "distribution", "available", "reason")


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("backends", help="list backends", description=__doc__)
    parser.add_argument("--all", action="store_true", help="also debug and experimental ones")
    parser.add_argument("--json", action="store_true", help="as JSON, with every field")
    parser.add_argument(
        "--check", action="store_true", help="load each backend and ask whether it can run here"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the backends; exit status 0."""
    shown = set(registry.list_backends(exclude_tags=() if arguments.all else registry.HIDDEN_TAGS))
    rows = [row for row in registry.backend_table(load=arguments.check) if row.name in shown]
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        print(_table([_cells(row) for row in rows]))
        hidden = len(registry.list_backends(exclude_tags=())) - len(shown)
        if hidden:
            print(f"\n{hidden} more with --all (debug and experimental)")
    return 0


def _cells(row: registry.BackendInfo) -> list[str]:
    available = {True: "yes", False: "no", None: "not loaded"}[row.available]
    tags, device = ", ".join(row.tags) or "-", row.device or "-"
    return [row.name, tags, device, row.distribution, available, row.reason]


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [list(_COLUMNS), *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
