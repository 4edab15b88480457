"""Threads: our own pool or PyTorch's OpenMP, the same bits from both, and after a fork."""

import os
import subprocess
import sys

import pytest
import torch

import dovetail
from tests.artifact.files import file_bytes
from tests.differential import needs_code

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
    for framework, fork, pool, count in (
        ("none", "fork", "own", "1"),
        ("none", "fork", "own", "3"),
        ("torch", "fork", "own", "2"),
        ("torch", "fork", "shared", "2"),
        ("torch", "no", "shared", "5"),
    ):
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", CHILD, str(path), framework, fork, pool],
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


WITHOUT_TORCH = """
import os, sys, warnings
sys.modules["torch"] = sys.modules["llvmlite"] = None
import numpy as np
import dovetail
from dovetail import _native
warnings.simplefilter("ignore")
x = np.linspace(-1, 1, 512 * 512, dtype=np.float32).reshape(512, 512)
grown = []
for count, path in enumerate(sys.argv[1:], 2):
    _native.set_threads(count)
    run = dovetail.load(path, trust="trusted" in path)
    before = len(os.listdir("/proc/self/task"))
    several = run(x)
    grown.append(len(os.listdir("/proc/self/task")) - before)
    _native.set_threads(1)
    assert (run(x) == several).all()
print(grown, "torch" in [name for name, module in sys.modules.items() if module])
"""
PRODUCT = TEXT.replace("256", "512")


@pytest.mark.e2e
@needs_code
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_every_kind_of_kernel_runs_on_our_threads_without_torch(tmp_path):
    """Each file may use one thread more than the one before: the pool grows by it."""
    (tmp_path / "built_in.dvt").write_bytes(file_bytes(PRODUCT))
    torch.manual_seed(0)
    block = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()).eval()
    x = torch.randn(512, 512)
    exported = dovetail.export(block, (x,), backend="cpu")
    exported.save(tmp_path / "trusted.dvt", without_torch=True)
    pointwise = dovetail.export(torch.nn.GELU(), (x,), backend="cpu")
    pointwise.save(tmp_path / "trusted_pointwise.dvt", without_torch=True)
    pointwise.save(tmp_path / "interpreted.dvt", without_torch=True)
    names = ["built_in", "trusted", "trusted_pointwise", "interpreted"]
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *(str(tmp_path / f"{n}.dvt") for n in names)],
        capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split("\n")[0] == "[1, 1, 1, 1] False"
