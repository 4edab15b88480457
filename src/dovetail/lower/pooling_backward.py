"""Gradients of pools: each element gathers from the windows that it lies in."""

from __future__ import annotations

import math

from dovetail.ir.affine import Affine
from dovetail.ir.call import OpCall
from dovetail.ir.dtypes import FLOATS
from dovetail.lower.expression import Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.masks import all_of, between
from dovetail.lower.pooling import (
    MOST_MASKED,
    MOST_TAPS,
    Window,
    count_of,
    flat_place,
    mean_window,
    pool_rank,
    positions,
    read_or,
    window_of,
)
from dovetail.lower.pooling_adaptive import parts_of
from dovetail.lower.rules import Lower, Refused, argument, compute, rule, tensor
from dovetail.lower.values import Pointwise, Value

# One thread, AVX-512: PyTorch adds each window's gradient in its place, row-major in a fifteenth of
# the time of a kernel that gathers, channels-last in about the same.
_CPU_LIBRARY = "gradients of largest elements, which a library adds up in their places"


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
        place, mask = _window_near(b, window, grad, index, tap, covers=True)
        value = read_or(b, grad, place, mask, 0.0, dtype)
        value = b.apply("div", dtype, value, count_of(b, window, place[-rank:], dtype))
        if mask is None:
            return value
        return b.apply("where", dtype, mask, value, b.const(0, dtype))  # no window's count may be 0

    def body(b: Builder, index: Indices) -> str:
        total = b.joined("add", dtype, (share(b, index, tap) for tap in positions(most)))
        return b.cast(total, compute(tensor(call.output).dtype))

    return lower.pointwise(call, body, (grad,), 6.0 * math.prod(most))


def _window_near(
    b: Builder,
    window: Window,
    grad: Value,
    index: Indices,
    tap: tuple[int, ...],
    *,
    covers: bool,
) -> tuple[Indices, str | None]:
    """The ``tap``-th last window that begins before an element, and whether there is one.

    With ``covers`` there is none either where it ends before the element, too.
    """
    before = len(index) - window.rank
    places, masks = [], []
    for n, back in enumerate(tap):
        size, step, pad = window.sizes[n], window.steps[n], window.pads[n]
        here = index[before + n].shift(pad)
        place = _divided(b, here, step).shift(-back)
        if covers and (size % step or size < step):  # the last windows may end before the element
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


# ---- extremes ----------------------------------------------------------------------------------


@rule("max_pool2d_with_indices_backward.default")
def lower_max_pool_backward(lower: Lower, call: OpCall) -> Pointwise:
    """The gradients of those windows around an element whose largest element it is.

    That a window covers it need not be asked: its index says so.
    """
    grad, source, places = (lower.value(call.args[n]) for n in (0, 1, 7))
    made, dtype = tensor(call.output), compute(grad.dtype)
    holes, round_up = argument(call, 5, "dilation", 1), argument(call, 6, "ceil_mode", False)
    window = window_of(call, 2, source, grad.shape, holes, round_up=round_up)
    most = [-(-size // step) for size, step in zip(window.sizes, window.steps, strict=True)]
    if dtype not in FLOATS or math.prod(most) > MOST_MASKED or set(window.holes) != {1}:
        raise Refused("more windows than are worth looking at, or none that are whole")

    def share(b: Builder, index: Indices, here: str, back: tuple[int, ...]) -> str:
        place, mask = _window_near(b, window, grad, index, back, covers=False)
        found = read_or(b, places, place, mask, -1, "int64")
        value = read_or(b, grad, place, mask, 0.0, dtype)
        mine = b.apply("eq", "bool", found, here)
        return b.apply("where", dtype, mine, value, b.const(0, dtype))

    def body(b: Builder, index: Indices) -> str:
        here = flat_place(b, window, index)
        total = b.joined("add", dtype, (share(b, index, here, tap) for tap in positions(most)))
        return b.cast(total, compute(made.dtype))

    cost = 6.0 * math.prod(most)
    return lower.pointwise(call, body, (grad, places), cost, cpu_library=_CPU_LIBRARY)
