"""Entries in a folder of this machine, the least recently used removed when it is full.

Beside the entries lie ``size`` (how many bytes are there, at most), ``recent`` (the keys stored
last, which a miss is compared with), ``last_miss`` (the key of the last miss, for ``why``), and
the locks and temporary files of processes at work. Every one of them may be deleted at any time.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from dovetail.cache import entry, folder
from dovetail.cache.entry import Damaged, EntryHeader
from dovetail.cache.folder import Untrusted
from dovetail.cache.key import Key
from dovetail.cache.nearest import differing, nearest
from dovetail.cache.record import log

ENTRY, LOCK = ".entry", ".lock"
_SIZE, _RECENT, _LAST_MISS = "size", "recent", "last_miss"
# Bytes of ``recent``: one to two hundred keys, read and compared in two milliseconds.
_LONGEST_RECENT = 128 << 10
# Of a hash, in ``recent``: enough to tell parts apart, for words only.
_HEX = 16
# Seconds. Counting takes microseconds, looking at ten thousand entries a tenth of a second.
_LONGEST_COUNT = 1.0
# How full the folder is after entries were removed, so that the next stores need not look again.
_LEFT_FULL = 0.8
# An entry that gives one of these gives it again: another's, or on a broken disk.
_UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO)
# Seconds that a temporary file or lock stays although it seems to be nobody's: its process may
# be between opening and locking it.
_GRACE = 60.0


@dataclass(frozen=True)
class Kept:
    """An entry as the folder lists it."""

    digest: str
    size: int
    used: float
    """When it was stored or last read, in seconds since 1970."""


@dataclass(frozen=True)
class Local:
    """The entries of one folder, of at most ``size`` bytes in all."""

    path: str
    size: int

    def read(self, digest: str) -> bytes | None:
        """The payload of a key's entry. One that is not sound is removed, and ``Damaged``."""
        try:
            with folder.opened(self.path) as opened:
                return self._read(opened, digest)
        except FileNotFoundError:
            return None

    def write(self, key: Key, pieces: Sequence[bytes]) -> bool:
        """Keep an entry, unless it alone is too large; ``OSError`` or ``Untrusted`` if it fails."""
        length = sum(map(len, pieces))
        if length > self.size:
            log.info("not kept: %s has %d bytes, the cache may have %d", key, length, self.size)
            return False
        with folder.opened(self.path, create=True) as opened:
            self._reserve(opened, length)
            folder.replace(opened, key.digest + ENTRY, pieces, sync=True)
            _append_recent(opened, key)
        return True

    def has(self, digest: str) -> bool:
        """Whether there is an entry of this name, sound or not."""
        return os.path.lexists(f"{self.path}/{digest}{ENTRY}")

    def entries(self) -> list[Kept]:
        """All entries, those used last first."""
        try:
            with folder.opened(self.path) as opened:
                return sorted(_entries(opened), key=lambda kept: kept.used, reverse=True)
        except FileNotFoundError:
            return []

    def header(self, digest: str) -> EntryHeader | None:
        """What an entry says about itself, without a check of its payload; None: nothing sound."""
        try:
            with folder.opened(self.path) as opened:
                return _read_header(opened, digest + ENTRY)
        except (OSError, Damaged, Untrusted):
            return None

    def raw(self, digest: str) -> bytes | None:
        """All bytes of an entry, as they lie there."""
        with folder.opened(self.path) as opened:
            return folder.read(opened, digest + ENTRY, limit=self.size)

    def clear(self) -> list[Kept]:
        """Remove every entry, and what is remembered of earlier ones; the entries removed."""
        try:
            with folder.opened(self.path) as opened:
                removed = [
                    kept for kept in _entries(opened) if folder.remove(opened, kept.digest + ENTRY)
                ]
                _remove_abandoned(opened)
                for name in (_RECENT, _LAST_MISS, _SIZE):
                    folder.remove(opened, name)
                return removed
        except FileNotFoundError:
            return []

    def nearest(self, key: Key) -> tuple[str, ...]:
        """The names of the parts in which the nearest of the keys stored last differs."""
        try:
            with folder.opened(self.path) as opened:
                data = folder.read(opened, _RECENT, limit=2 * _LONGEST_RECENT) or b""
        except (OSError, Untrusted):
            return ()
        ours = {name: hashed[:_HEX] for name, hashed in key.hashes.items()}
        others = list(_parse_recent(data))[::-1]  # of equally near ones, the one stored last
        found = nearest(ours, others)
        return () if found is None else tuple(differing(ours, others[found]))

    def remember_miss(self, key: Key) -> None:
        """Keep the key of a miss for ``why``, where the folder can be written to."""
        with suppress(OSError, Untrusted), folder.opened(self.path) as opened:
            folder.replace(opened, _LAST_MISS, [entry.encode_key(key)], sync=False)

    def last_miss(self) -> tuple[Key, float] | None:
        """The key of the last miss and when it was, in seconds since 1970."""
        try:
            with folder.opened(self.path) as opened:
                return _read_last_miss(opened)
        except FileNotFoundError:
            return None

    def _read(self, opened: int, digest: str) -> bytes | None:
        name = digest + ENTRY
        try:
            with folder.reading(opened, name, limit=self.size) as handle:
                return None if handle is None else _read_and_touch(handle, digest)
        except (Damaged, Untrusted) as error:
            folder.remove(opened, name)
            raise Damaged(f"the entry was refused: {error}") from None
        except OSError as error:
            if error.errno in _UNREADABLE:
                folder.remove(opened, name)
            raise Damaged(f"the entry cannot be read: {error.strerror}") from None

    def _reserve(self, opened: int, length: int) -> None:
        """Count ``length`` bytes more, and make room where they would be too many.

        They are counted before they are written. A process that dies in between leaves the count
        too high, which the next look at the folder puts right.
        """
        handle = folder.keep(opened, _SIZE)
        try:
            if not folder.lock(handle, _LONGEST_COUNT):  # held by a process that was stopped
                folder.remove(opened, _SIZE)  # so that the next store looks and counts
                return
            text = os.pread(handle, 32, 0).strip()
            total = int(text) if text.isdigit() else None
            if total is None or total + length > self.size:
                total = _make_room(opened, self.size, length)
            os.pwrite(handle, b"%020d\n" % (total + length), 0)
        finally:
            os.close(handle)


