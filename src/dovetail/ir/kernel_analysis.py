"""Facts of a kernel that schedules and renderers need alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from dovetail.ir.kernel import (
    Apply,
    Index,
    Instruction,
    Kernel,
    Load,
    Loop,
    Position,
    Reduce,
    Scan,
    Store,
)


def without_idle_axes(kernel: Kernel) -> Kernel:
    """The kernel with no axis in an index that moves nothing: its place would have to be known."""

    def moving(index: Index) -> Index:
        return index.without([name for name, stride in index.axes if stride == 0])

    return replace(kernel, loops=tuple(loop.reindexed(moving) for loop in kernel.loops))


def varying(kernel: Kernel, vector: str | None) -> dict[str, bool]:
    """Which values differ from lane to lane.

    ``vector`` is the vectors' axis; one that is not the kernel's stands for every loop's last.
    """
    varies: dict[str, bool] = {}
    along_loops = vector is not None and all(a.name != vector for a in kernel.axes)
    for loop in kernel.loops:
        moving = loop.axes[-1].name if along_loops and loop.axes else vector
        for i in loop.body:
            found = any(varies.get(name, False) for name in i.uses)
            if isinstance(i, Load | Position | Store) and moving is not None:
                found |= i.index.stride(moving) != 0
            if along_loops and isinstance(i, Reduce | Scan):
                found = isinstance(i, Scan)
            varies[i.name] = found
    return varies


def read_after_written(kernel: Kernel) -> frozenset[str]:
    """Values that come from memory which the kernel writes: they are read in their order."""
    written = {b.name for b in kernel.buffers if b.role != "in"}
    found: set[str] = set()
    for i in kernel.instructions():
        if (isinstance(i, Load) and i.buffer in written) or not found.isdisjoint(i.uses):
            found.add(i.name)
    return frozenset(found)


class PowerSum(NamedTuple):
    """A loop's maximum, and the next loop's sum of powers of the same values less that maximum."""

    maximum: Reduce
    power: Apply
    total: Reduce


def power_sums(kernel: Kernel) -> dict[int, PowerSum]:
    """By the number of its first loop, every pair of loops that one pass over a row can do."""
    found: dict[int, PowerSum] = {}
    for number, (first, second) in enumerate(pairwise(kernel.loops)):
        pair = _power_sum(first, second)
        if pair is not None:
            found[number] = pair
    return found


def _power_sum(first: Loop, second: Loop) -> PowerSum | None:
    tops = [i for i in first.body if isinstance(i, Reduce | Scan | Store)]
    sums = [i for i in second.body if isinstance(i, Reduce | Scan | Store)]
    if not first.axes or first.axes != second.axes or len(tops) != 1 or len(sums) != 1:
        return None
    (top,), (total,) = tops, sums
    one, two = ({i.name: i for i in loop.body} for loop in (first, second))
    if not isinstance(top, Reduce) or not isinstance(total, Reduce):
        return None
    if (top.op, top.dtype, total.op, total.dtype) != ("max", "float32", "sum", "float32"):
        return None
    power = two.get(total.args[0])
    if not isinstance(power, Apply) or power.op not in ("exp", "exp_normal"):
        return None
    less = two.get(power.args[0])
    if not isinstance(less, Apply) or less.op != "sub" or less.args[1] != top.name:
        return None
    others = [i for i in second.body if i is not less and top.name in i.uses]
    if others or not _is_same(top.args[0], one, less.args[0], two):
        return None
    return PowerSum(top, power, total)


def _is_same(
    name: str, one: Mapping[str, Instruction], other: str, two: Mapping[str, Instruction]
) -> bool:
    """Whether two loops compute the same under two names."""
    a, b = one.get(name), two.get(other)
    if a is None or b is None:
        return name == other and a is b
    if type(a) is not type(b) or len(a.uses) != len(b.uses) or isinstance(a, Scan):
        return False
    if not all(_is_same(x, one, y, two) for x, y in zip(a.uses, b.uses, strict=True)):
        return False
    return _shape(a) == _shape(b)


def _shape(i: Instruction) -> tuple[object, ...]:
    """What an instruction is, but for the names of values."""
    if isinstance(i, Load):
        places = tuple(stride for _, stride in i.index.values)
        return i.dtype, i.buffer, i.index.offset, i.index.axes, places, i.mask is None
    if isinstance(i, Position):
        return (i.index,)
    if isinstance(i, Apply):
        return i.dtype, i.op
    return i.dtype, repr(getattr(i, "value", None))
