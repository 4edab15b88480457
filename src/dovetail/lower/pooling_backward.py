"""Gradients of means: each element gathers from the windows that it lies in."""

from __future__ import annotations

import math

from dovetail.ir.affine import Affine
from dovetail.ir.call import OpCall
from dovetail.ir.dtypes import FLOATS
from dovetail.lower.expression import Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.masks import all_of, between
from dovetail.lower.pooling import (
    MOST_TAPS,
    Window,
    count_of,
    mean_window,
    pool_rank,
    positions,
    read_or,
)
from dovetail.lower.pooling_adaptive import parts_of
from dovetail.lower.rules import Lower, Refused, compute, rule, tensor
from dovetail.lower.values import Pointwise, Value


@rule("avg_pool2d_backward.default", "avg_pool3d_backward.default")
def lower_avg_pool_backward(lower: Lower, call: OpCall) -> Pointwise:
    """The gradients of all windows an element lies in, each divided by its window's count."""
    grad, source = map(lower.value, call.args[:2])
    window, rank = mean_window(call, 2, source, grad.shape), pool_rank(call)
    dtype = compute(grad.dtype)
    most = [-(-size // step) for size, step in zip(window.sizes, window.steps, strict=True)]
    if dtype not in FLOATS or math.prod(most) > MOST_TAPS:
        raise Refused("more windows than are worth looking at")
    if any(n > 1 and step > 1 for n, step in zip(most, window.steps, strict=True)):
        raise Refused("windows that overlap in steps: PyTorch adds each up in its place")

    def share(b: Builder, index: Indices, tap: tuple[int, ...]) -> str:
        place, mask = _window_over(b, window, grad, index, tap)
        value = read_or(b, grad, place, mask, 0.0, dtype)
        value = b.apply("div", dtype, value, count_of(b, window, place[-rank:], dtype))
        if mask is None:
            return value
        return b.apply("where", dtype, mask, value, b.const(0, dtype))  # no window's count may be 0

    def body(b: Builder, index: Indices) -> str:
        total = b.joined("add", dtype, (share(b, index, tap) for tap in positions(most)))
        return b.cast(total, compute(tensor(call.output).dtype))

    return lower.pointwise(call, body, (grad,), 6.0 * math.prod(most))


def _window_over(
    b: Builder, window: Window, grad: Value, index: Indices, tap: tuple[int, ...]
) -> tuple[Indices, str | None]:
    """The ``tap``-th last window that covers an element, and whether there is one."""
    before = len(index) - window.rank
    places, masks = [], []
    for n, back in enumerate(tap):
        size, step, pad = window.sizes[n], window.steps[n], window.pads[n]
        here = index[before + n].shift(pad)
        place = _divided(b, here, step).shift(-back)
        if size % step or size < step:  # the last windows may end before the element
            end = b.position(place.scale(step).shift(size))
            masks.append(b.apply("lt", "bool", b.position(here), end))
        masks.append(between(b, place, 0 if back else None, grad.shape[before + n]))
        places.append(place)
    return (*index[:before], *places), all_of(b, masks)


def _divided(b: Builder, place: Affine, step: int) -> Affine:
    if step == 1:
        return place
    quotient = b.apply("floordiv", "int64", b.position(place), b.const(step, "int64"))
    return Affine.value(quotient)


@rule("_adaptive_avg_pool2d_backward.default", "_adaptive_avg_pool3d_backward.default")
def lower_adaptive_backward(lower: Lower, call: OpCall) -> Pointwise:
    """The gradient of the part an element lies in, divided by the part's size."""
    grad, source = map(lower.value, call.args[:2])
    dtype, rank = compute(grad.dtype), pool_rank(call)
    parts = parts_of(source, grad.shape, rank)
    if dtype not in FLOATS or any(p.extent % p.count for p in parts):
        raise Refused("parts that are not equal")
    each = [p.extent // p.count for p in parts]

    def body(b: Builder, index: Indices) -> str:
        inner = zip(index[-rank:], parts, each, strict=True)
        place = (Affine() if p.count == 1 else _divided(b, i, n) for i, p, n in inner)
        value = b.cast(b.read(grad, (*index[:-rank], *place)), dtype)
        value = b.apply("div", dtype, value, b.const(math.prod(each), dtype))
        return b.cast(value, compute(tensor(call.output).dtype))

    return lower.pointwise(call, body, (grad,), 4.0)
