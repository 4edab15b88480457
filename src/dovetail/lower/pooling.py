"""Pooling: a few taps are read and folded where an element is computed; whole windows are sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dovetail.ir.affine import Affine
from dovetail.ir.call import OpCall
from dovetail.ir.kernel import FLOATS
from dovetail.lower.indexing import between
from dovetail.lower.reductions import divide_by, finish, reduction
from dovetail.lower.rules import Lower, Refused, argument, compute, rule, tensor
from dovetail.lower.values import Builder, Indices, Pointwise, Value, View, contiguous_strides

MOST_TAPS = 25  # more are better walked by a loop


@dataclass(frozen=True)
class Window:
    """Where a pool looks: sizes, steps and padding along the last dimensions."""

    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    pads: tuple[int, ...]
    source: Value

    @property
    def rank(self) -> int:
        """How many dimensions are pooled."""
        return len(self.sizes)

    def taps(self) -> list[tuple[int, ...]]:
        """Every position of the window, in row-major order."""
        found: list[tuple[int, ...]] = [()]
        for size in self.sizes:
            found = [(*tap, n) for tap in found for n in range(size)]
        return found

    def place(self, index: Indices, tap: tuple[int, ...]) -> Indices:
        """The source's index under a tap."""
        before = len(index) - self.rank
        moved = (
            i.scale(step).shift(n - pad)
            for i, step, n, pad in zip(index[before:], self.steps, tap, self.pads, strict=True)
        )
        return (*index[:before], *moved)

    def inside(self, b: Builder, place: Indices) -> str | None:
        """Whether a place is in the source; None where that is certain."""
        mask = None
        for n in range(self.rank):
            if self.pads[n]:
                d = len(place) - self.rank + n
                here = between(b, place[d], 0, self.source.shape[d])
                mask = here if mask is None else b.apply("and", "bool", mask, here)
        return mask

    def read(self, b: Builder, place: Indices, outside: float, dtype: str) -> str:
        """The source's element, or a number outside it."""
        mask = self.inside(b, place)
        if mask is None:
            return b.cast(b.read(self.source, place), dtype)
        value = b.cast(b.masked(mask, lambda: b.read(self.source, place)), dtype)
        return b.apply("where", dtype, mask, value, b.const(outside, dtype))


def _numbers(given: Any, rank: int, what: str) -> tuple[int, ...]:
    listed = tuple(given) if isinstance(given, tuple | list) else (given,) * rank
    if len(listed) == 1:
        listed *= rank
    if len(listed) != rank or not all(isinstance(n, int) for n in listed):
        raise Refused(f"{what} that is no constant")
    return listed


def _window(lower: Lower, call: OpCall, rank: int) -> Window:
    source = lower.value(call.args[0])
    sizes = _numbers(call.args[1], rank, "a window")
    steps = argument(call, 2, "stride") or sizes
    pads = _numbers(argument(call, 3, "padding", 0), rank, "padding")
    window = Window(sizes, _numbers(steps, rank, "a step"), pads, source)
    if math.prod(sizes) > MOST_TAPS:
        raise Refused("a large window")
    for d, size in enumerate(tensor(_first(call.output)).shape[-rank:]):
        _covered(window, d, size)
    if compute(source.dtype) not in FLOATS:
        raise Refused("a pool of integers")
    return window


def _first(desc: Any) -> Any:
    return desc[0] if isinstance(desc, tuple) else desc


def _covered(window: Window, d: int, size: Any) -> None:
    """Refuse windows that reach further than the padding (rounding up does that)."""
    extent = window.source.shape[len(window.source.shape) - window.rank + d]
    if not isinstance(size, int) or not isinstance(extent, int):
        raise Refused("a pool whose sizes are not known")
    reach = (size - 1) * window.steps[d] + window.sizes[d] - window.pads[d]
    if reach > extent + window.pads[d]:
        raise Refused("a window beyond the padding")


