"""Cumulative sums, products and extremes: scans along a dimension."""

from __future__ import annotations

from typing import Any

from dovetail.ir.affine import Affine, product
from dovetail.ir.call import OpCall
from dovetail.ir.dtypes import FLOATS
from dovetail.ir.size import Dim
from dovetail.ir.strides import contiguous_strides
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.expression import Body, Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.pointwise import element
from dovetail.lower.reindex import reshape
from dovetail.lower.rules import Lower, Refused, argument, compute, rule, static, tensor
from dovetail.lower.values import Pointwise, Reduction, Scanned, Value

LONG = 1 << 18  # elements from which on a scan that has few beside it is shared among threads
FEW = 4  # so many beside it keep the threads busy
PARTS = 16  # that it is then done in


@rule("cumsum.default", "cumprod.default")
def lower_cumulative(lower: Lower, call: OpCall) -> Value:
    """Running sums and products; float32 is accumulated in float64, as eager does."""
    source, desc = lower.value(call.args[0]), tensor(call.output)
    kind = "sum" if "cumsum" in call.op else "prod"
    result = compute(desc.dtype)
    if result == "bool":
        raise Refused("not for bool")
    wide = "float64" if desc.dtype == "float32" else result

    def alone(b: Builder, index: Indices) -> str:
        # A dtype that is asked for is what elements are converted to before they are added.
        return element(b, source, index, result, desc.dtype)

    def body(b: Builder, index: Indices) -> str:
        return b.cast(b.scan(kind, wide, b.cast(alone(b, index), wide)), result)

    dim = _dim(source, argument(call, 1, "dim"))
    if dim is None:
        return lower.pointwise(call, alone, (source,))
    if kind == "sum" and result in FLOATS and _is_shared(desc, dim):
        return _shared(lower, call, source, wide, dim, alone)
    return Scanned(call.name, desc, dim, body, (source,))


def _is_shared(desc: TensorDesc, dim: int) -> bool:
    """Whether a long scan has too few beside it for threads, and can be done in parts."""
    size, total = desc.shape[dim], product(desc.shape)
    if not isinstance(size, int) or not isinstance(total, int) or size % PARTS != 0:
        return False
    dense = desc.strides == contiguous_strides(desc.shape)
    return dense and total >= LONG and total // size < FEW


def _shared(lower: Lower, call: OpCall, source: Value, wide: str, dim: int, each_of: Body) -> Value:
    """A running sum in parts that threads share, each going on from the sum of those before it.

    The parts depend on the shape alone, so the result does not depend on the threads.
    """
    desc = tensor(call.output)
    result, each = compute(desc.dtype), static(desc.shape[dim], "a size") // PARTS
    finer = (*desc.shape[:dim], PARTS, each, *desc.shape[dim + 1 :])

    def x(b: Builder, index: Indices) -> str:
        place = index[dim].scale(each) + index[dim + 1]
        return b.cast(each_of(b, (*index[:dim], place, *index[dim + 2 :])), wide)

    def one(b: Builder, index: Indices) -> tuple[str, ...]:
        return (x(b, index),)

    sums = Reduction(lower.fresh("sum"), wide, "sum", finer, (dim + 1,), one, (source,), wide)

    def step(b: Builder, index: Indices) -> str:
        return b.scan("sum", wide, b.read(sums, index))

    ends = Scanned(lower.fresh("sum"), _dense(wide, sums.shape), dim, step, (sums,))

    def body(b: Builder, index: Indices) -> str:
        before = (*index[:dim], index[dim].shift(-1), *index[dim + 2 :])
        later = b.apply("gt", "bool", b.position(index[dim]), b.const(0, "int64"))
        start = b.masked(later, lambda: b.read(ends, before))
        so_far = b.scan("sum", wide, x(b, index))
        return b.cast(b.apply("add", wide, start, so_far), result)

    reads = (source, ends)
    parts = Scanned(lower.fresh("sum"), _dense(desc.dtype, finer), dim + 1, body, reads)
    return reshape(lower, call.name, parts, desc.shape, desc.strides)


def _dense(dtype: str, shape: tuple[Dim, ...]) -> TensorDesc:
    return TensorDesc(dtype, shape, contiguous_strides(shape))


@rule("cummax.default", "cummin.default")
def lower_running_extreme(lower: Lower, call: OpCall) -> Any:
    """Running extremes, and where each was met last."""
    source = lower.value(call.args[0])
    dtype, kind = compute(source.dtype), "max" if "cummax" in call.op else "min"
    if not isinstance(call.output, tuple):
        raise Refused("its results are no tensors")
    values, places = (tensor(desc) for desc in call.output)
    dim = _dim(source, argument(call, 1, "dim"))
    if dim is None:
        return _alone(call, source, values, places)

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

    return (
        Scanned(f"{call.name}.0", values, dim, extreme, (source,)),
        Scanned(f"{call.name}.1", places, dim, met, (source,)),
    )


def _alone(
    call: OpCall, source: Value, values: TensorDesc, places: TensorDesc
) -> tuple[Value, ...]:
    """The extremes of single elements: themselves, at 0."""

    def element(b: Builder, index: Indices) -> str:
        return b.read(source, index)

    def zero(b: Builder, index: Indices) -> str:
        del index
        return b.position(Affine())

    return (
        Pointwise(f"{call.name}.0", values.dtype, values.shape, values.strides, element, (source,)),
        Pointwise(f"{call.name}.1", places.dtype, places.shape, places.strides, zero, ()),
    )


def _dim(source: Value, given: Any) -> int | None:
    """The dimension to go along; None where it has but one element."""
    rank = len(source.shape)
    dim = static(given, "a dimension") % max(rank, 1)
    if any(size == 0 for size in source.shape):
        raise Refused("a scan of nothing")
    return None if not rank or source.shape[dim] == 1 else dim
