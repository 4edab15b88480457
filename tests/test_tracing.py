"""TORCH_TRACE and TORCH_LOGS show what dovetail did."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
    return subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.usefixtures("no_cache")
@pytest.mark.e2e
def test_tlparse_reads_our_trace(tmp_path):
    tlparse = shutil.which("tlparse", path=str(Path(sys.executable).parent)) or shutil.which(
        "tlparse"
    )
    assert tlparse, "tlparse is part of the dev extra"
    traces, report = tmp_path / "trace", tmp_path / "report"
    run_script(TORCH_TRACE=str(traces))
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


@pytest.mark.usefixtures("no_cache")
@pytest.mark.e2e
def test_torch_logs_shows_our_graphs():
    text = run_script(TORCH_LOGS="+dovetail").stderr
    assert "forward graph" in text
    assert "aten.gelu" in text
    assert "forward graph" not in run_script().stderr
