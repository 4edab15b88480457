"""Convolutions of every rank, stride, dilation, group and transposition, each a contraction."""

from __future__ import annotations

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


@rule("convolution.default", NAME)
def lower_convolution(lower: Lower, call: OpCall) -> Value:
    """Sums over the channels of a group and the taps of its weight, plus a bias."""
    source, weight = (lower.value(a) for a in call.args[:2])
    bias = optional(lower, call.args[2])
    if len(source.shape) != len(weight.shape):
        raise Refused("a convolution without a batch")
    groups = static(call.args[8], "the number of groups")
    taps = replace(taps_of(call, 3, source, weight), transposed=bool(call.args[6]))
    more = (lower.value(call.args[9]), int(call.args[10])) if call.op == NAME else None
    total = convolved(lower, source, weight, taps, tensor(call.output).shape, groups, more)
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


def taps_of(call: OpCall, first: int, source: Value, weight: Value) -> Taps:
    """Where the taps of a weight meet a tensor, by a call's arguments from the ``first`` on."""
    rank = len(weight.shape) - 2
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
