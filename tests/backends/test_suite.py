"""Every shipped backend against eager, compiled and exported.

``make test-backends`` (``DOVETAIL_BACKENDS=all``) runs every case by itself and in bfloat16 too;
``make test`` some of them, as one program for each backend.
"""

import os
import warnings

import pytest
import torch

from tests.backends.suite import SHIPPED, available, bundle, eagerly, problems_of, without_fast_path
from tests.backends.suite_cases import FAMILIES, quick
from tests.backends.suite_op_db import check_exported
from tests.codegen import sweep

WHOLE = os.environ.get("DOVETAIL_BACKENDS") == "all"
CASES = [(family, name) for family, cases in FAMILIES.items() for name in cases if WHOLE]
GROUPS = 48  # of the operators of op_db
TYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(params=SHIPPED)
def backend(request):
    reason = available(request.param)
    if reason:
        pytest.skip(reason)
    return request.param


@pytest.mark.parametrize("mode", ["training", "exported"])
def test_some_cases_together(mode, backend, tmp_path):
    together = bundle([case for case in quick() if case.grad or mode == "exported"])
    assert not isinstance(eagerly(together, mode == "training"), Exception)
    problems = problems_of(together, backend, tmp_path, modes=(mode,))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("dtype", TYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "name"), CASES)
def test_cases(family, name, dtype, backend, tmp_path):
    case = FAMILIES[family][name].cast(dtype)
    expected = eagerly(case, case.grad)
    if isinstance(expected, Exception) and dtype != torch.float32 and not case.raises:
        pytest.skip(f"eager has no kernel for this type: {expected}")
    assert isinstance(expected, Exception) == case.raises
    problems = problems_of(case, backend, tmp_path)
    assert not problems, "\n".join(problems)


def test_one_operator_of_op_db(tmp_path):
    """What ``test_op_db`` relies on, so that a change of it shows in the short form too."""
    op = next(op for op in sweep.operators() if op.name == "addmv")
    assert not sweep.check(op, "reference")[0]
    assert not check_exported(op, "reference", tmp_path)


@pytest.mark.parametrize("group", range(GROUPS) if WHOLE else ())
def test_op_db(group, backend, tmp_path):
    problems = []
    with warnings.catch_warnings(), without_fast_path():
        warnings.simplefilter("ignore")
        for op in sweep.operators()[group::GROUPS]:
            problems += [f"{case} | {problem}" for case, problem in sweep.check(op, backend)[0]]
            problems += check_exported(op, backend, tmp_path)
    assert not problems, "\n".join(problems)
