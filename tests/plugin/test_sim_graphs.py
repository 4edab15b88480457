"""Random graphs, split between the simulator and ``cpu``, against eager.

``make sim`` runs the long form: ``DOVETAIL_SIM_GRAPHS=1000``.
"""

import os

import pytest

from dovetail import history
from tests.codegen.random_graphs import check
from tests.differential import needs_code

pytestmark = [pytest.mark.e2e, needs_code]
COUNT = int(os.environ.get("DOVETAIL_SIM_GRAPHS", "4"))
GROUP = 20


@pytest.mark.parametrize("first", range(0, COUNT, GROUP))
def test_random_graphs_split_between_two_devices(sim, first):
    problems, split = [], 0
    for seed in range(first, min(first + GROUP, COUNT)):
        problem = check(seed, sim.name, {"backends": [sim.name, "cpu"]})
        problems += [problem] if problem else []
        used = {s.backend for graph in history.recent()[-1].graphs for s in graph.segments}
        split += {sim.name, "cpu"} <= used
    assert not problems, "\n".join(problems)
    assert split > 0