@rule("avg_pool2d.default")
def lower_avg_pool(lower: Lower, call: OpCall) -> Pointwise:
    """Means of windows."""
    window = _window(lower, call, 2)
    count_padding = argument(call, 5, "count_include_pad", True)
    divisor = argument(call, 6, "divisor_override")
    if any(window.pads) and not count_padding and divisor is None:
        raise Refused("means over what lies inside")
    count = divisor or math.prod(window.sizes)
    desc = tensor(call.output)
    dtype, result = compute(window.source.dtype), compute(desc.dtype)

    def body(b: Builder, index: Indices) -> str:
        total = ""
        for tap in window.taps():
            value = window.read(b, window.place(index, tap), 0.0, dtype)
            total = b.apply("add", dtype, total, value) if total else value
        return b.cast(b.apply("div", dtype, total, b.const(count, dtype)), result)

    return lower.pointwise(call, body, (window.source,), 2.0 * len(window.taps()))


@rule("max_pool2d_with_indices.default")
def lower_max_pool(lower: Lower, call: OpCall) -> Any:
    """The largest of each window, and where it lies; a NaN wins, the last of several."""
    window = _window(lower, call, 2)
    if _numbers(argument(call, 4, "dilation", 1), 2, "dilation") != (1, 1):
        raise Refused("a window with holes")
    assert isinstance(call.output, tuple)
    dtype = compute(window.source.dtype)
    cost = 3.0 * len(window.taps())

    def result(n: int, pick: Callable[[str, str], str]) -> Pointwise:
        desc = tensor(call.output[n])  # type: ignore[index]

        def body(b: Builder, index: Indices) -> str:
            return b.cast(pick(*_largest(b, window, index, dtype)), compute(desc.dtype))

        name = f"{call.name}.{n}"
        return Pointwise(name, desc.dtype, desc.shape, desc.strides, body, (window.source,), cost)

    return result(0, lambda value, _: value), result(1, lambda _, place: place)


def _largest(b: Builder, window: Window, index: Indices, dtype: str) -> tuple[str, str]:
    width = window.source.shape[-1]
    zero = b.const(0, "int64")
    first = window.place(index, (0, 0))[-2:]
    row, column = (b.apply("max", "int64", b.position(i), zero) for i in first)
    wide = b.position(Affine(width))
    place = b.apply("add", "int64", b.apply("mul", "int64", row, wide), column)
    best = b.const(-math.inf, dtype)
    for tap in window.taps():
        at = window.place(index, tap)
        value = window.read(b, at, -math.inf, dtype)
        better = b.apply("gt", "bool", value, best)
        better = b.apply("or", "bool", better, b.apply("isnan", "bool", value))
        here = b.position(at[-2].scale(width) + at[-1])
        best = b.apply("where", dtype, better, value, best)
        place = b.apply("where", "int64", better, here, place)
    return best, place


@rule("_adaptive_avg_pool2d.default")
def lower_adaptive_pool(lower: Lower, call: OpCall) -> Value:
    """Means of equal parts; unequal ones are left to the library."""
    source, desc = lower.value(call.args[0]), tensor(call.output)
    sizes = (*source.shape, *desc.shape)
    if not all(isinstance(d, int) and d > 0 for d in sizes) or compute(source.dtype) not in FLOATS:
        raise Refused("a pool whose sizes are not known")
    (height, width), (rows, columns) = source.shape[-2:], desc.shape[-2:]
    if height % rows or width % columns:  # type: ignore[operator]
        raise Refused("parts that are not equal")
    tall, wide = height // rows, width // columns  # type: ignore[operator]
    shape = (*source.shape[:-2], rows, tall, columns, wide)

    def index(i: Indices, _: Any) -> Indices:
        *batch, row, y, column, x = i
        return (*batch, row.scale(tall) + y, column.scale(wide) + x)

    down, across = source.strides[-2:]
    strides = (*source.strides[:-2], down * tall, down, across * wide, across)  # type: ignore[operator]
    parts = View(lower.fresh("parts"), source, shape, strides, 0, index)
    rank, dtype = len(shape), compute(source.dtype)
    dims = (rank - 3, rank - 1)
    total = reduction(lower, parts, "sum", dims, dtype, dtype)
    count = tall * wide
    kept = View(
        lower.fresh("pooled"), total, desc.shape, contiguous_strides(desc.shape), 0, lambda i, _: i
    )
    return finish(lower, call, desc, kept, (), len(desc.shape), divide_by(count))
