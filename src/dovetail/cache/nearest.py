"""Which of several keys is nearest to one: the one that shares what few others share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence


def differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """The names of the parts, hashes by name, that differ or that only one has."""
    return [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]


def nearest(ours: Mapping[str, str], others: Sequence[Mapping[str, str]]) -> int | None:
    """The index of the nearest other; None where there is none but ``ours`` itself.

    A part that two keys share tells the more the fewer have it: a graph that two keys have says
    that they are of one model, a version that all have says nothing. Of equally near ones the
    first is taken that differs latest in the parts' order.
    """
    holders = Counter(part for other in others for part in other.items())

    def nearness(other: Mapping[str, str]) -> tuple[float, int]:
        alike = [ours[name] == other.get(name) for name in ours]
        shared = sum(1 / holders[part] for part in ours.items() & other.items())
        return shared, [*alike, False].index(False)

    candidates = [index for index, other in enumerate(others) if other != ours]
    return max(candidates, key=lambda index: nearness(others[index]), default=None)
