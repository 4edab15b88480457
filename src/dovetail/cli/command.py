"""What all commands share: examples in the help, ``--debug``, one line for a mistake."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

DEBUG = "dovetail.debug"  # in a context's ``meta``: whether --debug was given
_EXAMPLES: Mapping[str, str] = {}


class Command(click.Command):
    """A click command that shows ``examples`` below its help and takes ``--debug``."""

    def __init__(
        self, *args: Any, examples: Mapping[str, str] = _EXAMPLES, notes: str = "", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples, self.notes = examples, notes
        self.params.append(debug_option())

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what else there is to know, then each example as it is typed."""
        if self.notes:
            formatter.write_paragraph()
            formatter.write_text(self.notes)
        if self.examples:
            with formatter.section("Examples"):
                for typed, what in self.examples.items():
                    formatter.write(f"{'':>{formatter.current_indent}}{typed}\n")
                    with formatter.indentation():
                        formatter.write_text(what)
        super().format_epilog(ctx, formatter)


class Group(click.Group):
    """A group of commands, with ``--debug``; says which command an unknown one may be."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.no_args_is_help = False  # to name no command is a mistake like any other
        self.params.append(debug_option())

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that was named; UsageError with the nearest name where there is none."""
        if self.get_command(ctx, args[0]) is None:
            known = self.list_commands(ctx)
            near = difflib.get_close_matches(args[0], known, 1)
            told = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            ctx.fail(f"no command {args[0]!r}: {told}")
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """Commands that are modules of a package, each with a ``command``, imported when called."""

    def __init__(
        self, *args: Any, package: str, summaries: Mapping[str, str], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.package, self.summaries = package, summaries

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Their names, in order."""
        return list(self.summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of a module."""
        if cmd_name not in self.summaries:
            return None
        found: click.Command = import_module(f"{self.package}.{cmd_name}").command
        return found

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        """List them without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries.items()))


def debug_option() -> click.Option:
    """The option ``--debug``, wherever it is written."""

    def note(ctx: click.Context, _option: click.Parameter, value: bool) -> None:
        if value:
            ctx.meta[DEBUG] = True

    return click.Option(
        ["--debug"],
        is_flag=True,
        expose_value=False,
        callback=note,
        is_eager=True,
        help="Show the traceback of an error.",
    )


def one_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split())


def usage_line(error: click.ClickException) -> str:
    """A mistake in the words of the command line, and where to read more."""
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else "dovetail"
    message = " ".join(error.format_message().split()).rstrip(".")
    return f"{path}: {message} (see {path} --help)"


def unexpected_line(error: Exception) -> str:
    """An error that no check foresaw: what it was and where it arose."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {one_line(error)}{where}; --debug shows the traceback"


def refuse(ctx: click.Context, message: str) -> NoReturn:
    """End with a mistake in how options go together."""
    raise click.UsageError(message, ctx)


Completer = Callable[[click.Context, click.Parameter, str], Sequence[str]]


def starting_with(names: Callable[[], Sequence[str]]) -> Completer:
    """Completion by the names that begin with what was typed."""

    def complete(_ctx: click.Context, _param: click.Parameter, typed: str) -> Sequence[str]:
        return [name for name in names() if name.startswith(typed)]

    return complete
