"""Softmax of long rows: each part's maximum and sum of powers are found while it is in cache.

A row that stays in cache is read three times, and its powers are computed once. A longer one is
read twice: a part's sum of powers is relative to its own maximum, and is scaled afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dovetail.lower.expression import Builder, Compute, Expression, Read, inline
from dovetail.lower.index_map import IndexMap, Indices, variables
from dovetail.lower.reductions import kept_index
from dovetail.lower.rules import Lower
from dovetail.lower.softmax import powers
from dovetail.lower.values import Pointwise, Reduction, Value


def sum_of_powers(highest: Value, made: Sequence[Value]) -> Reduction | None:
    """The sum of exponentials relative to a maximum over the same dimensions, if there is one."""
    if not isinstance(highest, Reduction) or highest.op != "max":
        return None
    for value in made:
        if not isinstance(value, Reduction) or value.op != "sum" or not _is_copy(value):
            continue
        (power,) = value.reads
        same = (value.source_shape, value.dims) == (highest.source_shape, highest.dims)
        if same and _is_power(power, highest):
            return value
    return None


def _is_copy(value: Reduction) -> bool:
    nodes = value.expression.nodes
    whole = IndexMap(variables(value.expression.rank))
    return len(nodes) == 1 and isinstance(nodes[0], Read) and nodes[0].index == whole


def _is_power(value: Value, highest: Reduction) -> bool:
    """Whether a value is the exponential of what is reduced to a maximum, less that maximum."""
    if not isinstance(value, Pointwise) or len(value.reads) != 1:
        return False
    moved, last = value.reads[0], value.expression.nodes[-1]
    if not isinstance(last, Compute) or last.op not in ("exp", "exp_normal"):
        return False
    if not isinstance(moved, Pointwise) or moved.reads != (*highest.reads, highest):
        return False
    return moved.expression == _moved(highest)


def _moved(highest: Reduction) -> Expression:
    """An element less its row's maximum."""
    element, rank = highest.expression, len(highest.source_shape)
    (x,) = element.results
    keep = IndexMap.of(rank, kept_index(highest.dims, rank))
    row = Read(len(highest.reads), keep, highest.accumulate)
    off = Compute("sub", highest.accumulate, (x, f"%{len(element.nodes)}"))
    return Expression(rank, (*element.nodes, row, off), (f"%{len(element.nodes) + 1}",))


class SoftmaxParts:
    """Rows in parts, each with its own maximum and its sum of powers relative to that.

    A part is the dimensions that are reduced, where an element stands in the whole, and where the
    parts are among the dimensions that remain.
    """

    def __init__(
        self,
        lower: Lower,
        whole: Reduction,
        parts: Sequence[tuple[tuple[int, ...], IndexMap, int | None]],
        tops: Sequence[Reduction],
    ) -> None:
        self.lower, self.whole, self.parts, self.tops = lower, whole, parts, tops
        pairs = zip(parts, tops, strict=True)
        self.own = [self._sum(dims, at, top) for (dims, at, _), top in pairs]

    def sums(self, highest: Value) -> list[Value]:
        """The parts' sums of powers relative to the maxima of their rows."""
        each = zip(self.parts, self.tops, self.own, strict=True)
        return [self._scaled(highest, place, top, own) for (_, _, place), top, own in each]

    def _sum(self, dims: tuple[int, ...], at: IndexMap, top: Reduction) -> Value:
        """The parts' sums; those of nothing but -inf are 0, for their powers are."""
        whole, dtype = self.whole, self.whole.dtype
        keep = kept_index(dims, len(top.source_shape))

        def finite(b: Builder, index: Indices) -> str:
            x = b.read(top, index)
            nothing = b.apply("eq", "bool", x, b.const(-math.inf, dtype))
            return b.apply("where", dtype, nothing, b.const(0, dtype), x)

        base = self.lower.inner("base", dtype, top.shape, finite, (top,))

        def power(b: Builder, index: Indices) -> tuple[str, ...]:
            (x,) = inline(b, whole.expression, whole.reads, at.at(index))
            off = b.apply("sub", dtype, x, b.read(base, keep(index)))
            return (b.apply("exp_normal", dtype, off),)

        name, reads = self.lower.fresh("sum"), (*whole.reads, base)
        return Reduction(name, dtype, "sum", top.source_shape, dims, power, reads, dtype)

    def _scaled(self, highest: Value, place: int | None, top: Value, own: Value) -> Pointwise:
        dtype = self.whole.dtype

        def shifted(b: Builder, index: Indices) -> str:
            row = tuple(i for d, i in enumerate(index) if d != place)
            return b.apply("sub", dtype, b.read(top, index), b.read(highest, row))

        moved = self.lower.inner("shifted", dtype, top.shape, shifted, (top, highest))
        factor = powers(self.lower, moved, "exp_normal")

        def body(b: Builder, index: Indices) -> str:
            return b.apply("mul", dtype, b.read(own, index), b.read(factor, index))

        return self.lower.inner("scaled", dtype, top.shape, body, (own, factor))
