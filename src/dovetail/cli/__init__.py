"""The ``dovetail`` command: one module a subcommand, imported when it is called."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from dovetail import __version__
from dovetail.errors import DovetailError

# Each names a module here with add_arguments(parser) and run(arguments) -> exit status.
COMMANDS = {
    "backends": "list what torch.compile(backend=...) can be given here",
    "bench": "time kernels and models against eager and Inductor",
    "cache": "show, clear, explain and carry the cache of compiled graphs",
    "compile": "compile a model to a .dvt file",
    "explain": "compile a model and show what runs where, and why",
    "inspect": "show what a .dvt file holds",
    "new": "write a package with a backend of your own",
    "run": "run a .dvt file on .npy files or random inputs",
    "sign": "sign a .dvt file, or make a key",
    "verify": "check a .dvt file, every byte of it",
}


class Parser(argparse.ArgumentParser):
    """argparse, but a mistake is answered in one line."""

    def error(self, message: str) -> NoReturn:
        """End with status 2 and where to read more."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake ends in one line and status 2, never in a traceback."""
    arguments = _parse(sys.argv[1:] if argv is None else argv)
    try:
        status = int(arguments.run(arguments))
        sys.stdout.flush()
        return status
    except DovetailError as error:
        print(f"dovetail: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `dovetail … | head`: nobody reads, so what is left goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="dovetail", description="The open compiler stack behind torch.compile.")
    parser.add_argument("--version", action="version", version=f"dovetail {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    called = next((word for word in argv if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name == called:
            module = import_module(f"dovetail.cli.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser.parse_args(argv)
