"""Convolutions of every rank, stride, dilation, group and transposition, each a contraction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dovetail.ir.affine import Affine
from dovetail.ir.call import OpCall
from dovetail.ir.size import Dim
from dovetail.ir.strides import contiguous_strides
from dovetail.lower.contraction import Contraction
from dovetail.lower.expression import Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.masks import all_of, between
from dovetail.lower.norms import optional
from dovetail.lower.panels import NAME as PANELS
from dovetail.lower.pointwise import element
from dovetail.lower.pooling import numbers
from dovetail.lower.reindex import reshape
from dovetail.lower.rules import Lower, Refused, compute, rule, static, tensor
from dovetail.lower.values import Value
from dovetail.lower.winograd import NAME, WinogradContraction


@dataclass(frozen=True)
class Taps:
    """Where along each dimension a tap of the weight meets the input."""

    steps: tuple[int, ...]
    pads: tuple[int, ...]
    holes: tuple[int, ...]
    extents: tuple[Dim, ...]  # of the input
    transposed: bool = False

    def is_spread(self, taps: Sequence[Dim], made: Sequence[Dim]) -> bool:
        """Whether each result of a transposed convolution has one tap, of one pixel."""
        if not self.transposed or any(self.pads) or tuple(taps) != self.steps:
            return False
        sizes = zip(self.extents, self.steps, made, strict=True)
        return math.prod(self.steps) > 1 and all(
            isinstance(n, int) and n * step == size for n, step, size in sizes
        )

    def place(self, b: Builder, index: Indices, taps: Indices) -> tuple[Indices, str | None]:
        """The input's index for an index of the result, and whether there is an element."""
        places, masks = [], []
        for n, (i, tap) in enumerate(zip(index, taps, strict=True)):
            if self.transposed:
                at = i.shift(self.pads[n]) + tap.scale(-self.holes[n])
                place, on = self._stepped(b, at, self.steps[n])
                masks += on
            else:
                place = i.scale(self.steps[n]).shift(-self.pads[n]) + tap.scale(self.holes[n])
            if self.transposed or self.pads[n]:
                masks.append(between(b, place, 0, self.extents[n]))
            places.append(place)
        return tuple(places), all_of(b, masks)

    @staticmethod
    def _stepped(b: Builder, place: Affine, step: int) -> tuple[Affine, list[str]]:
        """A place divided by a step, and whether nothing is left over."""
        if step == 1:
            return place, []
        at, by = b.position(place), b.const(step, "int64")
        rest = b.apply("eq", "bool", b.apply("floormod", "int64", at, by), b.const(0, "int64"))
        return Affine.value(b.apply("floordiv", "int64", at, by)), [rest]


@rule("convolution.default", NAME, PANELS)
def lower_convolution(lower: Lower, call: OpCall) -> Value:
    """Sums over the channels of a group and the taps of its weight, plus a bias."""
    source, weight = (lower.value(a) for a in call.args[:2])
    bias = optional(lower, call.args[2])
    in_panels = call.op == PANELS
    if len(source.shape) != len(weight.shape) - in_panels:
        raise Refused("a convolution without a batch")
    groups = static(call.args[8], "the number of groups")
    taps = replace(taps_of(call, 3, source), transposed=bool(call.args[6]))
    more = (lower.value(call.args[9]), int(call.args[10])) if call.op == NAME else None
    made = tensor(call.output).shape
    if in_panels:
        total = _in_panels(lower, source, weight, taps, made)
    else:
        total = convolved(lower, source, weight, taps, made, groups, more)
    dtype, result = compute(source.dtype), compute(tensor(call.output).dtype)

    def body(b: Builder, index: Indices) -> str:
        value = b.read(total, index)
        if bias is not None:
            value = b.apply("add", dtype, value, element(b, bias, index[1:2], dtype))
        return b.cast(value, result)

    return lower.pointwise(call, body, (total, bias))


def _element(b: Builder, source: Value, place: Indices, mask: str | None, dtype: str) -> str:
    """An element of the input, zero where a mask does not hold."""
    if mask is None:
        return b.cast(b.read(source, place), dtype)
    return b.cast(b.masked(mask, lambda: b.read(source, place)), dtype)


def taps_of(call: OpCall, first: int, source: Value) -> Taps:
    """Where the taps of a weight meet a tensor, by a call's arguments from the ``first`` on."""
    rank = len(source.shape) - 2
    if not rank:
        raise Refused("a convolution along no dimension")
    given = call.args[first : first + 3]
    steps, pads, holes = (numbers(g, rank, "a step, padding or dilation") for g in given)
    return Taps(steps, pads, holes, source.shape[2:])


