"""A registered troublemaker, and what every test must leave behind: nothing."""

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest

import dovetail
from dovetail.compilers import process
from dovetail.compilers.remote import CompileLimits, Subprocess
from tests.compilers.trouble import Trouble


@pytest.fixture(autouse=True)
def _all_is_compiled(no_cache):
    """What a hit in the cache gives, no compiler is asked for."""


@pytest.fixture
def trouble():
    """Makes the backend with options."""
    with dovetail.registered_backend(Trouble):
        yield lambda **options: dovetail.get_backend("trouble", **options)


@pytest.fixture
def workers():
    """Makes a Subprocess with limits; its notes are kept."""

    def make(seconds=60.0, memory_bytes=None, workers=2):
        notes = []
        made = Subprocess(CompileLimits.chosen(seconds, memory_bytes, workers), notes.append)
        made.notes = notes
        return made

    return make


@pytest.fixture(autouse=True)
def _nothing_is_left():
    """No descriptor, no thread, no process of any kind, a dead one included."""
    process.end_all()
    before = _held()
    yield
    process.end_all()
    deadline = time.monotonic() + 10
    while _held() != before and time.monotonic() < deadline:
        time.sleep(0.02)  # what was killed takes a moment to be gone
    assert _held() == before


def _held():
    return sorted(Path("/proc/self/fd").iterdir()), children(os.getpid()), _sessions()


def children(pid):
    """The processes that a process has started, dead ones that were not reaped included."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has ended by now
            found += map(int, (task / "children").read_text().split())
    return sorted(found)


def _sessions():
    """Live processes of sessions that a worker of this process leads or led."""
    return sorted(pid for pid, session in _processes() if session in _seen)


_seen: set[int] = set()


@pytest.fixture(autouse=True)
def _see_workers(monkeypatch):
    start = process._start

    def seen():
        made = start()
        _seen.add(made[0].pid)
        return made

    monkeypatch.setattr(process, "_start", seen)


def _processes():
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            yield int(entry.name), int(fields[3])


def is_running(pid):
    """Whether a process exists and is not merely waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(fact, seconds=20):
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@pytest.fixture
def threads():
    """Run functions at once; what each returns, in order."""

    def run(*functions):
        results = [None] * len(functions)

        def call(n):
            results[n] = functions[n]()

        started = [threading.Thread(target=call, args=(n,)) for n in range(len(functions))]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        return results

    return run
