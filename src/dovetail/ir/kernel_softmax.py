"""Loops of a kernel that find a row's maximum and its sum of powers: one pass can do both."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from dovetail.ir.kernel import Apply, Instruction, Kernel, Load, Loop, Position, Reduce, Scan, Store


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
