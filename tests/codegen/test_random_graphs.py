"""Random programs against eager. ``DOVETAIL_RANDOM_GRAPHS=2000`` runs the long form."""

import os

import pytest

from tests.codegen.random_graphs import check

COUNT = int(os.environ.get("DOVETAIL_RANDOM_GRAPHS", "40"))
GROUP = 10


@pytest.mark.parametrize("first", range(0, COUNT, GROUP))
def test_random_graphs(first):
    problems = [p for seed in range(first, min(first + GROUP, COUNT)) if (p := check(seed))]
    assert not problems, "\n".join(problems)
