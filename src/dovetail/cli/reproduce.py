"""``dovetail reproduce module:factory``: what fails, as the smallest script that shows it."""

from __future__ import annotations

from typing import Any

import click

from dovetail.cli.command import Command, starting_with
from dovetail.cli.explain import backend_options
from dovetail.cli.factory import (
    FACTORY,
    factory_argument,
    load_factory,
    naming_mistakes_of,
)
from dovetail.cli.numbers import Above
from dovetail.cli.progress import progress
from dovetail.errors import CannotWrite
from dovetail.registry import list_backends


@click.command(
    cls=Command,
    notes=FACTORY,
    examples={
        "dovetail reproduce model.py:make": "Compile it in inference and compare with eager.",
        "dovetail reproduce model.py:make --train": "In training, gradients too.",
        "dovetail reproduce model.py:make --backends my_accel,cpu -o bug.py": (
            "The calls that fail there, as bug.py."
        ),
    },
)
@factory_argument
@click.option("-o", "--output", default="reproduction.py", show_default=True, metavar="FILE.py")
@click.option(
    "--backend",
    default="dovetail",
    show_default=True,
    help="Who compiles it.",
    shell_complete=starting_with(list_backends),
)
@click.option("--backends", metavar="A,B", help="Several, best first, separated by commas.")
@click.option("--train", is_flag=True, help="In training: gradients are compared too.")
@click.option(
    "--seconds",
    type=Above("seconds"),
    default=60.0,
    show_default=True,
    help="For making it smaller.",
)
def command(
    factory: str, output: str, backend: str, backends: str | None, train: bool, seconds: float
) -> int:
    """Find the smallest part of a model that fails, and write it as a script.

    It fails where it does not compile, does not run, or computes something else than eager, judged
    against float64. Exit status 1 where something failed, 0 where nothing did.
    """
    from dovetail.reproduce import reproduce

    options = backend_options(profile=False, backends=backends)
    with progress(f"loading {factory}") as shown:
        given = load_factory(factory)
        shown.say("looking for what fails")
        with naming_mistakes_of(given, factory):
            found = reproduce(
                given["model"],
                *given.get("args", ()),
                backend=backend,
                options=options,
                seconds=seconds,
                path=output,
                train=train,
                **(given.get("kwargs") or {}),
            )
    if found is None:
        results = "results and gradients" if train else "results"
        print(f"nothing failed: it compiles, and its {results} are as near to float64's as eager's")
        return 0
    _tell(found, output)
    return 1


def _tell(found: Any, output: str) -> None:
    try:
        files = found.write(output)
    except OSError as error:
        raise CannotWrite(f"cannot write {output!r}: {error.strerror or error}") from None
    print(f"failed    {found.failure.what}")
    print(f"stage     {found.failure.stage}")
    if found.source:
        print(f"line      {found.source['file']}:{found.source['line']}: {found.source['code']}")
    print(f"calls     {len(found.calls)} of {found.before}: {', '.join(found.calls)}")
    print(f"wrote     {', '.join(map(str, files))}")
