"""Pooling: a few taps are read and reduced where an element is computed; large windows are sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dovetail.ir.affine import Affine
from dovetail.ir.call import OpCall
from dovetail.ir.dtypes import FLOATS
from dovetail.ir.size import Dim
from dovetail.ir.strides import contiguous_strides
from dovetail.lower.expression import Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.masks import all_of, between
from dovetail.lower.reductions import lowest
from dovetail.lower.rules import Lower, Refused, argument, compute, result, rule, tensor
from dovetail.lower.values import Pointwise, Value

MOST_TAPS = 25  # more are better walked by a loop
MOST_MASKED = 9  # the same for a sum that needs masks: they are walked row by row
MOST_IN_ROW = 7  # and more of a row one by one
Tap = Sequence[int | Affine]


@dataclass(frozen=True)
class Window:
    """Where a pool looks: sizes, steps, padding and holes along the last dimensions.

    ``beyond`` says of each dimension whether its last window may reach further than the source,
    ``clipped`` whether it may reach further than the padding (rounding up does that). A mean is
    divided by ``divisor`` if it is given, or else by the elements of its window, those of the
    padding among them where they are to ``include``.
    """

    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    pads: tuple[int, ...]
    holes: tuple[int, ...]
    source: Value
    beyond: tuple[bool, ...] = ()
    clipped: tuple[bool, ...] = ()
    include: bool = True
    divisor: int | None = None

    @property
    def rank(self) -> int:
        """How many dimensions are pooled."""
        return len(self.sizes)

    @property
    def extents(self) -> tuple[Dim, ...]:
        """The source's sizes along them."""
        return self.source.shape[-self.rank :]

    def taps(self) -> list[tuple[int, ...]]:
        """Every position of the window, in row-major order."""
        return positions(self.sizes)

    def place(self, index: Indices, tap: Tap) -> Indices:
        """The source's index under a tap."""
        before = len(index) - self.rank
        starts = zip(index[before:], self.steps, self.pads, self.holes, tap, strict=True)
        moved = (
            i.scale(step).shift(-pad) + (n if isinstance(n, Affine) else Affine(n)).scale(hole)
            for i, step, pad, hole, n in starts
        )
        return (*index[:before], *moved)

    def inside(self, b: Builder, place: Indices) -> str | None:
        """Whether a place is in the source; None where that is certain."""
        masks = []
        for n, extent in enumerate(self.extents):
            low, high = (0 if self.pads[n] else None), (extent if self.beyond[n] else None)
            if low is not None or high is not None:
                masks.append(between(b, place[len(place) - self.rank + n], low, high))
        return all_of(b, masks)

    def read(self, b: Builder, place: Indices, outside: float, dtype: str) -> str:
        """The source's element, or a number outside it."""
        return read_or(b, self.source, place, self.inside(b, place), outside, dtype)


