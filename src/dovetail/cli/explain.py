"""``dovetail explain module:factory``: what runs where, and why, for a model of one's own.

The model is compiled and run as under ``torch.compile``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import click

from dovetail.cli.command import Command, refuse, starting_with
from dovetail.cli.factory import (
    FACTORY,
    factory_argument,
    load_factory,
    naming_mistakes_of,
)
from dovetail.cli.files import write_text
from dovetail.cli.modes import mode_option, mode_options
from dovetail.cli.progress import progress
from dovetail.errors import InvalidOption
from dovetail.registry import list_backends

_PRINTED = "-"  # instead of a file's name


class Explain(Command):
    """``--json`` alone prints; it takes the next word only where that is a file's name.

    Such a name ends in ``.json``, which no factory's does; ``--json=FILE`` takes any.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give a bare ``--json`` its value."""
        last = len(args) - 1
        for n, word in enumerate(args):
            if word == "--json" and (n == last or not args[n + 1].endswith(".json")):
                args[n] = f"--json={_PRINTED}"
        return super().parse_args(ctx, args)


@click.command(
    cls=Explain,
    notes=FACTORY,
    examples={
        "dovetail explain model.py:make": "What runs where, in the terminal.",
        "dovetail explain model.py:make --html page.html": "The same as a page, with all code.",
        "dovetail explain model.py:make --train --profile": "The backward graph too, measured.",
        "dovetail explain model.py:make --profile --trace trace.json": (
            "A timeline of the last run, for ui.perfetto.dev."
        ),
        "dovetail explain model.py:make --backends my_accel,cpu --plugin libmy_accel.so": (
            "Who takes which calls, and why not."
        ),
    },
)
@factory_argument
@click.option(
    "--backend",
    default="dovetail",
    show_default=True,
    help="Who compiles it.",
    shell_complete=starting_with(list_backends),
)
@click.option("--backends", metavar="A,B", help="Several, best first, separated by commas.")
@click.option(
    "--plugin", multiple=True, metavar="LIB.SO", help="A library that brings a backend; repeatable."
)
@mode_option
@click.option("--train", is_flag=True, help="The backward graph too.")
@click.option(
    "--profile", is_flag=True, help="Run it five times; measure segments and instructions."
)
@click.option("--calls", is_flag=True, help="A line for every call.")
@click.option(
    "--stages",
    is_flag=True,
    help="Every stage of the cpu backend instead: calls, expressions, kernels, schedules, code.",
)
@click.option(
    "--target", metavar="NAME", help="With --stages: the processor to show them for. [this one]"
)
@click.option(
    "--json",
    "json_file",
    metavar="[FILE.json]",
    help="As JSON, with every field: printed, or written to a file.",
)
@click.option("--html", metavar="FILE", help="Write a page that shows it all.")
@click.option("--trace", metavar="FILE", help="With --profile: write a trace for ui.perfetto.dev.")
@click.pass_context
def command(
    ctx: click.Context,
    factory: str,
    backend: str,
    backends: str | None,
    plugin: Sequence[str],
    mode: str | None,
    train: bool,
    profile: bool,
    calls: bool,
    stages: bool,
    target: str | None,
    json_file: str | None,
    html: str | None,
    trace: str | None,
) -> int:
    """Compile a model, run it, and show what runs where, and why."""
    if target is not None and not stages:
        refuse(ctx, "--target goes with --stages")
    if trace is not None and not profile:
        refuse(ctx, "--trace goes with --profile")
    options = backend_options(profile, backends, mode)
    for library in plugin:
        from dovetail.backends.plugin.backend import load_plugin

        load_plugin(library)
    with progress(f"loading {factory}") as shown:
        given = load_factory(factory)
        shown.say("compiling")
        with naming_mistakes_of(given, factory):
            texts = _stage_texts(given, target) if stages else []
            report = None if stages else _report(given, backend, options, train)
    if report is None:
        print(*texts, sep="\n")
        return 0
    written = _write(report, factory, html, json_file, trace)
    if json_file == _PRINTED:
        print(report.to_json())
    elif not written:
        _show(report)
    if calls and json_file != _PRINTED:
        print(report.calls())
    return 0


def _report(given: dict[str, Any], backend: str, options: dict[str, Any], train: bool) -> Any:
    from dovetail.report.report import explain, gradients

    kwargs = given.get("kwargs") or {}
    with gradients(train):
        return explain(
            given["model"], *given.get("args", ()), backend=backend, options=options, **kwargs
        )


def _show(report: Any) -> None:
    """Print it: by rich where that is installed, else as plain text."""
    if importlib.util.find_spec("rich") is None:
        print(report)
        return
    from dovetail.cli.terminal import show_report

    show_report(report.to_dict())


def _write(
    report: Any, title: str, html: str | None, json_file: str | None, trace: str | None
) -> bool:
    """Write the files that were asked for, and say so; whether there were any."""
    texts: dict[str, Callable[[], str]] = {}
    if html is not None:
        texts[html] = lambda: report.html(title=title)
    if json_file not in (None, _PRINTED):
        texts[str(json_file)] = report.to_json
    if trace is not None:
        texts[trace] = report.trace
    for path, text in texts.items():
        write_text(path, text())
        if json_file != _PRINTED:
            print(f"wrote {path}")
    return bool(texts)


def _stage_texts(given: dict[str, Any], name: str | None) -> list[str]:
    """Every stage of every segment and kernel, each with a heading."""
    from dovetail.codegen.llvm.target import named
    from dovetail.file.processors import target_here
    from dovetail.report.stages import back, cpu_segments, kernels_of, middle

    target = target_here() if name is None else named(name)
    options = {key: given[key] for key in ("kwargs", "dynamic_shapes") if key in given}
    texts = []
    for segment in cpu_segments(given["model"], given.get("args", ()), target, **options):
        stages = [(segment.name, stage) for stage in middle(segment, target)]
        for kernel in kernels_of(segment, target):
            where = f"{kernel.name} on {target.name}"
            stages += [(where, stage) for stage in back(kernel, target)]
        texts += [f"# ---- {s.name} of {where}\n\n{s.text}" for where, s in stages]
    return texts


def backend_options(profile: bool, backends: str | None, mode: str | None = None) -> dict[str, Any]:
    """Options of a compilation, from those of a command."""
    options: dict[str, Any] = {**mode_options(mode), **({"profile": True} if profile else {})}
    if backends is not None:
        names = [name.strip() for name in backends.split(",")]
        if "" in names:
            raise InvalidOption("--backends", backends, "names separated by commas")
        options["backends"] = names
    return options
