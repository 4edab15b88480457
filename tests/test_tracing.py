"""TORCH_TRACE and TORCH_LOGS show what dovetail did."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.differential import needs_code

SCRIPT = """
import torch
def f(x, w):
    return torch.nn.functional.gelu(x @ w).sum()
x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
torch.compile(f, backend="dovetail")(x, w).backward()
with torch.no_grad():
    torch.compile(f, backend="dovetail")(x, w)
"""


def run_script(**env):
    """What a process says that has nothing cached."""
    command = [sys.executable, "-c", SCRIPT]
    env = os.environ | {"DOVETAIL_CACHE": "0"} | env
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stderr


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A folder of traces, and what the process said that wrote them."""
    folder = tmp_path_factory.mktemp("trace")
    return folder, run_script(TORCH_TRACE=str(folder))


@pytest.mark.e2e
@pytest.mark.xdist_group("tracing")
def test_tlparse_reads_our_trace(traced, tmp_path):
    tlparse = shutil.which("tlparse", path=str(Path(sys.executable).parent)) or shutil.which(
        "tlparse"
    )
    assert tlparse, "tlparse is part of the dev extra"
    traces, report = traced[0], tmp_path / "report"
    (log,) = traces.glob("*.log")
    done = subprocess.run(
        [tlparse, str(log), "-o", str(report), "--no-browser", "--strict"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = {p.name: p.read_text() for p in report.rglob("dovetail_*") if p.is_file()}
    kinds = {name.split("_graph")[0] for name in shown}
    assert {"dovetail_forward", "dovetail_backward", "dovetail_inference"} <= kinds
    assert any("aten.gelu" in text for text in shown.values())
    index = (report / "index.html").read_text()
    assert "dovetail_forward_graph" in index


@pytest.mark.e2e
@pytest.mark.xdist_group("tracing")
@needs_code
def test_torch_logs_takes_inductors_names(traced):
    text = run_script(TORCH_LOGS="output_code,fusion,post_grad_graphs,schedule,kernel_code")
    for name in ("output_code", "fusion", "post_grad_graphs", "schedule", "kernel_code"):
        assert f"[__{name}]" in text
        assert f"[__{name}]" not in traced[1]
    assert "define" in text  # LLVM's text
    assert "schedule x86-64" in text or "schedule armv8" in text
    assert "computes " in text
    assert "kernel %" in text  # the program
    assert "inference graph, segment_0 on cpu" in text


@pytest.mark.e2e
@pytest.mark.xdist_group("tracing")
def test_torch_logs_shows_our_graphs(traced):
    text = run_script(TORCH_LOGS="+dovetail")
    assert "forward graph" in text
    assert "aten.gelu" in text
    assert "forward graph" not in traced[1]
