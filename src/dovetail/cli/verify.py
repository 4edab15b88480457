"""``dovetail verify model.dvt``: every check there is, constants and their digest included."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from dovetail.cli.inspect import why_untrusted
from dovetail.errors import ArtifactNotFound, DovetailError
from dovetail.ir.unsigned import verdict
from dovetail.runtime.loaded import CHECK_CONSTANTS, INSPECT, open_native
from dovetail.runtime.trust import SIGNATURES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("files", nargs="+", metavar="file", help="a .dvt file")
    parser.add_argument("--signed", action="store_true", help="demand a signature that is trusted")


def run(arguments: argparse.Namespace) -> int:
    """Check each file; exit status 0 if all are sound, else 1."""
    worst = 0
    for path in arguments.files:
        start = time.perf_counter()
        try:
            state, needs = _verify(path)
        except DovetailError as error:
            print(f"{path}: {error}")
            worst = 1
            continue
        sound = state == 1 or not arguments.signed
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