def _read_and_touch(handle: int, digest: str) -> bytes:
    """The payload of an entry, which becomes the one that was used last."""
    payload = entry.read_payload(folder.taker(handle), os.fstat(handle).st_size, digest)
    with suppress(OSError):  # a folder that may only be read
        os.utime(handle)
    return payload


def _make_room(opened: int, size: int, length: int) -> int:
    """Remove entries until ``length`` more bytes fit; how many bytes are left."""
    _remove_abandoned(opened)
    entries = sorted(_entries(opened), key=lambda kept: kept.used)
    total = sum(kept.size for kept in entries)
    if total + length <= size:
        return total
    for kept in entries:
        if total + length <= _LEFT_FULL * size:
            break
        if folder.remove(opened, kept.digest + ENTRY):
            log.info("removed %s, used last of all: the cache is full", kept.digest[:12])
            total -= kept.size
    return total


def _remove_abandoned(opened: int) -> None:
    """Remove what processes left that were killed while they wrote or compiled."""
    for name, info in _files(opened, (folder.TEMPORARY, LOCK)):
        if info.st_mtime < time.time() - _GRACE:
            folder.remove_if_free(opened, name)


def _entries(opened: int) -> Iterator[Kept]:
    for name, info in _files(opened, (ENTRY,)):
        yield Kept(name.removesuffix(ENTRY), info.st_size, info.st_mtime)


def _files(opened: int, endings: tuple[str, ...]) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(opened) as found:
        names = [each for each in found if each.name.endswith(endings)]
    for each in names:
        with suppress(OSError):  # removed by another process meanwhile
            yield each.name, each.stat(follow_symlinks=False)


def _read_header(opened: int, name: str) -> EntryHeader | None:
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=opened)
    with os.fdopen(handle, "rb") as file:
        front = file.read(entry.FRONT)
        return entry.decode_header(front + file.read(entry.header_length(front)))


def _read_last_miss(opened: int) -> tuple[Key, float] | None:
    try:
        data = folder.read(opened, _LAST_MISS, limit=_LONGEST_RECENT)
        when = os.stat(_LAST_MISS, dir_fd=opened).st_mtime
        return None if data is None else (entry.decode_key(data), when)
    except (OSError, Damaged, Untrusted):
        return None


def _append_recent(opened: int, key: Key) -> None:
    """Add a line to ``recent``; what fails here costs words in a message."""
    line = "\t".join([key.digest, *(f"{name}\t{hashed[:_HEX]}" for name, hashed, _ in key.parts)])
    with suppress(OSError, Untrusted):
        handle = folder.keep(opened, _RECENT, os.O_APPEND)
        try:
            os.write(handle, f"{line}\n".encode())
            too_long = os.fstat(handle).st_size > _LONGEST_RECENT
        finally:
            os.close(handle)
        if too_long:
            data = folder.read(opened, _RECENT, limit=1 << 30) or b""
            folder.replace(opened, _RECENT, [data[-_LONGEST_RECENT // 2 :]], sync=False)


def _parse_recent(data: bytes) -> Iterator[dict[str, str]]:
    """The parts of each key, short hashes by name; half a line of a process that died is none."""
    for line in data.decode(errors="replace").splitlines():
        digest, *fields = line.split("\t")
        if len(digest) == 64 and len(fields) % 2 == 0 and all(len(h) == _HEX for h in fields[1::2]):
            yield dict(zip(fields[::2], fields[1::2], strict=True))
