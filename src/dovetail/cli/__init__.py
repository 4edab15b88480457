"""The ``dovetail`` command: one module a subcommand, loaded when it is called."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dovetail import __version__
from dovetail.cli import backends
from dovetail.errors import DovetailError

COMMANDS = (backends,)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake ends in one line and status 2, never in a traceback."""
    parser = argparse.ArgumentParser(
        prog="dovetail", description="The open compiler stack behind torch.compile."
    )
    parser.add_argument("--version", action="version", version=f"dovetail {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in COMMANDS:
        module.add_parser(commands)
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except DovetailError as error:
        print(f"dovetail: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `dovetail … | head`
        sys.stderr.close()
        return 0
