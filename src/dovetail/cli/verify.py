"""``dovetail verify model.dvt``: every check there is, constants and their digest included."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from dovetail.cli.command import Command
from dovetail.cli.inspect import why_untrusted
from dovetail.cli.progress import progress
from dovetail.errors import ArtifactNotFound, DovetailError
from dovetail.file.needs_trust import verdict
from dovetail.runtime.loaded import CHECK_CONSTANTS, INSPECT, open_native
from dovetail.runtime.trust import SIGNATURES


@click.command(
    cls=Command,
    examples={"dovetail verify --signed *.dvt": "Sound, and signed by a key that you trust."},
)
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option("--signed", is_flag=True, help="Demand a signature that is trusted.")
def command(files: Sequence[str], signed: bool) -> int:
    """Check every byte of .dvt FILES; exit status 1 where one is not sound."""
    worst = 0
    for path in files:
        start = time.perf_counter()
        try:
            with progress(f"verifying {path}"):
                state, needs = _verify(path)
        except DovetailError as error:
            print(f"{path}: {error}")
            worst = 1
            continue
        sound = state == 1 or not signed
        worst = worst if sound else 1
        milliseconds = (time.perf_counter() - start) * 1e3
        found = "sound" if sound else "refused"
        print(f"{path}: {found}, {SIGNATURES[state]}, {verdict(needs)} ({milliseconds:.0f} ms)")
    return worst


def _verify(path: str) -> tuple[int, list[str]]:
    """The state of its signature, and what only a trusted file may do."""
    if not Path(path).is_file():
        raise ArtifactNotFound(f"there is no file {path!r}")
    native = open_native(path, flags=CHECK_CONSTANTS | INSPECT)
    return native.signature(), why_untrusted(native)
