"""The workers of this process: started when needed, used again, ended when idle and at exit."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from dovetail.compilers.process import GRACE_SECONDS, Worker, end_all, every_worker, starting

IDLE_SECONDS = 60.0  # a worker that nobody used for so long is ended: it holds about 100 MB


class Pool:
    """Workers that any thread may borrow, one segment at a time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[Worker] = []
        self._lent = 0
        self._waiting = 0
        self._keeper: threading.Thread | None = None

    def prepare(self, head: Mapping[str, Any]) -> None:
        """Start a worker where there is none, tell it this, and do not wait for it."""
        with self._changed:
            if self._lent or not all(worker.exited() for worker in self._idle):
                return
            self._lent += 1
        try:
            worker = Worker()
            worker.ask(head)
            worker.exchange()
        except BaseException:
            self._count_back(None)
            raise
        self._count_back(worker)

    def borrow(self, most: int, *, wait: bool) -> Worker | None:
        """A worker, where fewer than ``most`` are lent; WorkerNotStarted where it cannot start.

        A caller that has one already does not wait, and gets no further one before those that do.
        """
        with self._changed:
            while self._lent >= most or (self._waiting and not wait):
                if not wait:
                    return None
                self._waiting += 1
                try:
                    self._changed.wait()
                finally:
                    self._waiting -= 1
            self._lent += 1
            candidates, worker = self._idle, None
            while candidates and worker is None:
                worker = candidates.pop()
                if worker.exited():
                    worker.end()
                    worker = None
        try:
            return worker or Worker()
        except BaseException:
            self._count_back(None)
            raise

    def give_back(self, worker: Worker) -> None:
        """Keep a worker that answered for whoever comes next."""
        self._count_back(worker)

    def discard(self, worker: Worker, seconds: float = 0.0) -> int:
        """End a worker, by force once so long has passed; the status of its process."""
        try:
            return worker.end(seconds)
        finally:
            self._count_back(None)

    def _count_back(self, worker: Worker | None) -> None:
        with self._changed:
            self._lent -= 1
            if worker is not None:
                worker.idle_since = time.monotonic()
                self._idle.append(worker)
                self._keep()
            self._changed.notify_all()

    def _keep(self) -> None:
        """See to it that somebody ends idle workers in time."""
        if self._keeper is None:
            name = "dovetail-idle-workers"
            keeper = threading.Thread(target=self._end_idle, name=name, daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread starts while Python shuts down
                keeper.start()
                self._keeper = keeper

    def _end_idle(self) -> None:
        while True:
            with self._changed:
                old = [w for w in self._idle if time.monotonic() - w.idle_since >= IDLE_SECONDS]
                self._idle = [w for w in self._idle if w not in old]
                if not old and not self._idle:
                    self._keeper = None
                    return
                if not old:
                    self._changed.wait(IDLE_SECONDS / 4)
            for worker in old:
                worker.leave()
                worker.end(GRACE_SECONDS)


_pool = Pool()


def pool() -> Pool:
    """The pool of this process."""
    return _pool


def _begin_anew_in_child() -> None:
    global _pool
    _pool = Pool()
    for worker in list(every_worker):
        worker.abandon()
    starting.__exit__()


os.register_at_fork(
    before=starting.__enter__,
    after_in_parent=starting.__exit__,
    after_in_child=_begin_anew_in_child,
)
atexit.register(end_all)
