"""The cheapest way to divide things in two: a minimum cut."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

FOREVER = 1 << 62  # more than all costs together: never cut


class MinCut:
    """Things, each on the left or on the right, and what it costs to have two of them apart.

    Costs are whole numbers, so that sums of them are exact.
    """

    def __init__(self) -> None:
        self.left, self.right = object(), object()
        self._room: dict[Hashable, dict[Hashable, int]] = {self.left: {}, self.right: {}}

    def add(self, left: Hashable, right: Hashable, cost: int) -> None:
        """It costs this much if ``left`` is on the left and ``right`` on the right."""
        if cost and left is not right:
            forth = self._room.setdefault(left, {})
            forth[right] = min(forth.get(right, 0) + cost, FOREVER)
            self._room.setdefault(right, {}).setdefault(left, 0)

    def lefts(self) -> set[Hashable]:
        """The things on the left where all costs together are least; no more than need be."""
        while True:
            before = self._reach()
            if self.right not in before:
                return set(before) - {self.left}
            path = [self.right]
            while path[-1] is not self.left:
                path.append(before[path[-1]])
            steps = [(path[n + 1], path[n]) for n in range(len(path) - 1)]
            flow = min(self._room[a][b] for a, b in steps)
            for a, b in steps:
                self._room[a][b] -= flow
                self._room[b][a] += flow

    def _reach(self) -> dict[Hashable, Hashable]:
        """What is reached from the left along edges with room, and from where."""
        before: dict[Hashable, Hashable] = {self.left: None}
        todo = deque([self.left])
        while todo and self.right not in before:
            node = todo.popleft()
            for other, room in self._room[node].items():
                if room and other not in before:
                    before[other] = node
                    todo.append(other)
        return before
