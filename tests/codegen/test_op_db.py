"""PyTorch's op_db against eager: no wrong result, no crash.

``DOVETAIL_OP_DB=alone`` compiles every case by itself.
"""

import os
import warnings

import pytest

from tests.codegen.sweep import check, operators

GROUPS = 48
ALONE = os.environ.get("DOVETAIL_OP_DB") == "alone"


@pytest.mark.e2e
@pytest.mark.parametrize("group", range(GROUPS))
def test_operators(group):
    problems, compared = [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in operators()[group::GROUPS]:
            wrong, count = check(op, alone=ALONE)
            problems += wrong
            compared += count
    assert compared > 0
    assert not problems, "\n".join(f"{case} | {problem}" for case, problem in problems)
