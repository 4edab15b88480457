"""Work that goes on while a program runs: one thread, one job after the other."""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

from dovetail.errors import VerificationFailed
from dovetail.runtime.link import Linked

Job = Callable[[], None]
# Seconds to wait at exit for the job that runs; those that wait are dropped.
_AT_EXIT = 60.0


class Background:
    """Runs jobs in order in a thread of its own, which is started when there is one.

    A forked child has no such thread: it starts one for what was not done when it was forked.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._pending: list[Job] = []
        self._thread: threading.Thread | None = None
        self._ending = False

    def submit(self, job: Job) -> None:
        """Have a job done; it deals with its own errors."""
        with self._lock:
            if self._ending:
                return
            self._pending.append(job)
            self._jobs.put(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="dovetail", daemon=True)
                self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until nothing is left to do; False after so many seconds."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._pending, seconds)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if not self._ending:
                job()
            with self._lock:
                self._pending.remove(job)
                self._lock.notify_all()

    def end(self) -> None:
        """At exit: what has not begun is dropped, what runs is waited for."""
        self._ending = True
        self.wait(_AT_EXIT)

    def after_fork(self) -> None:
        """In a forked child: begin what was not done."""
        pending = self._pending
        self.__init__()  # type: ignore[misc]  # the parent's lock may be held by no thread of ours
        for job in pending:
            self.submit(job)


background = Background()
atexit.register(background.end)
os.register_at_fork(after_in_child=background.after_fork)


class Switch:
    """A function that is exchanged for another between two calls.

    A call reads which one it is once, so that no result is of both.
    """

    def __init__(self, first: Callable[[list[Any]], Any]) -> None:
        self.run = first

    def __call__(self, inputs: list[Any]) -> Any:
        """Call whichever it is now."""
        return self.run(inputs)

    def to(self, run: Callable[[list[Any]], Any]) -> None:
        """From the next call on, this one."""
        self.run = run

    def fail(self, error: BaseException) -> None:
        """From the next call on, raise."""

        def raise_it(_: list[Any]) -> Any:
            raise error

        self.run = raise_it


def exchange_later(
    first: Linked, compile_: Callable[[], Linked], fail: Callable[[Exception], None] | None
) -> Linked:
    """``first``, exchanged between two calls for what ``compile_`` gives in the background.

    Where that fails, ``fail`` is told and ``first`` stays; with None, and for what verification
    finds, the next call raises.
    """
    switch = Switch(first.run)

    def exchange() -> None:
        try:
            switch.to(compile_().run)
        except VerificationFailed as error:  # a fault of ours is not to be passed over
            switch.fail(error)
        except Exception as error:  # a vendor's compiler may raise anything
            if fail is None:
                switch.fail(error)
            else:
                fail(error)

    background.submit(exchange)
    return Linked(first.graph, switch, first.parts)
