"""Each teaching example runs in a new process and prints what docs/examples.md shows."""

import os
import re
import shutil
import subprocess
import sys

import pytest
import torch

from dovetail.file.processors import no_code_here
from tests.ground.environments import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("[0-9]_*.py"))
DOCS = (ROOT / "docs" / "examples.md").read_text()
SHOWN = dict(re.findall(r"^## \[([^\]]+\.py)\].*?^```text\n(.*?)^```", DOCS, re.DOTALL | re.M))


def normal(text):
    """Without what differs from run to run: addresses, digests, times, symbols, blank ends."""
    text = re.sub(r"\b0x[0-9a-f]{6,}\b", "ADDRESS", text)
    text = re.sub(r"\bgenerated\.[0-9a-f]{16}", "generated.DIGEST", text)
    text = re.sub(r"\b[\d.]+ (s|ms|us)\b", r"TIME \1", text)
    text = re.sub(r"\bs\d+\b", "SYMBOL", text)
    return [line.rstrip() for line in text.strip().splitlines()]


def needs(path):
    """Skip where what an example is about is not on this machine."""
    if path.name[:2] in ("1_", "5_") and no_code_here():
        pytest.skip(no_code_here())
    if "4_" in path.name and not (shutil.which("cc") and shutil.which("make")):
        pytest.skip("no C compiler or no make")
    if "5_" in path.name and torch.cuda.is_available():
        pytest.skip("it prints more than the docs show where there is a GPU")


@pytest.mark.e2e
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_the_docs_show(path):
    needs(path)
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "DOVETAIL_STRICT": "1", "DOVETAIL_DEBUG": "0"},
    )
    assert done.returncode == 0, done.stderr
    assert normal(done.stdout) == normal(SHOWN[path.name])


def test_the_docs_show_every_example():
    assert list(SHOWN) == [path.name for path in EXAMPLES]
    assert len(EXAMPLES) == 5


def test_examples_are_short():
    for path in EXAMPLES:
        assert len(path.read_text().splitlines()) <= 90, path.name
