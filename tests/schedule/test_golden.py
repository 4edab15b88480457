"""Schedules of kernels on AVX-512, AVX2 and NEON as they were; ``golden.py`` writes them anew."""

import re

import pytest

from dovetail.ir.target import TARGETS
from dovetail.schedule.text import parse_schedule
from dovetail.schedule.verify_schedule import verify_schedule
from tests.schedule.golden import NAMES, files, kernel_in, text_of


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_golden(path):
    """A change of strategy shows here; ``python -m tests.schedule.golden`` where it is meant."""
    assert text_of(kernel_in(path)) == path.read_text()


def test_there_are_thirty_and_all_decisions_are_among_them():
    texts = [path.read_text() for path in files()]
    assert len(texts) >= 30
    words = {word for text in texts for word in re.findall(r"^ +(\w+)", text, re.MULTILINE)}
    decisions = {"vector", "block", "steps", "tile", "transposed", "calls", "erf_plus_one", "cost"}
    assert words >= decisions | {"chunk", "exact", "multiply_adds", "scans", "interleaved"}


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_what_the_files_say_is_valid(path):
    """The files themselves are read, not what is made now."""
    _, *texts = re.split(r"^(?=schedule )", path.read_text(), flags=re.MULTILINE)
    assert len(texts) == len(NAMES)
    for text, name in zip(texts, NAMES, strict=True):
        verify_schedule(kernel_in(path), parse_schedule(text), TARGETS[name])