def positions(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Every index of a box, in row-major order."""
    found: list[tuple[int, ...]] = [()]
    for size in sizes:
        found = [(*tap, n) for tap in found for n in range(size)]
    return found


def read_or(
    b: Builder, source: Value, place: Indices, mask: str | None, outside: float, dtype: str
) -> str:
    """An element under a mask, or a number where it does not hold."""
    if mask is None:
        return b.cast(b.read(source, place), dtype)
    value = b.cast(b.masked(mask, lambda: b.read(source, place)), dtype)
    return b.apply("where", dtype, mask, value, b.const(outside, dtype))


def numbers(given: Any, rank: int, what: str) -> tuple[int, ...]:
    """One number for each dimension, given as such or as one for all."""
    listed = tuple(given) if isinstance(given, tuple | list) else (given,) * rank
    if len(listed) == 1:
        listed *= rank
    if len(listed) != rank or not all(isinstance(n, int) for n in listed):
        raise Refused(f"{what} that is no constant")
    return listed


def pool_rank(call: OpCall) -> int:
    """How many dimensions an operator pools, by its name."""
    return next(n for n in (1, 2, 3) if f"pool{n}d" in call.op)


def window_of(
    call: OpCall, first: int, source: Value, made: Sequence[Dim], holes: Any = 1, *, round_up: Any
) -> Window:
    """The window that a pool's arguments describe from the ``first`` on, its result ``made``."""
    rank = pool_rank(call)
    sizes = numbers(call.args[first], rank, "a window")
    steps = numbers(argument(call, first + 1, "stride") or sizes, rank, "a step")
    pads = numbers(argument(call, first + 2, "padding", 0), rank, "padding")
    window = Window(sizes, steps, pads, numbers(holes, rank, "dilation"), source)
    beyond, clipped = [], []
    for n, (size, extent) in enumerate(zip(made[-rank:], window.extents, strict=True)):
        if isinstance(size, int) and isinstance(extent, int):
            last = (size - 1) * steps[n] + (sizes[n] - 1) * window.holes[n] - pads[n]
            beyond.append(last >= extent)
            clipped.append(last >= extent + pads[n])
        else:
            beyond.append(pads[n] > 0 or bool(round_up))
            clipped.append(bool(round_up))
    return replace(window, beyond=tuple(beyond), clipped=tuple(clipped))


def mean_window(call: OpCall, first: int, source: Value, made: Sequence[Dim]) -> Window:
    """The window of a mean, and what it is divided by."""
    include = argument(call, first + 4, "count_include_pad", True)
    divisor = argument(call, first + 5, "divisor_override")
    if divisor is not None and not isinstance(divisor, int):
        raise Refused("a divisor that is no constant")
    round_up = argument(call, first + 3, "ceil_mode", False)
    window = window_of(call, first, source, made, round_up=round_up)
    return replace(window, include=bool(include), divisor=divisor)


# ---- means -------------------------------------------------------------------------------------


@rule("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def lower_avg_pool(lower: Lower, call: OpCall) -> Value:
    """Means of windows."""
    desc, source = tensor(call.output), lower.value(call.args[0])
    window = mean_window(call, 1, source, desc.shape)
    dtype, result = compute(source.dtype), compute(desc.dtype)
    if dtype not in FLOATS:
        raise Refused("a mean of integers")
    masked = any(window.pads) or any(window.beyond)
    if math.prod(window.sizes) > (MOST_MASKED if masked else MOST_TAPS):
        return _large_mean(lower, call, window)

    def body(b: Builder, index: Indices) -> str:
        places = (window.place(index, tap) for tap in window.taps())
        total = b.joined("add", dtype, (window.read(b, place, 0.0, dtype) for place in places))
        count = count_of(b, window, index[-window.rank :], dtype)
        return b.cast(b.apply("div", dtype, total, count), result)

    return lower.pointwise(call, body, (source,), 2.0 * len(window.taps()))


def _large_mean(lower: Lower, call: OpCall, window: Window) -> Value:
    desc, dtype = tensor(call.output), compute(window.source.dtype)
    kept, sizes = len(desc.shape), window.sizes
    row = sizes[-1] if window.rank > 1 and sizes[-1] <= MOST_IN_ROW else 1
    walked = sizes[:-1] if row > 1 else sizes

    def part(b: Builder, index: Indices) -> str:
        taps = [(*index[kept:], Affine(n)) if row > 1 else index[kept:] for n in range(row)]
        places = (window.place(index[:kept], tap) for tap in taps)
        return b.joined("add", dtype, (window.read(b, place, 0.0, dtype) for place in places))

    shape = (*desc.shape, *walked)
    total = lower.reduction("sum", dtype, shape, range(kept, len(shape)), part, (window.source,))

    def body(b: Builder, index: Indices) -> str:
        count = count_of(b, window, index[-window.rank :], dtype)
        return b.cast(b.apply("div", dtype, b.read(total, index), count), compute(desc.dtype))

    return lower.pointwise(call, body, (total,), 2.0)


def count_of(b: Builder, window: Window, index: Indices, dtype: str) -> str:
    """What the sum of a window is divided by; ``index`` is the window's own."""
    if window.divisor is not None:
        return b.const(window.divisor, dtype)
    reach = (
        window.clipped
        if window.include
        else [beyond or pad > 0 for beyond, pad in zip(window.beyond, window.pads, strict=True)]
    )
    counts = [_length(b, window, n, i) for n, i in enumerate(index) if reach[n]]
    fixed = math.prod(size for size, cut in zip(window.sizes, reach, strict=True) if not cut)
    if not counts:
        return b.const(fixed, dtype)
    return b.cast(b.joined("mul", "int64", [b.const(fixed, "int64"), *counts]), dtype)


def _length(b: Builder, window: Window, n: int, index: Affine) -> str:
    """How much of a window along a dimension counts."""
    start = index.scale(window.steps[n]).shift(-window.pads[n])
    first, end = b.position(start), b.position(start.shift(window.sizes[n]))
    extent = Affine(window.extents[n])
    limit = extent.shift(window.pads[n]) if window.include else extent
    end = b.apply("min", "int64", end, b.position(limit))
    if not window.include:
        first = b.apply("max", "int64", first, b.const(0, "int64"))
    return b.apply("sub", "int64", end, first)


# ---- extremes ----------------------------------------------------------------------------------


@rule("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def lower_max_pool(lower: Lower, call: OpCall) -> Any:
    """The largest of each window, and where it lies; a NaN wins, the last of several."""
    made, source = result(call, 0).shape, lower.value(call.args[0])
    holes, round_up = argument(call, 4, "dilation", 1), argument(call, 5, "ceil_mode", False)
    window = window_of(call, 1, source, made, holes, round_up=round_up)
    if math.prod(window.sizes) > MOST_TAPS:
        raise Refused("a large window")
    dtype = compute(source.dtype)

    def taps(b: Builder, index: Indices) -> list[tuple[str, str]]:
        places = (window.place(index, tap) for tap in window.taps())
        lower_than_all = lowest(dtype)
        return [
            (window.read(b, place, lower_than_all, dtype), flat_place(b, window, place))
            for place in places
        ]

    def first(b: Builder, index: Indices) -> list[str]:
        start = window.place(index, (0,) * window.rank)[-window.rank :]
        return [_first_inside(b, i, hole) for i, hole in zip(start, window.holes, strict=True)]

    return extremes(lower, call, window, taps, first)


def flat_place(b: Builder, window: Window, place: Indices) -> str:
    """A place in row-major order among the pooled dimensions."""
    strides = contiguous_strides(window.extents)
    total = Affine()
    for i, stride in zip(place[-window.rank :], strides, strict=True):
        total += i.scale(stride)
    return b.position(total)


def _first_inside(b: Builder, start: Affine, hole: int) -> str:
    """The first tap that is not in the padding before the source."""
    place = b.position(start)
    if hole == 1:
        return b.apply("max", "int64", place, b.const(0, "int64"))
    stepped = b.apply("floormod", "int64", place, b.const(hole, "int64"))
    before = b.apply("lt", "bool", place, b.const(0, "int64"))
    return b.apply("where", "int64", before, stepped, place)


def extremes(
    lower: Lower,
    call: OpCall,
    window: Window,
    taps: Callable[[Builder, Indices], list[tuple[str, str]]],
    first: Callable[[Builder, Indices], list[str]],
) -> tuple[Pointwise, Pointwise]:
    """The largest of the taps, and its place; where none is larger than nothing, the first's."""
    dtype = compute(window.source.dtype)
    cost = 3.0 * math.prod(window.sizes)

    def largest(b: Builder, index: Indices) -> str:
        found = b.joined("max", dtype, [value for value, _ in taps(b, index)])
        return b.cast(found, compute(result(call, 0).dtype))

    def place_of_it(b: Builder, index: Indices) -> str:
        strides = contiguous_strides(window.extents)
        place = b.const(0, "int64")
        for start, stride in zip(first(b, index), strides, strict=True):
            step = b.apply("mul", "int64", start, b.position(Affine(stride)))
            place = b.apply("add", "int64", place, step)
        best = ""
        for value, here in taps(b, index):
            better = b.apply("gt", "bool", value, best or b.const(lowest(dtype), dtype))
            if dtype in FLOATS:
                better = b.apply("or", "bool", better, b.apply("isnan", "bool", value))
            best = b.apply("max", dtype, best, value) if best else value
            place = b.apply("where", "int64", better, here, place)
        return b.cast(place, compute(result(call, 1).dtype))

    return (
        lower.pointwise(call, largest, (window.source,), cost, nth=0),
        lower.pointwise(call, place_of_it, (window.source,), cost, nth=1),
    )
