"""What a process imports for a graph that the cache has: nothing that compiles."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("llvmlite")
pytestmark = pytest.mark.e2e

# What only compiling needs. Looking a graph up, linking it and running it do without.
COMPILES = (
    "dovetail.capture.decompose",
    "dovetail.codegen.llvm.module",
    "dovetail.compilers",
    "dovetail.file.encode",
    "dovetail.ir.kernel",
    "dovetail.ir.program",
    "dovetail.ir.target",
    "dovetail.lower",
    "dovetail.pipeline",
    "dovetail.place.placement",
    "dovetail.schedule",
    "llvmlite.binding",
)
# What neither needs: what is shown, saved or managed, and how tests and the command do it.
NEITHER = (
    *("dovetail.artifact", "dovetail.bench", "dovetail.cli", "dovetail.report", "dovetail.testing"),
    *("dovetail.cache.remote", "dovetail.compilers.remote", "dovetail.runtime.checked"),
    *("dovetail.runtime.interpreter", "dovetail.schedule.verify_schedule"),
    *("dovetail.backends.onnx", "dovetail.backends.opencl", "dovetail.backends.plugin"),
)

CALL = """
import json, sys
import torch
from torch import nn

features = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()
model = nn.Sequential(*features, nn.Linear(288, 5))
options = json.loads(sys.argv[1])
x = torch.randn(2, 3, 8, 8)
model.train("train" in sys.argv)
with torch.set_grad_enabled("train" in sys.argv):
    result = torch.compile(model, backend="dovetail", options=options)(x)
    if "train" in sys.argv:
        result.sum().backward()
from dovetail import history
print(json.dumps({
    "cache": [v.state for c in history.recent() for v in c.cache],
    "modules": [name for name in sys.modules if name.startswith(("dovetail", "llvmlite"))],
}))
"""


def call(options, *how):
    """What a new process says of its first call, with no option on but those that are given."""
    checks = ("DOVETAIL_DEBUG", "DOVETAIL_CHECK_WEIGHTS")  # on in our own tests
    environment = {name: value for name, value in os.environ.items() if name not in checks}
    command = [sys.executable, "-c", CALL, json.dumps(options), *how]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("options", "how"),
    [({}, ()), ({"freeze": True}, ()), ({}, ("train",))],
    ids=["plain", "frozen", "training"],
)
def test_a_hit_imports_nothing_that_compiles(options, how):
    cold, warm = call(options, *how), call(options, *how)
    assert "miss" in cold["cache"]
    assert set(COMPILES) <= set(cold["modules"])  # these are the names that they have
    assert set(warm["cache"]) == {"hit"}
    assert among(warm["modules"], (*COMPILES, *NEITHER)) == []
    assert among(cold["modules"], NEITHER) == []


def among(modules, without):
    return [name for name in modules if any(f"{name}.".startswith(f"{w}.") for w in without)]
