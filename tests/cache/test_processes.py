"""Many processes and one folder: one compilation a key, and no half-written entry."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dovetail import cache
from tests.cache.samples import KEY, key

pytestmark = pytest.mark.e2e

# Waits for the file "go", then compiles as the pipeline does; "compiling" lists who compiled.
COMPILE = """
import os, sys, time
from dovetail import cache
from tests.cache.samples import KEY
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.001)
found = cache.lookup(KEY)
if isinstance(found, cache.Hit):
    payload = found.payload
else:
    with cache.compiling(KEY) as payload:
        if payload is None:
            with open("compiled", "a") as file:
                file.write(f"{os.getpid()}\\n")
            {work}
            payload = b"code" * 50_000
            cache.store(KEY, payload)
print(len(payload))
"""


def start(folder, work="time.sleep(0.3)", **environment):
    return subprocess.Popen(
        [sys.executable, "-c", COMPILE.replace("{work}", work)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def result(process):
    """The last thing that it prints."""
    return process.communicate()[0].split()[-1]


def compiled(folder):
    return Path(folder, "compiled").read_text().split()


def wait_until(true):
    while not true():
        time.sleep(0.005)


def test_sixteen_processes_and_one_cold_key_give_one_compilation(tmp_path, local):
    processes = [start(tmp_path) for _ in range(16)]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 16
    (tmp_path / "go").touch()
    assert [result(process) for process in processes] == ["200000"] * 16
    assert len(compiled(tmp_path)) == 1
    assert not list(Path(local.path).glob("*.lock"))


def test_when_the_one_that_compiles_is_killed_another_compiles(tmp_path):
    (tmp_path / "go").touch()
    first = start(tmp_path, "time.sleep(600)")
    wait_until((tmp_path / "compiled").exists)
    others = [start(tmp_path) for _ in range(3)]
    first.kill()
    assert [result(other) for other in others] == ["200000"] * 3
    assert len(compiled(tmp_path)) == 2
    first.wait()
    first.stdout.close()


def test_when_the_one_that_compiles_fails_another_compiles(tmp_path):
    (tmp_path / "go").touch()
    first = start(tmp_path, "sys.exit(1)")
    first.communicate()
    assert result(start(tmp_path)) == "200000"
    assert len(compiled(tmp_path)) == 2


def test_nobody_waits_for_ever(tmp_path):
    (tmp_path / "go").touch()
    stopped = start(tmp_path, "time.sleep(600)")
    wait_until((tmp_path / "compiled").exists)
    stopped.send_signal(signal.SIGSTOP)
    assert result(start(tmp_path, DOVETAIL_CACHE_WAIT="0.2")) == "200000"
    assert len(compiled(tmp_path)) == 2
    stopped.kill()
    stopped.communicate()


def test_threads_wait_for_each_other_too():
    made, got = [], []

    def work():
        with cache.compiling(KEY) as payload:
            if payload is None:
                made.append(1)
                time.sleep(0.1)
                payload = b"code"
                cache.store(KEY, payload)
            got.append(payload)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), got) == (1, [b"code"] * 8)
    assert cache.stats().waited == 7


def test_a_key_within_its_own_compilation_does_not_wait_for_itself():
    with cache.compiling(KEY) as outer, cache.compiling(KEY) as inner:
        assert outer is inner is None


def test_another_key_does_not_wait():
    with cache.compiling(KEY), cache.compiling(key(graph="other")) as payload:
        assert payload is None


def test_a_child_that_was_forked_within_gives_no_lock_back(local):
    lock = Path(local.path, f"{KEY.digest}.lock")
    process = os.getpid()
    with cache.compiling(KEY):
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            assert lock.exists(), "the child has left the same block"
    if os.getpid() != process:
        os._exit(0)
    assert not lock.exists()


def test_a_child_that_lives_on_holds_nothing_up():
    """The lock's descriptor is the child's too; it is free nevertheless."""
    with cache.compiling(KEY):
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(0)
    cache.configure(wait=600)
    with cache.compiling(KEY) as payload:
        assert payload is None
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_kill_while_writing_leaves_no_half_entry():
    ran = subprocess.run(
        [sys.executable, "-m", "tests.cache.killed", "30"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith("killed 30, ")
