"""The ``dovetail`` command: one module a subcommand, imported when it is called.

Exit status: 0 done, 1 what was asked for is not so (a file is not sound, a case could not be
measured), 2 a mistake of the user's, which is told in one line.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import click
from click.shell_completion import shell_complete

from dovetail import __version__
from dovetail.cli.command import DEBUG, LazyGroup, one_line, unexpected_line, usage_line
from dovetail.errors import DovetailError

COMMANDS = {
    "backends": "List what torch.compile(backend=...) can be given here.",
    "bench": "Time kernels and models against eager and Inductor.",
    "cache": "Show, clear, explain and carry the cache of compiled graphs.",
    "compile": "Compile a model to a .dvt file.",
    "completion": "Print what makes a shell complete this command.",
    "explain": "Compile a model and show what runs where, and why.",
    "inspect": "Show what a .dvt file holds.",
    "new": "Write a package with a backend of your own.",
    "reproduce": "Write the smallest script that shows what fails in a model.",
    "run": "Run a .dvt file on .npy files or random inputs.",
    "sign": "Sign a .dvt file, or make a key.",
    "verify": "Check a .dvt file, every byte of it.",
}
COMPLETE = "_DOVETAIL_COMPLETE"  # set by the script that `dovetail completion` prints

group = LazyGroup(
    "dovetail",
    package="dovetail.cli",
    summaries=COMMANDS,
    help="The open compiler stack behind torch.compile.",
    epilog="dovetail COMMAND --help shows a command's options, with examples.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
group = click.version_option(__version__, message="dovetail %(version)s")(group)


def run(argv: Sequence[str]) -> int:
    """Run a command; a mistake ends in one line and status 2, with ``--debug`` in a traceback."""
    if COMPLETE in os.environ:
        return shell_complete(group, {}, "dovetail", COMPLETE, os.environ[COMPLETE])
    wanted = "--debug" in argv
    try:
        with group.make_context("dovetail", list(argv)) as ctx:
            status = group.invoke(ctx)
            wanted = ctx.meta.get(DEBUG, False)
        sys.stdout.flush()
        return int(status or 0)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        return _failed(error, usage_line(error), wanted)
    except DovetailError as error:
        return _failed(error, f"dovetail: {one_line(error)}", wanted)
    except BrokenPipeError:  # `dovetail … | head`: nobody reads, so what is left goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, click.Abort):
        return 130
    except Exception as error:  # no check foresaw it: a user's model may raise anything
        return _failed(error, f"dovetail: {unexpected_line(error)}", wanted)


def _failed(error: Exception, line: str, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    print(line, file=sys.stderr)
    return 2
