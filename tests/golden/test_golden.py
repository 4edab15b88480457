"""What the compiler's middle decides is what the golden files say."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.differential import needs_code
from tests.golden import golden

pytestmark = pytest.mark.skipif(
    torch.__version__ < (2, 13), reason="graphs of older PyTorch differ in details"
)
AGAIN = "python -m tests.golden.golden writes it again; read the diff"


def test_there_are_enough_cases():
    assert len(golden.KERNELS) == 36
    assert len(golden.MODELS) == 5


@pytest.mark.parametrize("case", golden.CASES)
def test_texts(case):
    assert golden.text_of(case) == golden.path_of(case).read_text(), AGAIN


def test_targets():
    assert golden.target_texts() == (golden.HERE / "texts" / "targets.txt").read_text(), AGAIN


@needs_code
def test_the_page_on_the_middle_is_true():
    tool = Path(__file__).parents[2] / "tools" / "middle.py"
    done = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
