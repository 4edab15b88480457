"""Which of several keys is nearest to one: the one that shares what few others share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress


def differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """The names of the parts, hashes by name, that differ or that only one has."""
    return [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]


def nearest(ours: Mapping[str, str], others: Sequence[Mapping[str, str]]) -> int | None:
    """The index of the nearest other; None where there is none but ``ours`` itself.

    A part that two keys share tells the more the fewer have it: a graph that two keys have says
    that they are of one model, a version that all have says nothing. Of equally near ones the
    first is taken that differs latest in the parts' order.
    """
    alike = [[other.get(name) == hashed for name, hashed in ours.items()] for other in others]
    worth = [1 / max(1, sum(column)) for column in zip(*alike, strict=True)]

    def nearness(index: int) -> tuple[float, int]:
        return sum(compress(worth, alike[index])), [*alike[index], False].index(False)

    candidates = [index for index, other in enumerate(others) if other != ours]
    return max(candidates, key=nearness, default=None)
