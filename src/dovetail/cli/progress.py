"""A line in a terminal that says what is being done, once it has taken a second.

What others write to standard error meanwhile comes after it, and only if all goes well: PyTorch
prints graphs and log lines of what fails, and a mistake is to be told in one line.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

import click

from dovetail import history
from dovetail.cli.command import DEBUG

DELAY = 1.0  # seconds in which most commands are done and nobody wonders
_PERIOD = 0.2  # seconds from one look to the next
_WIDTH = 78  # columns


class Progress:
    """What is shown: ``what`` is being done, how far it has come."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._start = time.monotonic()
        self._ended = threading.Event()
        self._shown = False
        self._stream = sys.stderr

    def say(self, what: str) -> None:
        """Something else is being done now."""
        self.what = what

    def watch(self) -> None:
        """Show it until the end; the body of a thread."""
        while not self._ended.wait(_PERIOD):
            self.show(time.monotonic() - self._start)

    def show(self, seconds: float) -> None:
        """Write the line, unless it is too early for one."""
        if seconds >= DELAY:
            self._write(f"{self.what}{_stage()} … {seconds:.0f} s")
            self._shown = True

    def end(self) -> None:
        """Take the line away."""
        self._ended.set()

    def clear(self) -> None:
        """Leave an empty line behind, if there ever was one."""
        if self._shown:
            self._write("")

    def _write(self, text: str) -> None:
        end = "" if text else "\r"
        print(f"\r{text[:_WIDTH]:<{_WIDTH}}", end=end, file=self._stream, flush=True)


def _stage() -> str:
    """The stage that the last compilation is in."""
    found = history.recent()
    stages = found[-1].stages if found else []
    if not stages or stages[-1].ms:  # a stage has its time when it ends
        return ""
    return f": {stages[-1].name}, {stages[-1].graph} graph"


@contextlib.contextmanager
def progress(what: str) -> Iterator[Progress]:
    """Within the context a terminal shows what is done, after a second; a pipe shows nothing."""
    shown = Progress(what)
    watcher = threading.Thread(target=shown.watch, name="dovetail progress", daemon=True)
    watched = sys.stderr.isatty()
    if watched:
        watcher.start()
    try:
        with _held_back():
            yield shown
    finally:
        shown.end()
        if watched:
            watcher.join()
        shown.clear()


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Hold what others write to standard error until the end; drop it where they failed."""
    ctx = click.get_current_context(silent=True)
    if ctx is not None and ctx.meta.get(DEBUG):
        yield
        return
    real, held = sys.stderr, io.StringIO()
    _torch_logs(real, held)
    try:
        with contextlib.redirect_stderr(held):
            yield
    finally:
        _torch_logs(held, real)  # also those that were made meanwhile
    real.write(held.getvalue())


def _torch_logs(before: TextIO, after: TextIO) -> None:
    """Have PyTorch's log handlers, which keep the stream they were made with, write to another."""
    known = logging.root.manager.loggerDict  # some of PyTorch's loggers have handlers of their own
    for logger in [known[name] for name in known if name.partition(".")[0] == "torch"]:
        for handler in getattr(logger, "handlers", ()):  # a placeholder has none
            if isinstance(handler, logging.StreamHandler) and handler.stream is before:
                handler.setStream(after)
