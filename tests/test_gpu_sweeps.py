"""op_db and random programs on a CUDA device; ``python -m tests.gpu_sweep`` is the long form."""

import importlib.util
import os

import pytest
import torch

from tests.gpu_sweep import KINDS, program

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton"),
]
COUNT = int(os.environ.get("DOVETAIL_RANDOM_GRAPHS", "40"))
GROUPS = 48


@pytest.mark.parametrize("first", range(0, COUNT, 10))
def test_random_programs(first):
    problems = [p for seed in range(first, min(first + 10, COUNT)) for p in program(seed)[0]]
    assert not problems, "\n".join(problems)


@pytest.mark.e2e
@pytest.mark.parametrize("group", range(GROUPS))
def test_operators(group):
    from tests.codegen.sweep import check, operators

    problems, compared = [], 0
    for op in operators()[group::GROUPS]:
        wrong, count = check(op, backend="cuda", device="cuda", kinds=KINDS)
        problems += wrong
        compared += count
    assert compared > 0
    assert not problems, "\n".join(f"{case} | {problem}" for case, problem in problems)
