"""Instructions that are better done together: multiply-adds, 1 + erf, interleaved accesses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dovetail.ir.dtypes import FLOATS
from dovetail.ir.kernel import Apply, Const, Kernel, Load, Loop, Reduce, Store

Group = tuple[int, ...]  # instructions by their places in a loop's body


def multiply_adds(loop: Loop) -> tuple[str, ...]:
    """Products that are only summed: a fused multiply-add is faster, and rounds once less."""
    used = Counter(name for i in loop.body for name in i.uses)
    summed = {i.args[0]: i.dtype for i in loop.body if isinstance(i, Reduce) and i.op == "sum"}
    return tuple(
        i.name
        for i in loop.body
        if isinstance(i, Apply) and i.op == "mul" and i.dtype in FLOATS
        if used[i.name] == 1 and summed.get(i.name) == i.dtype
    )


def erf_plus_one(kernel: Kernel) -> tuple[str, ...]:
    """Sums of 1 and an error function (GELU is made of one).

    They need no more than the sum's own accuracy, which is cheaper.
    """
    ones = {i.name for i in kernel.instructions() if isinstance(i, Const) and i.value == 1}
    erfs = {i.name for i in kernel.instructions() if isinstance(i, Apply) and i.op == "erf"}
    if not erfs:
        return ()
    return tuple(
        i.name
        for i in kernel.instructions()
        if isinstance(i, Apply) and i.op == "add" and ones & set(i.args) and erfs & set(i.args)
    )


def interleaved(loop: Loop, moving: str, roles: Mapping[str, str]) -> tuple[Group, ...]:
    """Accesses that together are dense along ``moving``: every second, third or fourth element.

    Each group is in the order of memory.
    """
    same: dict[tuple[int, object], dict[int, int]] = {}
    for place, i in enumerate(loop.body):
        if not isinstance(i, Load | Store) or i.index.values:
            continue
        step, offset = i.index.stride(moving), i.index.offset
        if roles[i.buffer] == "inout" or (isinstance(i, Load) and i.mask is not None):
            continue
        if isinstance(step, int) and 2 <= step <= 4 and isinstance(offset, int):
            which = (type(i), i.buffer, frozenset(i.index.axes))
            same.setdefault((step, which), {}).setdefault(offset, place)
    return tuple(run for (length, _), places in same.items() for run in _runs(places, length))


def _runs(places: dict[int, int], length: int) -> list[Group]:
    """Accesses at as many neighbouring offsets as each skips, in groups."""
    found = []
    left = dict(places)
    for offset in sorted(places):
        run = [left[n] for n in range(offset, offset + length) if n in left]
        if len(run) == length:
            found.append(tuple(run))
            for n in range(offset, offset + length):
                del left[n]
    return found
