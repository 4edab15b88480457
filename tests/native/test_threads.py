"""Threads: our own pool or PyTorch's OpenMP, the same bits from both, and after a fork."""

import os
import subprocess
import sys

import pytest

from tests.artifact.files import file_bytes

TEXT = """\
program @p
input %x: float32[256, 256]
temporary %a: float32[256, 256]
output %y: float32[256, 256]
kernel %a = matmul@1(%x, %x)
kernel %y = softmax@1(%a; 1)
return %y
"""
CHILD = """
import array, hashlib, os, sys, threading
if sys.argv[2] == "torch":
    import torch
import dovetail
run = dovetail.load(sys.argv[1])
from dovetail import _native
_native.share_threads(sys.argv[4] == "shared")
x = memoryview(array.array("f", [(i * 37 % 101) / 101 for i in range(65536)]))
x = x.cast("B").cast("f", (256, 256))
def digest():
    return hashlib.sha256(memoryview(run(x)).tobytes()).hexdigest()
first = digest()
found = []
threads = [threading.Thread(target=lambda: found.append(digest())) for _ in range(4)]
for t in threads: t.start()
for t in threads: t.join()
assert found == [first] * 4
if sys.argv[3] == "fork":
    child = os.fork()
    if child == 0:
        os._exit(0 if digest() == first else 7)
    assert os.waitpid(child, 0)[1] == 0
    assert digest() == first
print(first)
"""


@pytest.mark.e2e
def test_every_pool_gives_the_same_bits(tmp_path):
    path = tmp_path / "m.dvt"
    path.write_bytes(file_bytes(TEXT))
    found = set()
    for torch, fork, pool, count in (
        ("none", "fork", "own", "1"),
        ("none", "fork", "own", "3"),
        ("torch", "fork", "own", "2"),
        ("torch", "fork", "shared", "2"),
        ("torch", "no", "shared", "5"),
    ):
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", CHILD, str(path), torch, fork, pool],
            capture_output=True, text=True, timeout=100, check=False,
            env={**os.environ, "DOVETAIL_NUM_THREADS": count},
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        found.add(ran.stdout)
    assert len(found) == 1


COUNT = """
import os, sys
import torch
import dovetail
from dovetail import _native
run = dovetail.load(sys.argv[1])
_native.share_threads(False)
x = torch.randn(256, 256)
def threads(count):
    torch.set_num_threads(count)
    before = len(os.listdir("/proc/self/task"))
    run(x)
    return len(os.listdir("/proc/self/task")) - before
print(threads(1), threads(3), threads(2), threads(4))
"""


@pytest.mark.e2e
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize(("variable", "made"), [(None, "0 2 0 1"), ("2", "1 0 0 0")])
def test_torch_set_num_threads_counts_at_the_call(tmp_path, variable, made):
    path = tmp_path / "m.dvt"
    path.write_bytes(file_bytes(TEXT))
    env = {k: v for k, v in os.environ.items() if k != "DOVETAIL_NUM_THREADS"}
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COUNT, str(path)],
        capture_output=True, text=True, timeout=100, check=False,
        env=env if variable is None else {**env, "DOVETAIL_NUM_THREADS": variable},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == made


def test_openmp_is_found_where_torch_is():
    import torch

    from dovetail import _native

    assert _native.share_threads(True) == ("GNU" in torch.__config__.parallel_info() or has_gomp())


def has_gomp():
    from pathlib import Path

    return "libgomp" in Path("/proc/self/maps").read_text()
