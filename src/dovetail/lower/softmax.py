"""Softmax: every row's maximum, the sum of its powers, and what follows from both.

A row that stays in cache is read three times, and its powers are computed once. A longer one is
read twice: each part's maximum, and its sum of powers relative to that maximum, are found while
the part is in cache, and are put together afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from dovetail.ir.call import OpCall
from dovetail.lower.expression import Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.reductions import kept_index, reduction
from dovetail.lower.rules import Lower, Refused, compute, dims_of, rule, tensor
from dovetail.lower.staged import Fold, Piece, join, pieces, where_to_cut
from dovetail.lower.values import Pointwise, Value


@rule("_softmax.default", "_log_softmax.default")
def lower_softmax(lower: Lower, call: OpCall) -> Value:
    """Powers relative to the maximum over their sum, or the logarithm of that."""
    source, desc = lower.value(call.args[0]), tensor(call.output)
    rank, dtype = len(source.shape), compute(desc.dtype)
    if call.args[2] and source.dtype != "float16":
        raise Refused("half to float")
    if not rank:
        raise Refused("a softmax of a number")
    dims = dims_of(call.args[1], rank)
    keep = kept_index(dims, rank)

    def element(b: Builder, index: Indices) -> tuple[str, ...]:
        return (b.cast(b.read(source, index), dtype),)

    whole = Fold("max", source.shape, dims, element, (source,), dtype, dtype)
    cut = where_to_cut(whole)
    parts = None if cut is None else _Parts(lower, whole, pieces(whole, *cut))
    highest = whole.value(lower) if parts is None else parts.highest()

    def shifted(b: Builder, index: Indices) -> str:
        (x,) = element(b, index)
        return b.apply("sub", dtype, x, b.read(highest, keep(index)))

    moved = lower.inner("shifted", dtype, source.shape, shifted, (source, highest))
    # The smallest powers are results themselves, unless they are only added up.
    is_log = "log" in call.op
    powers = _powers(lower, moved, "exp_normal" if is_log else "exp")
    if parts is None:
        total = reduction(lower, powers, "sum", dims, dtype, dtype)
    else:
        total = parts.total(highest)
    if is_log:
        op, left, right = "sub", moved, _function(lower, "log", total)
    else:
        op, left, right = "mul", powers, _function(lower, "reciprocal", total)

    def body(b: Builder, index: Indices) -> str:
        return b.apply(op, dtype, b.read(left, index), b.read(right, keep(index)))

    return lower.pointwise(call, body, (left, right))


class _Parts:
    """Rows in parts, each with its own maximum and its sum of powers relative to that."""

    def __init__(self, lower: Lower, whole: Fold, found: list[Piece]) -> None:
        self.lower, self.whole, self.pieces = lower, whole, found
        self.tops = [piece.first(lower, whole) for piece in found]
        self.sums = [self._sum(piece, top) for piece, top in zip(found, self.tops, strict=True)]

    def highest(self) -> Value:
        """Every row's maximum."""
        return self._join(self.whole, self.tops)

    def total(self, highest: Value) -> Value:
        """Every row's sum of powers relative to its maximum."""
        each = zip(self.pieces, self.tops, self.sums, strict=True)
        scaled = [self._scaled(highest, *part) for part in each]
        return self._join(replace(self.whole, op="sum"), scaled)

    def _sum(self, piece: Piece, top: Value) -> Value:
        """The parts' sums; those of nothing but -inf are 0, for their powers are."""
        lower, whole, dtype = self.lower, self.whole, self.whole.dtype
        keep = kept_index(piece.dims, len(piece.shape))

        def finite(b: Builder, index: Indices) -> str:
            x = b.read(top, index)
            nothing = b.apply("eq", "bool", x, b.const(-math.inf, dtype))
            return b.apply("where", dtype, nothing, b.const(0, dtype), x)

        base = lower.inner("base", dtype, top.shape, finite, (top,))

        def power(b: Builder, index: Indices) -> tuple[str, ...]:
            (x,) = whole.body(b, piece.at(index))
            off = b.apply("sub", dtype, x, b.read(base, keep(index)))
            return (b.apply("exp_normal", dtype, off),)

        reads = (*whole.reads, base)
        return Fold("sum", piece.shape, piece.dims, power, reads, dtype, dtype).value(lower)

    def _scaled(self, highest: Value, piece: Piece, top: Value, total: Value) -> Pointwise:
        """The parts' sums relative to the maxima of their rows."""
        dtype = self.whole.dtype

        def shifted(b: Builder, index: Indices) -> str:
            row = tuple(i for d, i in enumerate(index) if d != piece.parts)
            return b.apply("sub", dtype, b.read(top, index), b.read(highest, row))

        moved = self.lower.inner("shifted", dtype, top.shape, shifted, (top, highest))
        factor = _powers(self.lower, moved, "exp_normal")

        def body(b: Builder, index: Indices) -> str:
            return b.apply("mul", dtype, b.read(total, index), b.read(factor, index))

        return self.lower.inner("scaled", dtype, top.shape, body, (total, factor))

    def _join(self, whole: Fold, firsts: Sequence[Value]) -> Value:
        each = zip(self.pieces, firsts, strict=True)
        return join(self.lower, whole, [p.second(self.lower, whole, first) for p, first in each])


def _powers(lower: Lower, moved: Value, op: str) -> Pointwise:
    """The exponential, in one of its forms, of what is not above 0."""
    dtype = moved.dtype

    def body(b: Builder, index: Indices) -> str:
        return b.apply(op, dtype, b.read(moved, index))

    return lower.inner("powers", dtype, moved.shape, body, (moved,), 12)


def _function(lower: Lower, name: str, value: Value) -> Pointwise:
    """A function of every row's value."""
    dtype = value.dtype

    def body(b: Builder, index: Indices) -> str:
        x = b.read(value, index)
        if name == "reciprocal":
            return b.apply("div", dtype, b.const(1, dtype), x)
        return b.apply(name, dtype, x)

    return lower.inner(name, dtype, value.shape, body, (value,))
