"""A cache that machines share, which may be down, slow, full or hostile.

A lookup waits for it a short time, a store never: a thread writes what a bounded queue holds. After
a failure it is left alone for a while. One warning a process says so, and the folder of this
machine serves alone.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn, TypeVar

from dovetail.cache.entry import Damaged
from dovetail.cache.record import log, warn_once
from dovetail.cache.seal import HOW_TO_MAKE_A_KEY, name_of, read_secret, seal, unseal
from dovetail.cache.servers import Server, connect, load_client
from dovetail.cache.settings import Settings
from dovetail.errors import InvalidKey
from dovetail.locks import ForkLock

# Seconds that a lookup waits for an answer, whole: about what compiling a small graph takes. The
# first also imports what a kind of server needs, and connects.
_DEADLINE, _FIRST_DEADLINE = 2.0, 3.0
# Seconds after a failure in which nothing is tried again; they double with each failure.
_FIRST_REST, _LONGEST_REST = 30.0, 600.0
# Seconds that the end of a process waits for what is still to be written.
_AT_EXIT = 2.0
# Seconds that closing a failed connection may take.
_CLOSE = 0.1
# Characters of what a library says; it may quote what a server sent.
_LONGEST_REASON = 200
# Entries that wait to be written, and their bytes.
_LONGEST_QUEUE, _LARGEST_QUEUE = 64, 256 << 20
# Bytes; Redis holds no larger values.
LARGEST = 512 << 20
_Answer = TypeVar("_Answer")


class Breaker:
    """Open after a failure, for longer after each: nothing is tried."""

    def __init__(self) -> None:
        self._until, self._rest = 0.0, _FIRST_REST

    @property
    def is_open(self) -> bool:
        """Whether to try nothing now."""
        return time.monotonic() < self._until

    def failed(self) -> None:
        """Try nothing for a while."""
        self._until = time.monotonic() + self._rest
        self._rest = min(2 * self._rest, _LONGEST_REST)

    def worked(self) -> None:
        """Forget earlier failures."""
        self._rest = _FIRST_REST


class Remote:
    """One remote cache, as this process uses it."""

    def __init__(self, url: str, secret: bytes) -> None:
        self.shown = shown(url)
        self._url, self._secret = url, secret
        self._server: Server | None = None
        self._lock = ForkLock()
        # Apart: a full server can still be read, and a bad entry be replaced.
        self._reading, self._writing = Breaker(), Breaker()
        self._writer = WriteThread(self._write)

    def read(self, digest: str) -> bytes | None:
        """The entry of a key, authenticated; None where there is none or no telling."""
        if self._reading.is_open:
            return None
        name = name_of(self._secret, digest)
        deadline = _DEADLINE if self._server else _FIRST_DEADLINE
        try:
            data = within(deadline, lambda: self._connected().get(name, LARGEST))
            entry = None if data is None else self._unsealed(digest, data)
        except Exception as error:  # of any library, of a server that may answer anything
            self._failed(self._reading, "read", error)
            return None
        self._reading.worked()
        return entry

    def write_later(self, digest: str, pieces: Sequence[bytes]) -> None:
        """Have an entry written, unless too much waits to be written already."""
        size = sum(map(len, pieces))
        if size < LARGEST and not self._writing.is_open:
            if not self._writer.add(digest, pieces, size):
                log.info("not written to %s: too much waits to be written", self.shown)

    def flush(self, seconds: float) -> bool:
        """Wait until everything is written; False where that takes longer."""
        return self._writer.flush(seconds)

    def _unsealed(self, digest: str, data: bytes) -> bytes:
        if len(data) > LARGEST:
            raise Damaged(f"an entry there has more than {LARGEST:,} bytes")
        return unseal(self._secret, digest, data)

    def _write(self, digest: str, pieces: Sequence[bytes]) -> None:
        if self._writing.is_open:
            return
        try:
            data = seal(self._secret, digest, pieces)
            self._connected().put(name_of(self._secret, digest), data)
            self._writing.worked()
            log.info("written to %s: %s, %d bytes", self.shown, digest[:12], len(data))
        except Exception as error:  # as above
            self._failed(self._writing, "write to", error)

    def _connected(self) -> Server:
        with self._lock:
            if self._server is None:
                self._server = connect(self._url)
            return self._server

    def _failed(self, breaker: Breaker, action: str, error: Exception) -> None:
        breaker.failed()
        reason = f"{type(error).__name__}: {error}".replace(self._url, self.shown)[:_LONGEST_REASON]
        warn_once("remote", f"cannot {action} the cache at {self.shown}, local only: {reason}")
        if self._server is not None:
            with suppress(Exception):
                within(_CLOSE, self._server.close)


class WriteThread:
    """A thread that writes entries one after the other, started with the first of them."""

    def __init__(self, write: Callable[[str, Sequence[bytes]], None]) -> None:
        self._write = write
        self._entries: queue.Queue[tuple[str, Sequence[bytes], int]] = queue.Queue(_LONGEST_QUEUE)
        self._waiting = threading.Condition()
        self._bytes, self._count = 0, 0
        self._thread: threading.Thread | None = None

    def add(self, digest: str, pieces: Sequence[bytes], size: int) -> bool:
        """Have an entry written; False where too many wait."""
        with self._waiting:
            if self._bytes + size > _LARGEST_QUEUE and self._count:
                return False
            try:
                self._entries.put_nowait((digest, pieces, size))
            except queue.Full:
                return False
            self._bytes, self._count = self._bytes + size, self._count + 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="dovetail cache writer", daemon=True
                )
                self._thread.start()
            return True

    def flush(self, seconds: float) -> bool:
        """Wait until everything is written; False where that takes longer."""
        with self._waiting:
            return self._waiting.wait_for(lambda: not self._count, seconds)

    def _run(self) -> None:
        while True:
            digest, pieces, size = self._entries.get()
            self._write(digest, pieces)
            with self._waiting:
                self._bytes, self._count = self._bytes - size, self._count - 1
                self._waiting.notify_all()


_remotes: dict[tuple[str, str], Remote | None] = {}
_lock = ForkLock()


def remote(held: Settings) -> Remote | None:
    """The remote cache of these settings; None where there is none, or no key to trust it by."""
    if not held.remote:
        return None
    with _lock:
        chosen = (held.remote, held.key_file)
        if chosen not in _remotes:
            _remotes[chosen] = _make(held)
        return _remotes[chosen]


def flush(seconds: float = _AT_EXIT) -> None:
    """Wait for what is still to be written, so long at most in all."""
    end = time.monotonic() + seconds
    for each in list(_remotes.values()):
        if each is not None:
            each.flush(max(0.0, end - time.monotonic()))


def forget() -> None:
    """Start anew: keys are read and servers asked again."""
    _remotes.clear()


def within(seconds: float, work: Callable[[], _Answer]) -> _Answer:
    """What ``work`` returns or raises in its own thread, which is left to itself after a while."""
    answers: queue.SimpleQueue[Callable[[], _Answer]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answer = work()
            answers.put(lambda: answer)
        except Exception as error:
            answers.put(partial(_raise, error))

    threading.Thread(target=run, name="dovetail cache reader", daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    return answer()


def _raise(error: Exception) -> NoReturn:
    raise error


def shown(url: str) -> str:
    """A URL without the user, password and options that it may hold."""
    scheme, _, rest = url.partition("://")
    place = rest.partition("?")[0].partition("/")[0].rpartition("@")[2]
    return f"{scheme}://{place}"


def _make(held: Settings) -> Remote | None:
    try:
        if not held.key_file:
            raise InvalidKey(f"there is no key to trust its entries by; {HOW_TO_MAKE_A_KEY}")
        secret = read_secret(held.key_file)
        load_client(held.remote)
        return Remote(held.remote, secret)
    except (InvalidKey, ImportError) as error:
        warn_once("remote", f"the cache at {shown(held.remote)} is not used: {error}")
        return None


atexit.register(flush)
os.register_at_fork(after_in_child=forget)  # a child has no writer, and shares no connection
