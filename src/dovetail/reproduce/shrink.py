"""The smallest part of a graph that still fails in the same way.

First single calls, by the values they were given: most failures are of one call. Else calls are
taken out in halves, quarters and so on (delta debugging), what they computed becoming inputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def shrink(
    items: Sequence[Item], still_fails: Callable[[Sequence[Item]], bool], seconds: float
) -> list[Item]:
    """As few items as can be found in the time; ``items`` all together fail."""
    end = time.monotonic() + seconds
    if len(items) > 1:
        for item in reversed(items):
            if time.monotonic() > end:
                return list(items)
            if still_fails([item]):
                return [item]
    return _without_needless(list(items), still_fails, end)


def _without_needless(
    items: list[Item], still_fails: Callable[[Sequence[Item]], bool], end: float
) -> list[Item]:
    size = max(len(items) // 2, 1)
    while len(items) > 1:
        smaller = _drop_one_chunk(items, size, still_fails, end)
        if smaller is not None:
            items = smaller
            size = min(size, max(len(items) // 2, 1))
        elif size == 1 or time.monotonic() > end:
            break
        else:
            size = max(size // 2, 1)
    return items


def _drop_one_chunk(
    items: list[Item], size: int, still_fails: Callable[[Sequence[Item]], bool], end: float
) -> list[Item] | None:
    """The items without the first chunk of this size that is not needed; None: all are."""
    for start in range(0, len(items), size):
        rest = items[:start] + items[start + size :]
        if time.monotonic() > end:
            return None
        if rest and still_fails(rest):
            return rest
    return None
