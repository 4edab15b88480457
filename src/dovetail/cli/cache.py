"""``dovetail cache``: what the cache of compiled graphs holds, and why something was not there."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict

import click

from dovetail.cache import manage
from dovetail.cache.bundle import read_bundle, write_bundle
from dovetail.cache.entry import EntryHeader
from dovetail.cache.local import Kept
from dovetail.cache.remote import shown
from dovetail.cache.seal import read_secret
from dovetail.cache.settings import current
from dovetail.cli.command import Command, Group
from dovetail.cli.keyfile import write_key
from dovetail.cli.progress import progress

_SECRET = 32  # bytes


@click.group(cls=Group)
def command() -> None:
    """Show, clear, explain and carry the cache of compiled graphs."""


_as_json = click.option("--json", "as_json", is_flag=True, help="As JSON, with every field.")


@command.command(cls=Command)
@_as_json
def stats(as_json: bool) -> None:
    """Say where the cache is and how full."""
    held, entries = current(), manage.entries()
    size = sum(kept.size for kept in entries)
    headers = [manage.local().header(kept.digest) for kept in entries]
    seconds = sum(header.seconds for header in headers if header)
    if as_json:
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


@command.command("ls", cls=Command)
@_as_json
def list_entries(as_json: bool) -> None:
    """List its entries, those used last first."""
    listed = [(kept, manage.local().header(kept.digest)) for kept in manage.entries()]
    if as_json:
        print(json.dumps([_row(*each) for each in listed], indent=2))
    elif listed:
        print(_table([_cells(*each) for each in listed]))


@command.command(cls=Command)
def clear() -> None:
    """Remove every entry."""
    print(f"removed {_entries(manage.clear())}")


@command.command(
    cls=Command,
    examples={
        "dovetail cache why": "Why the last graph that was compiled was not in the cache.",
        "dovetail cache why 3f09": "How the entry with this key differs from its nearest.",
    },
)
@click.argument("digest", required=False)
def why(digest: str | None) -> None:
    """Say which part of a key differs from the nearest entry's.

    DIGEST is how an entry's key begins; without, the last miss is explained.
    """
    print(manage.why(digest))


@command.command(
    cls=Command, examples={"dovetail cache export warm.dvtc": "All entries, for another machine."}
)
@click.argument("file", type=click.Path())
@click.argument("digests", nargs=-1)
def export(file: str, digests: Sequence[str]) -> None:
    """Write entries to a file for another machine.

    DIGESTS are how their keys begin; without, all entries are written.
    """
    with manage.usable(), progress(f"writing {file}"):
        if digests:
            whole = [manage.find(prefix).key.digest for prefix in digests]
        else:
            whole = [kept.digest for kept in manage.entries()]
        count = write_bundle(file, manage.local(), whole, _secret())
    sealed = "sealed with your key" if _secret() else "without a seal (DOVETAIL_CACHE_KEY)"
    print(f"wrote {_entries(count)} to {file}, {sealed}")


@command.command("import", cls=Command)
@click.argument("file", type=click.Path())
@click.option("--trust", is_flag=True, help="Vouch for the file: the code in it will run.")
def import_entries(file: str, trust: bool) -> None:
    """Take the entries of a file that export wrote."""
    with manage.usable(), progress(f"reading {file}"):
        count = read_bundle(file, manage.local(), _secret(), trust=trust)
    print(f"took {_entries(count)} from {file}")


@command.command("new-key", cls=Command)
@click.argument("file", type=click.Path())
def new_key(file: str) -> None:
    """Make the key that a remote cache needs."""
    write_key(file, os.urandom(_SECRET))
    print(f"wrote {file}; every machine that shares the cache needs a copy of it, and")
    print(f"DOVETAIL_CACHE_KEY={os.path.abspath(file)}")  # noqa: PTH100


def _remote() -> str:
    held = current()
    if not held.remote:
        return "none (DOVETAIL_CACHE_REMOTE)"
    if not held.key_file:
        return f"{shown(held.remote)}, not used: DOVETAIL_CACHE_KEY names no key"
    return f"{shown(held.remote)}, entries sealed with {held.key_file}"


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
