"""``dovetail explain module:factory``: what runs where, and why, for a model of one's own.

The model is compiled and run as under ``torch.compile``.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from typing import Any

from dovetail.cli.factory import FACTORY, load_factory
from dovetail.cli.files import write_text
from dovetail.errors import InvalidOption


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("factory", metavar="MODULE:FACTORY", help=FACTORY)
    parser.add_argument("--backend", default="dovetail", help="who compiles it (%(default)s)")
    parser.add_argument(
        "--backends", metavar="A,B", help="several, best first, separated by commas"
    )
    parser.add_argument(
        "--plugin",
        metavar="LIBRARY",
        action="append",
        default=[],
        help="a library that brings a backend; may be repeated",
    )
    parser.add_argument("--train", action="store_true", help="the backward graph too")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="run it five times; measure segments and instructions",
    )
    parser.add_argument("--calls", action="store_true", help="a line for every call")
    parser.add_argument(
        "--stages",
        action="store_true",
        help="every stage of the cpu backend instead: calls, expressions, kernels, schedules, code",
    )
    parser.add_argument(
        "--target", metavar="NAME", help="with --stages, the processor to show them for (this one)"
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        nargs="?",
        const="-",
        help="as JSON, with every field: printed, or written to FILE",
    )
    parser.add_argument("--html", metavar="FILE", help="write a page that shows it all")


def run(arguments: argparse.Namespace) -> int:
    """Compile, run, print; exit status 0."""
    from dovetail.report.report import explain, gradients

    for library in arguments.plugin:
        from dovetail.backends.plugin.backend import load_plugin

        load_plugin(library)
    given = load_factory(arguments.factory)
    if arguments.stages:
        _print_stages(given, arguments.target)
        return 0
    with gradients(arguments.train):
        report = explain(
            given["model"],
            *given.get("args", ()),
            backend=arguments.backend,
            options=_options(arguments),
            **(given.get("kwargs") or {}),
        )
    written = _write(report, arguments)
    if arguments.json == "-":
        print(report.to_json())
    elif not written:
        _show(report)
    if arguments.calls and arguments.json != "-":
        print(report.calls())
    return 0


def _show(report: Any) -> None:
    """Print it: by rich where that is installed, else as plain text."""
    if importlib.util.find_spec("rich") is None:
        print(report)
        return
    from dovetail.cli.terminal import show_report

    show_report(report.to_dict())


def _write(report: Any, arguments: argparse.Namespace) -> bool:
    """Write the files that were asked for, and say so; whether there were any."""
    texts: dict[str, Callable[[], str]] = {}
    if arguments.html is not None:
        texts[arguments.html] = lambda: report.html(title=arguments.factory)
    if arguments.json not in (None, "-"):
        texts[arguments.json] = report.to_json
    for path, text in texts.items():
        write_text(path, text())
        if arguments.json != "-":
            print(f"wrote {path}")
    return bool(texts)


def _print_stages(given: dict[str, Any], name: str | None) -> None:
    from dovetail.codegen.llvm.target import named
    from dovetail.file.processors import target_here
    from dovetail.report.stages import back, cpu_segments, kernels_of, middle

    target = target_here() if name is None else named(name)
    options = {key: given[key] for key in ("kwargs", "dynamic_shapes") if key in given}
    for segment in cpu_segments(given["model"], given.get("args", ()), **options):
        for stage in middle(segment, target):
            print(f"# ---- {stage.name} of {segment.name}\n\n{stage.text}")
        for kernel in kernels_of(segment, target):
            for stage in back(kernel, target):
                print(f"# ---- {stage.name} of {kernel.name} on {target.name}\n\n{stage.text}")


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {"profile": True} if arguments.profile else {}
    if arguments.backends is not None:
        names = [name.strip() for name in arguments.backends.split(",")]
        if "" in names:
            raise InvalidOption("--backends", arguments.backends, "names separated by commas")
        options["backends"] = names
    return options
