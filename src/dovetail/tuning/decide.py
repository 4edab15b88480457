"""Which of the measured candidates is taken."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

# What a candidate has to gain before it takes the place of the one that the rules take: two runs of
# the same code on a machine at other work differ by up to 5 %.
MARGIN = 0.05
# By how much the least times of both halves of the rounds may differ for them to say anything.
UNSTEADY = 0.1

Times = Mapping[str, Sequence[float]]  # seconds by candidate, in the order of rounds


def least(times: Sequence[float]) -> float:
    """The least of some seconds; infinity where there are none."""
    return min(times, default=math.inf)


def decide(times: Times, taken: str) -> str:
    """The name of the winner, empty where the times are too unsteady to tell.

    That is ``taken``, what the rules take, unless another is faster by the margin in both halves of
    the rounds: whatever else the machine did in one of them does not decide.
    """
    if not is_steady(times, taken):
        return ""
    first, second = _halves(times[taken])

    def is_ahead(name: str) -> bool:
        mine = _halves(times[name])
        return mine[0] < (1 - MARGIN) * first and mine[1] < (1 - MARGIN) * second

    ahead = [name for name in times if name != taken and is_ahead(name)]
    return min(ahead, key=lambda name: least(times[name]), default=taken)


def is_steady(times: Times, taken: str) -> bool:
    """Whether the rules' candidate and the fastest took the same in both halves of the rounds."""
    fastest = min(times, key=lambda name: least(times[name]))
    return all(_is_alike(*_halves(times[name])) for name in (taken, fastest))


def _is_alike(first: float, second: float) -> bool:
    return max(first, second) <= (1 + UNSTEADY) * min(first, second)


def _halves(times: Sequence[float]) -> tuple[float, float]:
    """The least of each half."""
    middle = len(times) // 2
    return least(times[:middle]), least(times[middle:])
