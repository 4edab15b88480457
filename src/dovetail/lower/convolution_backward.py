"""Gradients of convolutions: of the input and of the weight a contraction each, of the bias a sum.

The gradient of the input is the convolution by the same weight the other way round, transposed
where the forward one is not. That of the weight pairs every element of the tensor that a tap moves
along (the input, or the result of a transposed convolution) with the one that it meets.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.ir.affine import Affine
from dovetail.ir.call import OpCall
from dovetail.ir.strides import contiguous_strides
from dovetail.lower.contraction import Contraction
from dovetail.lower.convolution import Taps, convolved, taps_of
from dovetail.lower.expression import Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.pooling import read_or
from dovetail.lower.reductions import finish, reduction
from dovetail.lower.reindex import reshape
from dovetail.lower.rules import Lower, Refused, compute, rule, static
from dovetail.lower.values import Value


@rule("convolution_backward.default")
def lower_convolution_backward(lower: Lower, call: OpCall) -> tuple[Value | None, ...]:
    """The gradients that are asked for; None for the others."""
    gradient, source, weight = (lower.value(a) for a in call.args[:3])
    transposed, groups = bool(call.args[7]), static(call.args[9], "the number of groups")
    wanted = call.args[10]
    if not isinstance(wanted, tuple) or len(source.shape) != len(weight.shape):
        raise Refused("a convolution without a batch")
    taps = taps_of(call, 4, source if not transposed else gradient)
    made: list[Value | None] = [None, None, None]
    if wanted[0]:
        back = replace(taps, extents=gradient.shape[2:], transposed=not transposed)
        made[0] = convolved(lower, gradient, weight, back, source.shape, groups)
    if wanted[1]:
        still, moved = (source, gradient) if transposed else (gradient, source)
        made[1] = _weight_gradient(lower, still, moved, weight, taps, groups)
    if wanted[2]:
        dims = tuple(d for d in range(len(gradient.shape)) if d != 1)
        dtype = compute(gradient.dtype)
        made[2] = reduction(lower, gradient, "sum", dims, dtype, dtype)
    return tuple(v and finish(lower, call, v, nth=n) for n, v in enumerate(made))


def _weight_gradient(
    lower: Lower, still: Value, moved: Value, weight: Value, taps: Taps, groups: int
) -> Value:
    """Sums over batch and space; dimensions: group, both channels, taps, batch, space."""
    dtype, rank = compute(still.dtype), len(taps.steps)
    outer = static(weight.shape[0], "the number of channels") // groups
    inner = static(weight.shape[1], "the number of channels")
    apart = (groups,) if groups > 1 else ()
    kept = (*apart, outer, inner, *weight.shape[2:])

    def body(b: Builder, index: Indices) -> tuple[str, ...]:
        *group, a, c = index[: len(kept) - rank]
        tap, (batch, *space) = index[len(kept) - rank : len(kept)], index[len(kept) :]
        place, mask = taps.place(b, tuple(space), tap)
        g = group[0] if group else Affine()
        x = read_or(b, moved, (batch, g.scale(inner) + c, *place), mask, 0.0, dtype)
        y = b.cast(b.read(still, (batch, g.scale(outer) + a, *space)), dtype)
        return (b.apply("mul", dtype, y, x),)

    shape = (*kept, still.shape[0], *still.shape[2:])
    dims = range(len(kept), len(shape))
    total = Contraction(lower.fresh("product"), shape, dims, body, (still, moved), dtype)
    if groups == 1:
        return total
    return reshape(
        lower, lower.fresh("channels"), total, weight.shape, contiguous_strides(weight.shape)
    )
