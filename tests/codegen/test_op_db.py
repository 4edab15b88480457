"""PyTorch's op_db against eager: no wrong result, no crash.

``make sweep`` (``DOVETAIL_SWEEP=1``) runs every operator; otherwise every sixteenth.
"""

import os
import warnings

import pytest

from tests.codegen.sweep import check, operators

STEP = 1 if os.environ.get("DOVETAIL_SWEEP") else 16
GROUPS = 48


@pytest.mark.e2e
@pytest.mark.parametrize("group", range(GROUPS))
def test_operators(group):
    chosen = operators()[::STEP]
    problems, compared = [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in chosen[group::GROUPS]:
            wrong, count = check(op)
            problems += wrong
            compared += count
    assert not problems, "\n".join(f"{case} | {problem}" for case, problem in problems)
