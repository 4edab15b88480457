"""What a process imports for a graph that the cache has: nothing that compiles."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.differential import needs_code

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

CALLS = """
import json, sys
import torch
from torch import nn
from dovetail import history

def call(trains, **options):
    torch.compiler.reset()
    history.clear()
    features = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()
    model = nn.Sequential(*features, nn.Linear(288, 5)).train(trains)
    with torch.set_grad_enabled(trains):
        result = torch.compile(model, backend="dovetail", options=options)(torch.randn(2, 3, 8, 8))
        if trains:
            result.sum().backward()
    return {
        "cache": [v.state for c in history.recent() for v in c.cache],
        "modules": [name for name in sys.modules if name.startswith(("dovetail", "llvmlite"))],
    }

calls = {"plain": call(False), "frozen": call(False, freeze=True), "training": call(True)}
print(json.dumps(calls))
"""


def in_a_process():
    """What a new process says after each of its first calls, with no option on but theirs."""
    checks = ("DOVETAIL_DEBUG", "DOVETAIL_CHECK_WEIGHTS")  # on in our own tests
    environment = {name: value for name, value in os.environ.items() if name not in checks}
    command = [sys.executable, "-c", CALLS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def among(modules, without):
    return [name for name in modules if any(f"{name}.".startswith(f"{w}.") for w in without)]


@needs_code
def test_a_hit_imports_nothing_that_compiles():
    cold, warm = in_a_process(), in_a_process()
    for said in cold.values():
        assert "miss" in said["cache"]
        assert set(COMPILES) <= set(said["modules"])  # these are the names that they have
        assert among(said["modules"], NEITHER) == []
    for said in warm.values():
        assert set(said["cache"]) == {"hit"}
        assert among(said["modules"], (*COMPILES, *NEITHER)) == []