def convolved(
    lower: Lower,
    source: Value,
    weight: Value,
    taps: Taps,
    made: Sequence[Dim],
    groups: int,
    transformed: tuple[Value, int] | None = None,
) -> Value:
    """The sums, in the result's shape; dimensions: batch, group, channel, space, input, taps."""
    if transformed is None and taps.is_spread(weight.shape[2:], made[2:]):
        return _spread(lower, source, weight, taps, made, groups)
    dtype, rank = compute(source.dtype), len(taps.steps)
    inputs = static(source.shape[1], "the number of channels") // groups
    outputs = static(made[1], "the number of channels") // groups
    apart = (groups,) if groups > 1 else ()
    kept = (made[0], *apart, outputs, *made[2:])

    def body(b: Builder, index: Indices) -> tuple[str, ...]:
        batch, *group, channel = index[: len(kept) - rank]
        space, (i, *tap) = index[len(kept) - rank : len(kept)], index[len(kept) :]
        place, mask = taps.place(b, space, tuple(tap))
        g = group[0] if group else Affine()
        x = _element(b, source, (batch, g.scale(inputs) + i, *place), mask, dtype)
        at = (g.scale(inputs) + i, channel) if taps.transposed else (g.scale(outputs) + channel, i)
        return (b.apply("mul", dtype, x, b.cast(b.read(weight, (*at, *tap)), dtype)),)

    shape = (*kept, inputs, *weight.shape[2:])
    dims = range(len(kept), len(shape))
    name = lower.fresh("product")
    if transformed is not None:
        operand, size = transformed
        extents = tuple(static(n, "the size of an image") for n in taps.extents)
        geometry, operands = (size, taps.pads, extents), (source, weight, operand)
        return WinogradContraction(name, shape, dims, body, operands, dtype, geometry)
    total = Contraction(name, shape, dims, body, (source, weight), dtype)
    if groups == 1:
        return total
    strides = contiguous_strides(tuple(made))
    return reshape(lower, lower.fresh("channels"), total, tuple(made), strides)


def _in_panels(
    lower: Lower, source: Value, panels: Value, taps: Taps, made: Sequence[Dim]
) -> Value:
    """The sums, panel by panel; dimensions: batch, panel, channel, space, input, taps."""
    dtype, rank = compute(source.dtype), len(taps.steps)
    shape = (made[0], *panels.shape[:2], *made[2:], *panels.shape[2:])
    kept = len(shape) - 1 - rank

    def body(b: Builder, index: Indices) -> tuple[str, ...]:
        batch, panel, channel, *space = index[:kept]
        i, *tap = index[kept:]
        place, mask = taps.place(b, tuple(space), tuple(tap))
        x = _element(b, source, (batch, i, *place), mask, dtype)
        w = b.cast(b.read(panels, (panel, channel, i, *tap)), dtype)
        return (b.apply("mul", dtype, x, w),)

    dims, name = range(kept, len(shape)), lower.fresh("product")
    total = Contraction(name, shape, dims, body, (source, panels), dtype)
    strides = contiguous_strides(tuple(made))
    return reshape(lower, lower.fresh("channels"), total, tuple(made), strides)


def _spread(
    lower: Lower, source: Value, weight: Value, taps: Taps, made: Sequence[Dim], groups: int
) -> Value:
    """A transposed convolution of taps that never meet: a product, whose columns become pixels.

    Dimensions: batch, group, channel, each pixel of the input with its taps, input.
    """
    dtype, rank = compute(source.dtype), len(taps.steps)
    inputs = static(source.shape[1], "the number of channels") // groups
    outputs = static(made[1], "the number of channels") // groups
    apart = (groups,) if groups > 1 else ()
    spaces = [n for pair in zip(taps.extents, taps.steps, strict=True) for n in pair]
    shape = (made[0], *apart, outputs, *spaces, inputs)

    def body(b: Builder, index: Indices) -> tuple[str, ...]:
        *kept, i = index
        batch, *group, channel = kept[: -2 * rank]
        place, tap = kept[-2 * rank :: 2], kept[1 - 2 * rank :: 2]
        channels = (group[0].scale(inputs) if group else Affine()) + i
        x = _element(b, source, (batch, channels, *place), None, dtype)
        w = b.read(weight, (channels, channel, *tap))
        return (b.apply("mul", dtype, x, b.cast(w, dtype)),)

    dims, name = (len(shape) - 1,), lower.fresh("product")
    total = Contraction(name, shape, dims, body, (source, weight), dtype)
    strides = contiguous_strides(tuple(made))
    return reshape(lower, lower.fresh("pixels"), total, tuple(made), strides)
