"""One compilation a key, however many processes ask at once.

Whoever takes the key's lock compiles, the others wait for what it stores. A process that dies
gives its lock back, and one of those that wait compiles instead; none waits longer than the
settings say.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dovetail.cache import folder
from dovetail.cache.entry import Damaged
from dovetail.cache.folder import Untrusted
from dovetail.cache.key import Key
from dovetail.cache.local import LOCK, Local
from dovetail.cache.record import count, log
from dovetail.cache.settings import current

# Seconds between two looks: a compilation takes longer than the first, and few looks are needed.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05
_here = threading.local()


@contextmanager
def compiling(key: Key) -> Iterator[bytes | None]:
    """Yield None to the one process that shall compile (and ``store``), its payload to the rest.

    None also where there is no cache to wait by, and after the longest wait. Look the key up
    first: this counts neither hits nor misses.
    """
    held = current()
    mine: set[str] = _here.__dict__.setdefault("keys", set())
    if not held.enabled or key.digest in mine:  # compiled within its own compilation: no waiting
        yield None
        return
    mine.add(key.digest)
    lock = None
    try:
        lock, payload = _wait(Local(held.folder, held.size), key, held.wait)
        if payload is not None:
            count("waited")
            log.info("hit after waiting: %s", key)
        yield payload
    finally:
        mine.discard(key.digest)
        if lock:
            lock.release()


class _Lock:
    """A key's lock, held by this process."""

    def __init__(self, path: str, name: str, handle: int) -> None:
        self.path, self.name, self.handle, self.process = path, name, handle, os.getpid()

    def release(self) -> None:
        """Give it back and leave no file behind; a forked child has nothing to give back.

        Without its file nobody meets the lock again, although a child may hold it open.
        """
        if os.getpid() == self.process:
            with suppress(OSError, Untrusted), folder.opened(self.path) as opened:
                if folder.is_current(opened, self.name, self.handle):
                    folder.remove(opened, self.name)
        os.close(self.handle)


def _wait(local: Local, key: Key, longest: float) -> tuple[_Lock | None, bytes | None]:
    """The lock, or another's payload, or neither."""
    end = time.monotonic() + longest
    pause = _FIRST_PAUSE
    while True:
        try:
            lock = _try_lock(local.path, key.digest + LOCK)
        except (OSError, Untrusted) as error:
            log.info("compiling without a lock: %s", error)
            return None, None
        payload = _stored(local, key) if lock or local.has(key.digest) else None
        if payload is not None and lock:
            lock.release()
            lock = None
        if lock or payload is not None:
            return lock, payload
        if time.monotonic() >= end:
            log.info("compiling too: waited %g s for another process with %s", longest, key)
            return None, None
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _stored(local: Local, key: Key) -> bytes | None:
    try:
        return local.read(key.digest)
    except (OSError, Damaged, Untrusted):
        return None


def _try_lock(path: str, name: str) -> _Lock | None:
    """The lock, if nobody holds it. Its file may be removed before it is locked: look again."""
    with folder.opened(path, create=True) as opened:
        while True:
            handle = folder.keep(opened, name)
            if not folder.try_lock(handle):
                os.close(handle)
                return None
            if folder.is_current(opened, name, handle):
                return _Lock(path, name, handle)
            os.close(handle)
