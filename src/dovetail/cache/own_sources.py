"""The digest of dovetail's own sources, kept in the cache's folder.

Reading and hashing all files takes some ten milliseconds of a warm start, asking the file system
for their state a third of that. As git does, a file counts as unchanged while its size, its times
and its inode are.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from dovetail.cache.folder import Untrusted, opened, read, replace
from dovetail.cache.settings import current
from dovetail.sources import digest_files, package_files

_SETTLED = 2.0  # seconds; a file may change twice within the resolution of its times
_LENGTH = 129  # two hashes in hex and what is between them


@cache
def own_digest() -> str:
    """A hash of dovetail's own sources and its extension module."""
    files = list(package_files())
    state, newest = _state(files)
    settings = current()
    name = f"sources-{hashlib.sha256(__file__.encode()).hexdigest()[:16]}"
    kept = _kept(settings.folder, name) if settings.enabled else ""
    if kept.startswith(state) and len(kept) == _LENGTH:
        return kept[-64:]
    digest = digest_files(files)
    if settings.enabled and time.time() - newest > _SETTLED:
        with suppress(OSError, Untrusted), opened(settings.folder, create=True) as folder:
            replace(folder, name, [f"{state} {digest}".encode()], sync=False)
    return digest


def _state(files: Sequence[tuple[str, Path]]) -> tuple[str, float]:
    """A hash of what the file system says of the files, and when one was last changed."""
    lines, newest = [], 0.0
    for name, path in sorted(files):
        info = os.stat(path)  # noqa: PTH116  # of two hundred files: a Path's costs more
        times = (info.st_mtime_ns, info.st_ctime_ns)
        newest = max(newest, *(t / 1e9 for t in times))
        lines.append(f"{name} {info.st_size} {times} {info.st_ino}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest(), newest


def _kept(folder: str, name: str) -> str:
    with suppress(OSError, Untrusted, UnicodeDecodeError), opened(folder) as handle:
        return (read(handle, name, limit=_LENGTH) or b"").decode("ascii")
    return ""
