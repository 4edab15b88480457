"""Pools to a given size: equal parts are plain windows or sums, others are computed by position."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.ir.affine import Affine
from dovetail.ir.call import OpCall
from dovetail.ir.dtypes import FLOATS
from dovetail.ir.strides import contiguous_strides
from dovetail.lower.expression import Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.masks import all_of
from dovetail.lower.pooling import (
    MOST_TAPS,
    Window,
    extremes,
    flat_place,
    pool_rank,
    positions,
    read_or,
)
from dovetail.lower.reductions import divide_by, finish, lowest, reduction
from dovetail.lower.rules import Lower, Refused, compute, result, rule, tensor, view
from dovetail.lower.values import Pointwise, Value

MOST_UNEQUAL = 12  # taps of a mean, each at a place of its own


@dataclass(frozen=True)
class Parts:
    """One dimension of ``extent`` in ``count`` parts, which may overlap by one element."""

    extent: int
    count: int

    @property
    def lengths(self) -> list[int]:
        """How long each part is."""
        return [
            -(-(n + 1) * self.extent // self.count) - n * self.extent // self.count
            for n in range(self.count)
        ]

    @property
    def longest(self) -> int:
        """The most taps a part has."""
        return max(self.lengths)

    def bounds(self, b: Builder, part: Affine) -> tuple[str, str]:
        """Where a part begins, and where it ends."""
        count = b.const(self.count, "int64")
        begin = part.scale(self.extent)
        end = begin.shift(self.extent + self.count - 1)
        return (
            b.apply("floordiv", "int64", b.position(begin), count),
            b.apply("floordiv", "int64", b.position(end), count),
        )

    def tap(self, b: Builder, bounds: tuple[str, str], n: int) -> tuple[Affine, list[str]]:
        """The place of a tap, and the mask it is under, if any."""
        begin, end = bounds
        place = Affine.value(begin).shift(n)
        if n < min(self.lengths):
            return place, []
        return place, [b.apply("lt", "bool", b.position(place), end)]


def parts_of(source: Value, made: Sequence[Any], rank: int) -> list[Parts]:
    """The parts of each pooled dimension; their sizes must be known."""
    sizes = (*source.shape[-rank:], *made[-rank:])
    if not all(isinstance(d, int) and d > 0 for d in sizes):
        raise Refused("a pool whose sizes are not known")
    return [Parts(int(e), int(n)) for e, n in zip(sizes[:rank], sizes[rank:], strict=True)]


def taps_of(b: Builder, parts: Sequence[Parts], index: Indices) -> list[tuple[Indices, str | None]]:
    """The places that an element of the result is made of, with their masks."""
    bounds = [p.bounds(b, i) for p, i in zip(parts, index[-len(parts) :], strict=True)]
    found = []
    for tap in positions([p.longest for p in parts]):
        places, masks = [], []
        for p, (n, bound) in zip(parts, zip(tap, bounds, strict=True), strict=True):
            place, mask = p.tap(b, bound, n)
            places.append(place)
            masks += mask
        found.append(((*index[: -len(parts)], *places), all_of(b, masks)))
    return found


@rule("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def lower_adaptive_mean(lower: Lower, call: OpCall) -> Value:
    """Means of parts."""
    source, desc = lower.value(call.args[0]), tensor(call.output)
    if compute(source.dtype) not in FLOATS or any(d == 0 for d in desc.shape):
        raise Refused("not a pool of numbers")
    parts = parts_of(source, desc.shape, pool_rank(call))
    if all(p.extent % p.count == 0 for p in parts):
        return _equal_parts(lower, call, source, parts)
    if math.prod(p.longest for p in parts) > MOST_UNEQUAL:
        raise Refused("large parts that are not equal")
    dtype = compute(source.dtype)

    def body(b: Builder, index: Indices) -> str:
        taps = (read_or(b, source, *tap, 0.0, dtype) for tap in taps_of(b, parts, index))
        total = b.joined("add", dtype, taps)
        count = b.joined("mul", "int64", _lengths(b, parts, index[-len(parts) :]))
        return b.apply("div", dtype, total, b.cast(count, dtype))

    return lower.pointwise(call, body, (source,), 4.0 * math.prod(p.longest for p in parts))


def _lengths(b: Builder, parts: Sequence[Parts], index: Indices) -> Iterator[str]:
    """How many elements a part has along each dimension."""
    for p, i in zip(parts, index, strict=True):
        begin, end = p.bounds(b, i)
        yield b.apply("sub", "int64", end, begin)


def _equal_parts(lower: Lower, call: OpCall, source: Value, parts: Sequence[Parts]) -> Value:
    """A sum over each part's dimensions of a view that has them apart."""
    desc, rank = tensor(call.output), len(parts)
    each = [p.extent // p.count for p in parts]
    before = len(source.shape) - rank
    sizes = [size for p, length in zip(parts, each, strict=True) for size in (p.count, length)]
    shape = (*source.shape[:before], *sizes)

    def index(i: Indices) -> Indices:
        inner = i[before:]
        whole = (inner[2 * n].scale(each[n]) + inner[2 * n + 1] for n in range(rank))
        return (*i[:before], *whole)

    fine = view(lower.fresh("parts"), source, shape, index)
    dtype = compute(source.dtype)
    reduced = tuple(before + 2 * n + 1 for n in range(rank))
    total = reduction(lower, fine, "sum", reduced, dtype, dtype)
    strides = contiguous_strides(desc.shape)
    kept = view(lower.fresh("pooled"), total, desc.shape, lambda i: i, strides)
    return finish(lower, call, kept, last=divide_by(math.prod(each)))


@rule("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def lower_adaptive_max(lower: Lower, call: OpCall) -> tuple[Pointwise, Pointwise]:
    """The largest of each part, and where it lies."""
    source = lower.value(call.args[0])
    rank, dtype = pool_rank(call), compute(source.dtype)
    if dtype not in FLOATS or any(d == 0 for d in source.shape):
        raise Refused("eager has it for floating-point numbers only")
    parts = parts_of(source, result(call, 0).shape, rank)
    sizes, none = tuple(p.longest for p in parts), (0,) * rank
    if math.prod(sizes) > MOST_TAPS:
        raise Refused("large parts")
    window = Window(sizes, none, none, none, source)

    def taps(b: Builder, index: Indices) -> list[tuple[str, str]]:
        return [
            (read_or(b, source, place, mask, lowest(dtype), dtype), flat_place(b, window, place))
            for place, mask in taps_of(b, parts, index)
        ]

    def first(b: Builder, index: Indices) -> list[str]:
        return [p.bounds(b, i)[0] for p, i in zip(parts, index[-rank:], strict=True)]

    return extremes(lower, call, window, taps, first)
