"""``dovetail cache``: what the cache of compiled graphs holds, and why something was not there."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict

from dovetail.cache import manage
from dovetail.cache.bundle import read_bundle, write_bundle
from dovetail.cache.entry import EntryHeader
from dovetail.cache.local import Kept
from dovetail.cache.remote import shown
from dovetail.cache.seal import read_secret
from dovetail.cache.settings import current
from dovetail.cli.keyfile import write_key

_SECRET = 32  # bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's actions."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary in {
        "stats": "where the cache is and how full",
        "ls": "list its entries, those used last first",
    }.items():
        action = actions.add_parser(name, help=summary, description=summary)
        action.add_argument("--json", action="store_true", help="as JSON, with every field")
    actions.add_parser("clear", help="remove every entry")
    why = actions.add_parser("why", help="say which part of a key differs from the nearest entry's")
    why.add_argument("digest", nargs="?", help="how an entry's key begins; without: the last miss")
    export = actions.add_parser("export", help="write entries to a file for another machine")
    export.add_argument("file", help="the file to write")
    export.add_argument("digests", nargs="*", help="how their keys begin; without: all entries")
    imported = actions.add_parser("import", help="take the entries of such a file")
    imported.add_argument("file", help="the file to read")
    imported.add_argument(
        "--trust", action="store_true", help="vouch for the file: the code in it will run"
    )
    new_key = actions.add_parser("new-key", help="make the key that a remote cache needs")
    new_key.add_argument("file", help="the file to write")


def run(arguments: argparse.Namespace) -> int:
    """Do it; exit status 0."""
    _ACTIONS[arguments.action](arguments)
    return 0


def _stats(arguments: argparse.Namespace) -> None:
    held, entries = current(), manage.entries()
    size = sum(kept.size for kept in entries)
    headers = [manage.local().header(kept.digest) for kept in entries]
    seconds = sum(header.seconds for header in headers if header)
    if arguments.json:
        facts = {
            "enabled": held.enabled,
            "folder": held.folder,
            "entries": len(entries),
            "bytes": size,
            "limit": held.size,
            "compile_seconds": seconds,
            "remote": shown(held.remote) if held.remote else None,
            "key": held.key_file or None,
        }
        print(json.dumps(facts, indent=2))
        return
    print(f"folder     {held.folder}{'' if held.enabled else ' (off: DOVETAIL_CACHE=0)'}")
    print(f"entries    {len(entries)}, {_bytes(size)} of {_bytes(held.size)}")
    print(f"compiling  {seconds:.1f} s for all of them")
    print(f"remote     {_remote()}")


def _remote() -> str:
    held = current()
    if not held.remote:
        return "none (DOVETAIL_CACHE_REMOTE)"
    if not held.key_file:
        return f"{shown(held.remote)}, not used: DOVETAIL_CACHE_KEY names no key"
    return f"{shown(held.remote)}, entries sealed with {held.key_file}"


def _list(arguments: argparse.Namespace) -> None:
    listed = [(kept, manage.local().header(kept.digest)) for kept in manage.entries()]
    if arguments.json:
        print(json.dumps([_row(*each) for each in listed], indent=2))
    elif listed:
        print(_table([_cells(*each) for each in listed]))


def _row(kept: Kept, header: EntryHeader | None) -> dict[str, object]:
    if header is None:
        return {**asdict(kept), "damaged": True}
    parts = {name: {"hash": hashed, "text": text} for name, hashed, text in header.key.parts}
    told = {"created": header.created, "seconds": header.seconds, "label": header.label}
    return {**asdict(kept), "damaged": False, **told, "parts": parts}


def _cells(kept: Kept, header: EntryHeader | None) -> list[str]:
    told = [f"{header.seconds:.2f} s", header.label] if header else ["-", "damaged"]
    return [kept.digest[:12], _bytes(kept.size), _ago(kept.used), *told]


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [["key", "size", "used", "compiling", "label"], *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _clear(_arguments: argparse.Namespace) -> None:
    print(f"removed {_entries(manage.clear())}")


def _why(arguments: argparse.Namespace) -> None:
    print(manage.why(arguments.digest))


def _export(arguments: argparse.Namespace) -> None:
    with manage.usable():
        if arguments.digests:
            digests = [manage.find(prefix).key.digest for prefix in arguments.digests]
        else:
            digests = [kept.digest for kept in manage.entries()]
        count = write_bundle(arguments.file, manage.local(), digests, _secret())
    sealed = "sealed with your key" if _secret() else "without a seal (DOVETAIL_CACHE_KEY)"
    print(f"wrote {_entries(count)} to {arguments.file}, {sealed}")


def _import(arguments: argparse.Namespace) -> None:
    with manage.usable():
        count = read_bundle(arguments.file, manage.local(), _secret(), trust=arguments.trust)
    print(f"took {_entries(count)} from {arguments.file}")


def _new_key(arguments: argparse.Namespace) -> None:
    write_key(arguments.file, os.urandom(_SECRET))
    print(f"wrote {arguments.file}; every machine that shares the cache needs a copy of it, and")
    print(f"DOVETAIL_CACHE_KEY={os.path.abspath(arguments.file)}")  # noqa: PTH100


_ACTIONS = {
    "stats": _stats,
    "ls": _list,
    "clear": _clear,
    "why": _why,
    "export": _export,
    "import": _import,
    "new-key": _new_key,
}


def _secret() -> bytes | None:
    key_file = current().key_file
    return read_secret(key_file) if key_file else None


def _entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


def _bytes(size: float) -> str:
    unit = "bytes"
    for larger in ("KB", "MB", "GB", "TB"):
        if size >= 1024:
            size, unit = size / 1024, larger
    return f"{size:.4g} {unit}"


def _ago(when: float) -> str:
    seconds = max(0.0, time.time() - when)
    for unit, length in {"d": 86400, "h": 3600, "min": 60}.items():
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
