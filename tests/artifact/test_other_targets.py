"""Files with code for other machines: it is the same wherever it is made."""

import pytest
import torch

import dovetail
from dovetail.codegen.llvm.target import NAMED
from dovetail.file.processors import family

pytest.importorskip("llvmlite")
SMALLER = ("x86-64-v3", "x86-64-v4") if family() == "x86-64" else ("armv8-a",)


class Model(torch.nn.Module):
    def forward(self, x):
        y = torch.nn.functional.gelu(x.t() * 2).contiguous()
        return torch.softmax(y, -1), x.sum(), x.cumsum(1), x.argmax(0)


@pytest.mark.parametrize("target", NAMED)
def test_code_for_a_target_is_that_of_any_machine(tmp_path, monkeypatch, target):
    made = set()
    for held in SMALLER:
        monkeypatch.setenv("DOVETAIL_PROCESSOR", held)
        torch.compiler.reset()
        x = torch.randn(40, 70, generator=torch.Generator().manual_seed(0))
        exported = dovetail.export(Model(), (x,), backend="cpu", options={"cache": False})
        exported.save(tmp_path / f"{held}.dvt", targets=(target,))
        made.add((tmp_path / f"{held}.dvt").read_bytes())
    assert len(made) == 1
