"""The ``dovetail`` command. What it consists of is in ``group.py``, which needs ``click``."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    try:
        from dovetail.cli.group import run
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        print("dovetail: the command needs click: pip install 'dovetail[cli]'", file=sys.stderr)
        return 2
    return run(sys.argv[1:] if argv is None else argv)
