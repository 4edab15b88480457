"""The cheapest way to divide things in two: a minimum cut."""

from __future__ import annotations

from collections.abc import Hashable

FOREVER = 1 << 62  # more than all costs together: never cut


class MinCut:
    """Things, each on the left or on the right, and what it costs to have two of them apart.

    Costs are whole numbers, so that sums of them are exact. Flow is pushed from the left to the
    right along shortest paths, all of one length at a time (Dinic's algorithm), until every path
    is full somewhere.
    """

    def __init__(self) -> None:
        self.left, self.right = object(), object()
        self._numbers: dict[Hashable, int] = {self.left: 0, self.right: 1}
        self._edges: list[list[int]] = [[], []]  # from each thing; ``e ^ 1`` is edge ``e`` back
        self._ends: list[int] = []  # where each edge leads to
        self._room: list[int] = []  # how much more each edge can take
        self._flow = 0

    def add(self, left: Hashable, right: Hashable, cost: int) -> None:
        """It costs this much if ``left`` is on the left and ``right`` on the right."""
        start, end = self._number(left), self._number(right)
        if cost and start != end:
            edge = len(self._ends)
            self._edges[start].append(edge)
            self._edges[end].append(edge + 1)
            self._ends += (end, start)
            self._room += (cost, 0)

    def cost(self) -> int:
        """The least cost of things apart; ``FOREVER`` or more where some are that must not be."""
        while True:
            distances = self._distances_to_right()
            if distances[0] < 0:
                return self._flow
            self._flow += self._push(distances)

    def lefts(self) -> set[Hashable]:
        """The things on the left where all costs together are least; no more than need be."""
        self.cost()
        found, todo = {0}, [0]
        while todo:
            for edge in self._edges[todo.pop()]:
                end = self._ends[edge]
                if self._room[edge] and end not in found:
                    found.add(end)
                    todo.append(end)
        return {thing for thing, number in self._numbers.items() if number in found and number}

    def rights(self) -> set[Hashable]:
        """The things on the right where all costs together are least; no more than need be."""
        self.cost()
        distances = self._distances_to_right()
        return {thing for thing, number in self._numbers.items() if distances[number] > 0}

    def _number(self, thing: Hashable) -> int:
        number = self._numbers.setdefault(thing, len(self._edges))
        if number == len(self._edges):
            self._edges.append([])
        return number

    def _distances_to_right(self) -> list[int]:
        """How many edges with room there are from each thing to the right; -1: no way."""
        edges, ends, room = self._edges, self._ends, self._room
        distances = [-1] * len(edges)
        distances[1] = 0
        reached = [1]
        for thing in reached:  # which grows meanwhile
            further = distances[thing] + 1
            for edge in edges[thing]:
                end = ends[edge]
                if distances[end] < 0 and room[edge ^ 1]:
                    distances[end] = further
                    reached.append(end)
        return distances

    def _push(self, distances: list[int]) -> int:
        """Push flow along paths on which every edge is one nearer to the right; how much."""
        edges, ends, room = self._edges, self._ends, self._room
        tried = [0] * len(edges)  # of each thing's edges: these lead nowhere any more
        path: list[int] = []
        thing, pushed = 0, 0
        while True:
            if thing == 1:
                flow = min(room[edge] for edge in path)
                pushed += flow
                for edge in path:
                    room[edge] -= flow
                    room[edge ^ 1] += flow
                full = next(n for n, edge in enumerate(path) if not room[edge])
                thing = ends[path[full] ^ 1]
                del path[full:]
            here, nearer = edges[thing], distances[thing] - 1
            for n in range(tried[thing], len(here)):
                edge = here[n]
                if room[edge] and distances[ends[edge]] == nearer:
                    tried[thing] = n
                    path.append(edge)
                    thing = ends[edge]
                    break
            else:
                if not path:
                    return pushed
                tried[thing] = len(here)
                thing = ends[path.pop() ^ 1]
                tried[thing] += 1
