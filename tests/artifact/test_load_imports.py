"""What a process imports to load and run a file whose code it trusts: nothing that makes code."""

import json
import subprocess
import sys

import pytest
import torch

import dovetail

pytest.importorskip("llvmlite")
pytestmark = pytest.mark.e2e
MAKES_CODE = ("codegen", "compilers", "ir.kernel", "ir.target", "lower", "place", "schedule")
CODE = """
import json, sys
import torch
import dovetail

model = dovetail.load(sys.argv[1], trust=True)
print(json.dumps([
    model(torch.arange(64.0)).tolist(),
    [name for name in sys.modules if name.startswith(("dovetail", "llvmlite"))],
]))
"""


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x * 2, -1)


def test_trusted_code_is_run_by_nothing_that_makes_code(tmp_path):
    x = torch.arange(64.0)
    dovetail.export(Model(), (x,), backend="cpu").save(tmp_path / "model.dvt")
    command = [sys.executable, "-c", CODE, str(tmp_path / "model.dvt")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found, modules = json.loads(done.stdout.splitlines()[-1])
    torch.testing.assert_close(torch.tensor(found), Model()(x))
    needless = [
        name
        for name in modules
        if name.startswith("llvmlite")
        or any(f"{name}.".startswith(f"dovetail.{made}.") for made in MAKES_CODE)
    ]
    assert needless == []
