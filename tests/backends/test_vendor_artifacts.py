"""Artifacts that carry the code of backends in Python, run in a new process."""

import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

import dovetail
from dovetail import registry
from dovetail.backends.portable import PortableBackend

pytestmark = pytest.mark.e2e


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 4), nn.LayerNorm(16)

    def forward(self, x):
        return torch.softmax(self.down(self.norm(nn.functional.gelu(self.up(x)))), -1)


@pytest.fixture(params=["onnxruntime", "opencl"])
def name(request):
    answer = registry.get_backend(request.param).available()
    if not answer:
        pytest.skip(answer.reason)
    return request.param


def test_an_artifact_runs_in_another_process(name, tmp_path, capsys):
    from dovetail.cli import main

    model, x = Model().eval(), torch.randn(3, 8)
    dovetail.export(model, (x,), backend=name).save(tmp_path / "model.dvt")
    torch.save((x, model(x).detach()), tmp_path / "expected.pt")
    assert main(["inspect", str(tmp_path / "model.dvt")]) == 0
    assert f"of {name}" in capsys.readouterr().out
    code = f"""
import torch, dovetail
run = dovetail.load({str(tmp_path / "model.dvt")!r}, trust=True)
x, expected = torch.load({str(tmp_path / "expected.pt")!r})
for _ in range(2):
    torch.testing.assert_close(run(x), expected)
print("same")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "same\n", done.stderr


def test_a_pickle_names_a_file_whose_code_is_an_artifact_itself(tmp_path):
    """The digest that a pickle holds is that of the file, not of the artifacts inside it."""

    class Vendor(PortableBackend):
        name = "vendor_of_artifacts"

    model, x = Model().eval(), torch.randn(3, 8)
    with registry.registered_backend(Vendor):
        dovetail.export(model, (x,), backend=Vendor.name).save(tmp_path / "model.dvt")
        run = dovetail.load(tmp_path / "model.dvt", trust=True)
        again = pickle.loads(pickle.dumps(run))
        torch.testing.assert_close(again(x), model(x).detach())
