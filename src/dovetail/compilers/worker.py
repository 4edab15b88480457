"""A process that compiles segments for its parent: ``python -m dovetail.compilers.worker FD``.

It reads requests from its standard input and answers on its standard output, one after the other.
Whatever a compiler prints goes to standard error, which the parent reads too. ``FD`` is the end
of a pipe that the parent never writes to: when it closes, the parent is gone and so is this
process, even in the middle of a call that never comes back to Python. PyTorch is imported only if
a backend does so.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
from pathlib import Path
from typing import Any

from dovetail.backend import Backend, Blob
from dovetail.compilers import recipe
from dovetail.compilers.frames import CHUNK, Frame, FrameReader, pack
from dovetail.errors import VerificationFailed
from dovetail.ir.encode import segment_from_bytes
from dovetail.ir.verify import verifying

_LONGEST_MESSAGE = 4000  # characters of an exception's text that are handed on


def main() -> None:
    """Answer requests until the parent closes the pipe."""
    end_with_parent(int(sys.argv[1]))
    end_first()
    requests, answers = take_over_streams()
    send(answers, pack({"ready": True}))
    reader, backends, own = FrameReader(), dict[str, Backend](), os.getpid()
    while (request := receive(requests, reader)) is not None:
        if "prepare" in request.head:
            prepare(request, backends)
            continue
        answer = pack(*answer_to(request, backends))
        if os.getpid() != own:  # a compiler forked, and its child came back here
            os._exit(0)
        send(answers, answer)


def end_with_parent(fd: int) -> None:
    """Have the kernel end this process, and what it started, when the other end of ``fd`` closes.

    A thread that waits for that would not run while a compiler holds the interpreter's lock, and
    PR_SET_PDEATHSIG means the thread that started us, which may end long before the process.
    """
    os.set_inheritable(fd, False)
    signal.signal(signal.SIGIO, signal.SIG_DFL)  # ends a process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGIO])
    fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    os.set_blocking(fd, False)
    with contextlib.suppress(BlockingIOError):
        if not os.read(fd, 1):  # it closed before we asked
            os._exit(0)


def end_first() -> None:
    """Where memory runs out, let the kernel end this process and not the user's."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def take_over_streams() -> tuple[int, int]:
    """The pipes to and from the parent, out of the reach of what compilers read and print."""
    requests, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return requests, answers


def receive(fd: int, reader: FrameReader) -> Frame | None:
    """The next request; None when there will be none."""
    while (request := reader.take()) is None:
        data = os.read(fd, CHUNK)
        if not data:
            return None
        reader.feed(data)
    return request


def send(fd: int, data: bytes) -> None:
    """Write all of it."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def prepare(request: Frame, backends: dict[str, Backend]) -> None:
    """Make backends and let them load what they need, while nobody waits for it."""
    adopt(request.head)
    for each in request.head["prepare"]:
        with contextlib.suppress(Exception):  # it is raised again, and told, when it matters
            made(each, backends).prepare()


def made(described: recipe.Recipe, backends: dict[str, Backend]) -> Backend:
    """The backend of a recipe, which is made once."""
    key = str(described)
    if key not in backends:
        backends[key] = recipe.make(described)
    return backends[key]


def answer_to(request: Frame, backends: dict[str, Backend]) -> tuple[dict[str, Any], bytes]:
    """The blob of a segment, or why there is none."""
    adopt(request.head)
    try:
        backend = made(request.head["backend"], backends)
    except Exception as error:  # a plug-in may raise anything
        return {"elsewhere": f"a worker cannot make it: {_told(error)}"}, b""
    try:
        with verifying(request.head.get("debug", False)):
            blob: object = backend.compile(segment_from_bytes(request.body))
    except VerificationFailed as error:
        told = {"stage": error.stage, "problem": error.problem[:_LONGEST_MESSAGE]}
        return {"invalid": told}, str(error.value).encode()
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # so may its compiler
        return {"failed": _told(error)}, b""
    if not isinstance(blob, Blob) or not isinstance(blob.data, bytes):
        return {"failed": f"compile() returned {blob!r}"[:_LONGEST_MESSAGE]}, b""
    if not blob.is_portable:
        return {"elsewhere": "its code lives in the process that made it"}, b""
    return {"blob": True}, blob.data


def adopt(head: dict[str, Any]) -> None:
    """Take on the parent's environment, folder and places to import from, where they changed."""
    state = head.get("state")
    if state is None:
        return
    environment = state["environment"]
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    sys.path[:] = state["path"]
    with contextlib.suppress(OSError):  # it may be gone
        os.chdir(state["folder"])


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_LONGEST_MESSAGE]


if __name__ == "__main__":
    main()
