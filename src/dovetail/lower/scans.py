"""Cumulative sums, products and extremes: scans along a dimension."""

from __future__ import annotations

from typing import Any

from dovetail.ir.affine import Affine
from dovetail.ir.call import OpCall
from dovetail.ir.dtypes import FLOATS
from dovetail.lower.expression import Body, Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.pointwise import element
from dovetail.lower.rules import Lower, Refused, argument, axis, compute, result, rule, tensor
from dovetail.lower.values import Scanned, Value


@rule("cumsum.default", "cumprod.default")
def lower_cumulative(lower: Lower, call: OpCall) -> Value:
    """Running sums and products; float32 is accumulated in float64, as eager does."""
    source, desc = lower.value(call.args[0]), tensor(call.output)
    kind = "sum" if "cumsum" in call.op else "prod"
    dtype = compute(desc.dtype)
    if dtype == "bool":
        raise Refused("not for bool")
    wide = "float64" if desc.dtype == "float32" else dtype

    def alone(b: Builder, index: Indices) -> str:
        # A dtype that is asked for is what elements are converted to before they are added.
        return element(b, source, index, dtype, desc.dtype)

    def body(b: Builder, index: Indices) -> str:
        return b.cast(b.scan(kind, wide, b.cast(alone(b, index), wide)), dtype)

    dim = _dim(source, argument(call, 1, "dim"))
    if dim is None:
        return lower.pointwise(call, alone, (source,))
    return Scanned(call.name, desc.dtype, desc.shape, desc.strides, dim, body, (source,))


@rule("cummax.default", "cummin.default")
def lower_running_extreme(lower: Lower, call: OpCall) -> Any:
    """Running extremes, and where each was met last."""
    source = lower.value(call.args[0])
    dtype, kind = compute(source.dtype), "max" if "cummax" in call.op else "min"
    dim = _dim(source, argument(call, 1, "dim"))
    if dim is None:  # of single elements: themselves, at 0
        return (
            lower.pointwise(call, lambda b, index: b.read(source, index), (source,), nth=0),
            lower.pointwise(call, lambda b, _: b.position(Affine()), (), nth=1),
        )

    size = source.shape[dim]
    counted = "int32" if isinstance(size, int) and size < 2**31 else "int64"

    def extreme(b: Builder, index: Indices) -> str:
        return b.scan(kind, dtype, b.read(source, index))

    def met(b: Builder, index: Indices) -> str:
        """The largest position so far of those that have the extreme."""
        x = b.read(source, index)
        hit = b.apply("eq", "bool", x, extreme(b, index))
        if dtype in FLOATS:
            hit = b.apply("or", "bool", hit, b.apply("isnan", "bool", x))
        place = b.cast(b.position(index[dim]), counted)
        place = b.apply("where", counted, hit, place, b.const(0, counted))
        return b.cast(b.scan("max", counted, place), "int64")

    def scanned(nth: int, body: Body) -> Scanned:
        desc, name = result(call, nth), f"{call.name}.{nth}"
        return Scanned(name, desc.dtype, desc.shape, desc.strides, dim, body, (source,))

    return scanned(0, extreme), scanned(1, met)


def _dim(source: Value, given: Any) -> int | None:
    """The dimension to go along; None where it has but one element."""
    rank = len(source.shape)
    dim = axis(given, rank)
    if any(size == 0 for size in source.shape):
        raise Refused("a scan of nothing")
    return None if not rank or source.shape[dim] == 1 else dim
