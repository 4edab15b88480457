"""One worker process as its parent sees it: pipes that never block, and an end that is certain."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dovetail.compilers.frames import CHUNK, Frame, FrameReader, pack
from dovetail.errors import CompileFailed
from dovetail.locks import ForkLock

log = logging.getLogger(__name__)
_PIECES = 256  # read at once from a pipe that somebody may fill without end
_HEARD = 4096  # bytes kept of what a worker printed last
GRACE_SECONDS = 1.0  # for an idle worker to leave by itself, before it is killed
# Held while pipes are made and handed over. A fork waits for it, so that no child gets a pipe that
# it does not know of: its copy would keep the worker from noticing that the parent is gone.
starting = ForkLock()


class WorkerNotStarted(Exception):
    """There is no worker; the message says why. Nothing of a backend has run."""


class Worker:
    """A process that compiles one segment at a time."""

    def __init__(self) -> None:
        with starting:
            self.process, self._lifeline = _start()
            every_worker.add(self)
        streams = self.process.stdin, self.process.stdout, self.process.stderr
        fds = [stream.fileno() for stream in streams if stream is not None]
        self._requests, self._answers, self._printed = fds
        for fd in fds:
            os.set_blocking(fd, False)
        self._outgoing = memoryview(b"")
        self._reader = FrameReader()
        self._state: dict[str, Any] = {}
        self._heard, self._hears = bytearray(), True
        self.ready = False
        self.idle_since = 0.0

    # ---- talking ---------------------------------------------------------------------------

    def ask(self, head: Mapping[str, Any], body: bytes = b"", longest_answer: int = 0) -> None:
        """Have ``exchange`` send a request; an answer of more bytes than this is refused."""
        self._reader.longest_body = longest_answer
        state = _state_of_this_process()
        news = {} if state == self._state else {"state": state}
        self._state, self._heard = state, bytearray()
        self._outgoing = memoryview(bytes(self._outgoing) + pack({**head, **news}, body))

    def exchange(self) -> bool:
        """Send and receive what can be without waiting; False once the worker closed its pipe."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._outgoing:
                self._outgoing = self._outgoing[os.write(self._requests, self._outgoing) :]
        for data in _available(self._printed) if self._hears else ():
            self._hears = bool(data)
            log.debug("a worker printed %r", data)
            self._heard = (self._heard + data)[-_HEARD:]
        is_open = True
        for data in _available(self._answers):
            is_open = bool(data)
            self._reader.feed(data)
        return is_open

    def frame(self) -> Frame | None:
        """The next answer that has come; BadFrame where it is none."""
        return self._reader.take()

    def watch(self, poll: select.poll) -> None:
        """Wake ``poll`` up when there is something to exchange."""
        poll.register(self._answers, select.POLLIN)
        if self._hears:
            poll.register(self._printed, select.POLLIN)
        if self._outgoing:
            poll.register(self._requests, select.POLLOUT)

    def last_words(self) -> str:
        """The last line that the worker printed."""
        lines = self._heard.decode(errors="replace").split("\n")
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")

    # ---- watching --------------------------------------------------------------------------

    def exited(self) -> bool:
        """Whether the process has ended; it is not reaped yet, so its number is still its own."""
        if self.process.returncode is not None:
            return True
        try:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self.process.pid, options) is not None
        except ChildProcessError:  # somebody else reaped it
            return True

    def resident_bytes(self) -> int:
        """The memory that the process, and those it started, hold now; 0 where nobody tells."""
        return sum(map(_resident, _with_children(self.process.pid)))

    # ---- ending ----------------------------------------------------------------------------

    def leave(self) -> None:
        """Ask an idle worker to end; it runs what its libraries do at exit."""
        assert self.process.stdin
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def end(self, seconds: float = 0.0) -> int:
        """Wait so long for the process to end, then kill it and what it started; its status."""
        deadline = time.monotonic() + seconds
        while not self.exited() and time.monotonic() < deadline:
            time.sleep(0.005)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.process.returncode is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        status = self.process.wait()
        self.close()
        return status

    def abandon(self) -> None:
        """Forget a worker of the process that this one was forked from."""
        self.process.returncode = 0
        self.close()

    def close(self) -> None:
        """Close this process's ends of all pipes."""
        every_worker.discard(self)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


every_worker: set[Worker] = set()


def end_all() -> None:
    """End every worker of this process: all are asked first, so that they end side by side."""
    workers = list(every_worker)
    for worker in workers:
        worker.leave()
    deadline = time.monotonic() + GRACE_SECONDS
    for worker in workers:
        worker.end(deadline - time.monotonic())


def failure(status: int, last_words: str) -> CompileFailed:
    """What a worker's end says of its compiler."""
    if status < 0:
        with contextlib.suppress(ValueError):
            reason = f"the compiler crashed ({signal.Signals(-status).name})"
            if status == -signal.SIGKILL:
                reason = "the compiler was killed; the system may have run out of memory"
            return CompileFailed(reason + _quoted(last_words))
    return CompileFailed(f"the compiler ended its process (status {status}){_quoted(last_words)}")


def _quoted(words: str) -> str:
    return f", having printed {words!r}" if words else ""


def _start() -> tuple[subprocess.Popen[bytes], int]:
    """A worker in a session of its own, and the end of a pipe whose closing ends it."""
    if not sys.executable:
        raise WorkerNotStarted("this process has no Python executable to start")
    theirs, ours = os.pipe()
    try:
        command = [sys.executable, "-P", "-m", "dovetail.compilers.worker", str(theirs)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=(theirs,),
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_import_path())},
        )
    except BaseException as error:
        os.close(ours)  # ends a worker that an interrupt left without a parent that knows of it
        if isinstance(error, OSError):
            raise WorkerNotStarted(f"{sys.executable} does not start: {error}") from None
        raise
    finally:
        os.close(theirs)
    return process, ours


def _import_path() -> list[str]:
    return [os.path.abspath(each) for each in sys.path if isinstance(each, str)]  # noqa: PTH100


def _state_of_this_process() -> dict[str, Any]:
    """What a worker must have in common with this process."""
    try:
        folder = os.getcwd()  # noqa: PTH109
    except OSError:
        folder = ""
    return {"environment": dict(os.environ), "path": _import_path(), "folder": folder}


def _available(fd: int) -> Iterator[bytes]:
    """What can be read without waiting; an empty piece where the other end is closed."""
    with contextlib.suppress(BlockingIOError):
        for _ in range(_PIECES):
            data = os.read(fd, CHUNK)
            yield data
            if not data:
                return


def _with_children(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from _with_children(int(child))


def _resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
