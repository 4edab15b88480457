"""Files in a folder that nobody but its user can have written to.

The folder is opened and checked at each use, and what lies in it is reached through that open
folder: nothing can be exchanged in between, and a folder that was deleted is simply made again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Never through a link, and never waiting for the other end of a pipe.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_KEEP = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
TEMPORARY = ".tmp"


class Untrusted(Exception):
    """Others may have written it, or it is not what it should be; the text says what to do."""


@contextmanager
def opened(path: str, *, create: bool = False) -> Iterator[int]:
    """A descriptor of the folder, checked; ``Untrusted`` or ``OSError`` where there is none."""
    try:
        folder = _open_folder(path, create)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise Untrusted(_why_no_folder(path)) from None
        raise
    try:
        info = os.fstat(folder)
        if info.st_uid not in (0, os.geteuid()):
            raise Untrusted(f"{path} belongs to another user: set DOVETAIL_CACHE_DIR")
        if info.st_mode & _WRITABLE_BY_OTHERS:
            raise Untrusted(f"{path} may be written by others: chmod 700 it")
        yield folder
    finally:
        os.close(folder)


def read(folder: int, name: str, *, limit: int) -> bytes | None:
    """The contents of a file; None where there is none, ``Untrusted`` where it may be another's."""
    with reading(folder, name, limit=limit) as handle:
        return None if handle is None else taker(handle)(os.fstat(handle).st_size)


@contextmanager
def reading(folder: int, name: str, *, limit: int) -> Iterator[int | None]:
    """A file open for reading, checked, of at most ``limit`` bytes; None where there is none."""
    try:
        handle = os.open(name, _READ, dir_fd=folder)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Untrusted("it is a symbolic link") from None
        raise
    try:
        _check_file(os.fstat(handle), limit)
        yield handle
    finally:
        os.close(handle)


def taker(handle: int) -> Callable[[int], bytes]:
    """A function that gives the next bytes of a file: as many as asked for, or all there are."""

    def take(count: int) -> bytes:
        data = os.read(handle, count)
        while len(data) < count and (more := os.read(handle, count - len(data))):
            data += more  # the system gives at most two gigabytes at a time
        return data

    return take


def replace(folder: int, name: str, pieces: Sequence[bytes], *, sync: bool) -> None:
    """Write a file that readers see whole or not at all; ``sync``: also after a power failure.

    The temporary file is locked while it is written: a free one was left by a process that died.
    """
    temporary = f"{os.getpid()}-{os.urandom(8).hex()}{TEMPORARY}"
    handle = os.open(temporary, _CREATE, 0o600, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb", buffering=0):
            try_lock(handle)
            for piece in pieces:
                _write_all(handle, piece)
            if sync:
                os.fsync(handle)
            else:  # to replace a file, ext4 would first wait for the disk
                remove(folder, name)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        remove(folder, temporary)
        raise


def remove(folder: int, name: str) -> bool:
    """Remove a file, or the link of that name; False where that is not possible."""
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return False
    return True


def keep(folder: int, name: str, flags: int = 0) -> int:
    """Open for reading and writing a file that stays, made where there is none."""
    return os.open(name, _KEEP | flags, 0o600, dir_fd=folder)


def try_lock(handle: int) -> bool:
    """Take the file's lock, if nobody has it; file systems without locks give it to everyone."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def lock(handle: int, longest: float) -> bool:
    """Take the file's lock; False where another has it for more than ``longest`` seconds."""
    end = time.monotonic() + longest
    while not try_lock(handle):
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def is_current(folder: int, name: str, handle: int) -> bool:
    """Whether the open file is the one that has this name now."""
    try:
        named = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(named, os.fstat(handle))


def remove_if_free(folder: int, name: str) -> bool:
    """Remove a lock or temporary file whose process is gone."""
    try:
        handle = os.open(name, _READ, dir_fd=folder)
    except OSError:
        return False
    try:
        return try_lock(handle) and is_current(folder, name, handle) and remove(folder, name)
    finally:
        os.close(handle)


def _open_folder(path: str, create: bool) -> int:
    try:
        return os.open(path, _OPEN_FOLDER)
    except FileNotFoundError:
        if not create:
            raise
    os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)  # noqa: PTH102
    return os.open(path, _OPEN_FOLDER)


def _why_no_folder(path: str) -> str:
    what = "a symbolic link" if os.path.islink(path) else "no folder"  # noqa: PTH114
    return f"{path} is {what}: set DOVETAIL_CACHE_DIR to a folder of yours"


def _check_file(info: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise Untrusted("it is no regular file")
    if info.st_uid not in (0, os.geteuid()):
        raise Untrusted("it belongs to another user")
    if info.st_mode & _WRITABLE_BY_OTHERS:
        raise Untrusted("others may write to it")
    if info.st_size > limit:
        raise Untrusted(f"it has {info.st_size:,} bytes, more than the whole cache may")


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
