"""Gradients that PyTorch would take apart call by call: of layer norms, GELU and selections.

A training step has many alike. As one call each they are traced, passed on and placed in a fraction
of the time, and what they stand for is worked out once for all.
"""

from __future__ import annotations

import math
from typing import Any

from dovetail.ir.affine import add, product
from dovetail.ir.call import OpCall
from dovetail.ir.dtypes import FLOATS
from dovetail.lower.expression import Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.masks import between
from dovetail.lower.pointwise import element, float_type, lower_elements, one
from dovetail.lower.reductions import finish, kept_index
from dovetail.lower.rules import (
    Lower,
    Refused,
    argument,
    axis,
    compute,
    result,
    rule,
    static,
    tensor,
)
from dovetail.lower.values import Pointwise, Value
from dovetail.lower.views import slice_start


@rule("native_layer_norm_backward.default")
def lower_layer_norm_backward(lower: Lower, call: OpCall) -> Any:
    """The gradients of input, weight and bias."""
    if call.args[7] != (True, True, True):
        raise Refused("not all of its gradients")
    grad, source, mean, rstd, weight = (lower.value(call.args[n]) for n in (0, 1, 3, 4, 5))
    dtype, rank, inner = compute(source.dtype), len(source.shape), len(call.args[2])
    if dtype not in FLOATS or any(d == 0 for d in source.shape) or inner == rank:
        raise Refused("not a plain normalisation")
    dims = tuple(range(rank - inner, rank))
    outer = tuple(range(rank - inner))
    count = product(source.shape[d] for d in dims)
    keep = kept_index(dims, rank)

    def given(b: Builder, index: Indices) -> str:
        return element(b, grad, index, dtype)

    def normal(b: Builder, index: Indices) -> str:
        x = b.apply("sub", dtype, element(b, source, index, dtype), element(b, mean, index, dtype))
        return b.apply("mul", dtype, x, element(b, rstd, index, dtype))

    def weighted(b: Builder, index: Indices) -> str:
        return b.apply("mul", dtype, given(b, index), element(b, weight, index, dtype))

    def along(b: Builder, index: Indices) -> str:
        return b.apply("mul", dtype, weighted(b, index), normal(b, index))

    def of_weight(b: Builder, index: Indices) -> str:
        return b.apply("mul", dtype, given(b, index), normal(b, index))

    normals = (source, mean, rstd)

    def total(body: Any, over: tuple[int, ...], *reads: Value) -> Value:
        return lower.reduction("sum", dtype, source.shape, over, body, reads)

    level = total(weighted, dims, grad, weight)
    slope = total(along, dims, grad, weight, *normals)

    def of_source(b: Builder, index: Indices) -> str:
        row = keep(index)
        size = element(b, count, (), dtype)
        x = b.apply("mul", dtype, weighted(b, index), size)
        x = b.apply("sub", dtype, x, b.read(level, row))
        x = b.apply("sub", dtype, x, b.apply("mul", dtype, normal(b, index), b.read(slope, row)))
        scale = b.apply("div", dtype, element(b, rstd, index, dtype), size)
        return b.cast(b.apply("mul", dtype, scale, x), compute(result(call, 0).dtype))

    return (
        lower.pointwise(call, of_source, (grad, weight, *normals, level, slope), 10.0, nth=0),
        finish(lower, call, total(of_weight, outer, grad, *normals), outer, rank, nth=1),
        finish(lower, call, total(given, outer, grad), outer, rank, nth=2),
    )


@rule("gelu_backward.default")
def lower_gelu_backward(lower: Lower, call: OpCall) -> Pointwise:
    """The gradients of both forms of GELU."""
    tanh = argument(call, 2, "approximate", "none") == "tanh"
    slope = _gelu_tanh_slope if tanh else _gelu_slope

    def body(b: Builder, dtype: str, grad: str, x: str) -> str:
        return b.apply("mul", dtype, grad, slope(b, dtype, x))

    return lower_elements(lower, call, call.args[:2], float_type(call), body)


def _gelu_slope(b: Builder, dtype: str, x: str) -> str:
    """Of x Φ(x): Φ(x) + x φ(x)."""
    scaled = b.apply("mul", dtype, x, b.const(math.sqrt(0.5), dtype))
    grown = b.apply("add", dtype, one(b, dtype), b.apply("erf", dtype, scaled))
    below = b.apply("mul", dtype, b.const(0.5, dtype), grown)
    square = b.apply("mul", dtype, b.apply("mul", dtype, x, x), b.const(-0.5, dtype))
    density = b.const(1 / math.sqrt(2 * math.pi), dtype)
    density = b.apply("mul", dtype, density, b.apply("exp", dtype, square))
    return b.apply("add", dtype, below, b.apply("mul", dtype, x, density))


def _gelu_tanh_slope(b: Builder, dtype: str, x: str) -> str:
    """Of x (1 + tanh(u)) / 2: (1 + tanh(u)) / 2 + x / 2 (1 - tanh(u)²) u'."""
    root, cubic = b.const(math.sqrt(2 / math.pi), dtype), 0.044715
    square = b.apply("mul", dtype, x, x)
    cube = b.apply("mul", dtype, b.apply("mul", dtype, square, x), b.const(cubic, dtype))
    tanh = b.apply("tanh", dtype, b.apply("mul", dtype, root, b.apply("add", dtype, x, cube)))
    half = b.const(0.5, dtype)
    level = b.apply("mul", dtype, half, b.apply("add", dtype, one(b, dtype), tanh))
    steep = b.apply("sub", dtype, one(b, dtype), b.apply("mul", dtype, tanh, tanh))
    inner = b.apply("mul", dtype, square, b.const(3 * cubic, dtype))
    inner = b.apply("mul", dtype, root, b.apply("add", dtype, one(b, dtype), inner))
    steep = b.apply("mul", dtype, b.apply("mul", dtype, half, x), steep)
    return b.apply("add", dtype, level, b.apply("mul", dtype, steep, inner))


@rule("select_backward.default")
def lower_select_backward(lower: Lower, call: OpCall) -> Pointwise:
    """A value at one position of a dimension, zeros at all others."""
    piece, stored = lower.value(call.args[0]), tensor(call.output)
    dim, dtype = axis(call.args[2], len(stored.shape)), compute(stored.dtype)
    place = slice_start(static(call.args[3], "a position"), stored.shape[dim], stored.shape)

    def body(b: Builder, index: Indices) -> str:
        mask = between(b, index[dim], place, add(place, 1))
        inside = b.masked(mask, lambda: b.read(piece, (*index[:dim], *index[dim + 1 :])))
        return b.apply("where", dtype, mask, inside, b.const(0, dtype))

    return lower.pointwise(call, body, (piece,), 3.0)
