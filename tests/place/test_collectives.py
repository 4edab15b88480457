"""Collectives keep their order through placement, in two processes that talk to each other."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.differential import needs_code

ROOT = Path(__file__).parents[2]
pytestmark = [
    needs_code,
    pytest.mark.e2e,
    pytest.mark.skipif(
        not torch.distributed.is_available(), reason="this PyTorch has no collectives"
    ),
]


def test_two_processes_get_what_eager_gives(tmp_path):
    command = [sys.executable, "-m", "tests.place.collectives"]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "meeting")], cwd=ROOT, **pipe)
        for rank in range(2)
    ]
    try:
        answers = [process.communicate(timeout=240) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [out.strip() for out, _ in answers] == ["equal"] * 2, [err[-3000:] for _, err in answers]
