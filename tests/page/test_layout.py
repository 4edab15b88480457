"""The layered layout: data goes down, nothing overlaps."""

import itertools
import random

import pytest

from dovetail.page.layout import COLUMN, layered


def random_edges(count, seed):
    rng = random.Random(seed)
    return [(rng.randrange(n), n) for n in range(1, count) for _ in range(rng.randint(0, 3))]


@pytest.mark.parametrize("seed", range(5))
def test_edges_go_down_and_nodes_are_apart(seed):
    edges = random_edges(200, seed)
    places = layered(200, edges)
    assert all(places[a][1] < places[b][1] for a, b in edges)
    rows = {}
    for x, y in places:
        rows.setdefault(y, []).append(x)
    for row in rows.values():
        row.sort()
        assert all(b - a >= COLUMN - 0.2 for a, b in itertools.pairwise(row))


def test_a_chain_is_straight():
    places = layered(6, [(n, n + 1) for n in range(5)])
    assert len({x for x, _ in places}) == 1


def test_weights_stand_beside_what_uses_them():
    # x, w1, w2, t1 = w1.t(), h = x @ t1, t2 = w2.t(), y = h @ t2
    places = layered(7, [(1, 3), (0, 4), (3, 4), (2, 5), (4, 6), (5, 6)])
    assert places[5][1] == places[4][1]  # t2 beside h, not at the top
    assert places[2][1] == places[3][1]


def test_odd_graphs():
    assert layered(0, []) == []
    assert len(layered(3, [])) == 3
    assert len(layered(2, [(1, 0), (0, 0)])) == 2  # a cycle, as a broken file may have it


def test_the_same_graph_is_laid_out_alike():
    edges = random_edges(300, 1)
    assert layered(300, edges) == layered(300, edges)
