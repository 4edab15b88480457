"""Random networks against eager, judged by float64. ``make networks`` runs the long form."""

import os

import pytest

from tests.differential import needs_code
from tests.networks.ways import WAYS, check

pytestmark = needs_code
COUNT = int(os.environ.get("DOVETAIL_NETWORKS", "9"))
FIRST = int(os.environ.get("DOVETAIL_FIRST_NETWORK", "0"))


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, len(WAYS)))
def test_random_networks(first):
    problems = [
        p for seed in range(first, min(first + len(WAYS), FIRST + COUNT)) if (p := check(seed))
    ]
    assert not problems, "\n".join(problems)
