"""A lock that a forked child can take, although another thread held it when the process forked.

The child has the one thread that forked. What the others held would stay locked in it for ever;
here it is free again. The C runtime does the same with its own (native/src/lock.c).
"""

from __future__ import annotations

import os
import threading
import weakref

_all: weakref.WeakSet[ForkLock] = weakref.WeakSet()


class ForkLock:
    """A reentrant lock for ``with`` statements."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder, self._depth = 0, 0
        _all.add(self)

    def __enter__(self) -> ForkLock:
        self._lock.acquire()
        self._holder = threading.get_ident()
        self._depth += 1
        return self

    def __exit__(self, *unused: object) -> None:
        self._depth -= 1
        self._lock.release()

    def free_in_child(self) -> None:
        """Let go of what a thread held that this process does not have."""
        if self._depth > 0 and self._holder == threading.get_ident():
            return
        self._lock, self._depth = threading.RLock(), 0


def _free_all() -> None:
    for lock in list(_all):
        lock.free_in_child()


os.register_at_fork(after_in_child=_free_all)
