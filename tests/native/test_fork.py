"""A child of a fork runs what its parent loaded: in every order of loading, running and forking.

The C test of the same name holds the locks themselves at the moment of the fork.
"""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from dovetail.locks import ForkLock
from tests.artifact.files import file_bytes

TEXT = """\
program @p
input %x: float32[300000]
output %y: float32[300000]
kernel %y = relu@1(%x)
return %y
"""

# Each child has ten seconds; one that hangs dies of its alarm and is counted by its order's name.
FORKS = """
import array, os, signal, sys, threading
path, library, pool = sys.argv[1:]
if library == "torch":
    import torch
    torch.set_num_threads(2)
    torch.exp(torch.ones(2_000_000))  # PyTorch starts its OpenMP pool
import dovetail
from dovetail import _native
x = memoryview(array.array("f", [-1.0, 2.0] * 150_000))
expected = bytes(array.array("f", [0.0, 2.0] * 150_000))
failed = []

def works(run):
    return memoryview(run(x)).tobytes() == expected

def forked(name, *bodies):
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        ok = all(body() for body in bodies)
        os._exit(0 if ok and not failed else 7)
    status = os.waitpid(child, 0)[1]
    if status != 0:
        failed.append((name, status))
    return status == 0

run = dovetail.load(path)
assert _native.share_threads(pool == "shared") == (pool == "shared" and library == "torch")
twice = lambda: works(run) and works(run)
loads = lambda: works(dovetail.load(path))
forked("loaded, never run", twice)
forked("loaded, never run: the child loads again", loads, twice)
forked("a child of a child", twice, lambda: forked("grandchild", twice, loads))
forked("a child of a child that has not run", lambda: forked("grandchild", twice))
assert works(run)
forked("ran", twice, loads)
forked("ran, a child of a child", twice, lambda: forked("grandchild", loads, twice))

stop = threading.Event()
def busy():
    while not stop.is_set():
        run(x)
threads = [threading.Thread(target=busy) for _ in range(2)]
for t in threads: t.start()
for n in range(20):
    forked(f"while others run, {n}", twice)
forked("while others run, a child of a child", twice, lambda: forked("grandchild", twice))
stop.set()
for t in threads: t.join()
assert works(run)
print(failed)
"""


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("library", "pool"), [("none", "own"), ("torch", "own"), ("torch", "shared")]
)
def test_children_run_what_their_parent_loaded(tmp_path, library, pool):
    path = tmp_path / "m.dvt"
    path.write_bytes(file_bytes(TEXT))
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, str(path), library, pool],
        capture_output=True, text=True, timeout=250, check=False,
        env={**os.environ, "DOVETAIL_NUM_THREADS": "2"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "[]\n"


def in_child(body):
    """The status of a child that runs ``body`` and dies by its alarm where it hangs."""
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        os._exit(0 if body() else 7)
    return os.waitpid(child, 0)[1]


def taken(lock):
    with lock:
        return True


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking beside threads
def test_a_python_lock_that_another_thread_held_is_free_in_the_child():
    lock, holds, done = ForkLock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            holds.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    assert in_child(lambda: taken(lock)) == 0
    done.set()
    thread.join()
    with lock:  # the thread that forks keeps what it holds, and may take it again
        assert in_child(lambda: taken(lock) and not_taken_elsewhere(lock)) == 0


def not_taken_elsewhere(lock):
    found = []
    thread = threading.Thread(target=lambda: found.append(taken(lock)), daemon=True)
    thread.start()
    time.sleep(0.05)
    return not found
