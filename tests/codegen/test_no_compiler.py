"""A machine without a C compiler compiles and runs everything; no process is started for it."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("llvmlite", reason="generated CPU code needs llvmlite")

SCRIPT = """
import os, shutil, sys
import torch
import dovetail

for name in ("cc", "gcc", "g++", "clang", "c++", "ld"):
    assert shutil.which(name) is None, name

def watch(event, args):
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork"):
        raise RuntimeError(f"{event} {args}")

model = torch.nn.Sequential(
    torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Softmax(-1)
)
x = torch.randn(8, 32)
expected = model(x)
compiled = torch.compile(model, backend="cpu", options={"strict": True})
sys.addaudithook(watch)
actual = compiled(x)
torch.testing.assert_close(actual, expected)
actual.square().sum().backward()
gradient = model[0].weight.grad.clone()
model.zero_grad()
expected.square().sum().backward()
torch.testing.assert_close(gradient, model[0].weight.grad)
print("compiled")
"""


@pytest.mark.e2e
def test_nothing_but_python_is_needed(tmp_path):
    env = {k: v for k, v in os.environ.items() if k not in ("CC", "CXX", "PATH")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**env, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["compiled"]
