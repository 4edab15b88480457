"""Every shipped backend against eager, compiled and exported.

``make test-backends`` (``DOVETAIL_BACKENDS=all``) runs every case by itself and in bfloat16 too;
``make test`` some of them, as one program for each backend.
"""

import os

import pytest
import torch

from tests.backends.suite import SHIPPED, available, bundle, problems_of
from tests.backends.suite_cases import FAMILIES, quick

WHOLE = os.environ.get("DOVETAIL_BACKENDS") == "all"
CASES = [(family, name) for family, cases in FAMILIES.items() for name in cases if WHOLE]
TYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(params=SHIPPED)
def backend(request):
    reason = available(request.param)
    if reason:
        pytest.skip(reason)
    return request.param


def test_some_cases_together(backend, tmp_path):
    problems = problems_of(bundle(quick()), backend, tmp_path, modes=("training", "exported"))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("dtype", TYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "name"), CASES)
def test_cases(family, name, dtype, backend, tmp_path):
    problems = problems_of(FAMILIES[family][name].cast(dtype), backend, tmp_path)
    assert not problems, "\n".join(problems)
