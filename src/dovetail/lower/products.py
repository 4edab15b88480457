"""Matrix products with few rows, as sums: what surrounds them fuses, and nothing is packed.

A product with one row reads each weight once, so that memory sets the pace; larger ones are
better left to a library, which uses each weight it has loaded many times.
"""

from __future__ import annotations

from dovetail.ir.call import OpCall
from dovetail.ir.dtypes import FLOATS
from dovetail.lower.expression import Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.pointwise import element
from dovetail.lower.rules import Lower, Refused, argument, compute, number, rule, tensor
from dovetail.lower.values import Pointwise, Reduction, Value

MOST_ROWS = 1


def _is_small(left: Value, right: Value) -> None:
    """Refuse what a library is better at."""
    sizes = (*left.shape, *right.shape)
    if not all(isinstance(d, int) and d > 0 for d in sizes):
        raise Refused("a product whose sizes are not known")
    if compute(left.dtype) not in FLOATS or right.dtype != left.dtype:
        raise Refused("a product that is not of floating-point numbers")
    if min(int(left.shape[-2]), int(right.shape[-1])) > MOST_ROWS:  # type: ignore[arg-type]
        raise Refused("a product that a library is better at")


def contraction(lower: Lower, left: Value, right: Value) -> Reduction:
    """Σ_k left[…, m, k] right[…, k, n], folded in the type it is computed in."""
    dtype = compute(left.dtype)
    rank = len(left.shape)

    def body(b: Builder, index: Indices) -> tuple[str, ...]:
        *batch, m, n, k = index
        one = b.cast(b.read(left, (*batch, m, k)), dtype)
        other = b.cast(b.read(right, (*batch, k, n)), dtype)
        return (b.apply("mul", dtype, one, other),)

    shape = (*left.shape[:-1], right.shape[-1], left.shape[-1])
    name = lower.fresh("product")
    return Reduction(name, dtype, "sum", shape, (rank,), body, (left, right), dtype)


@rule("mm.default", "bmm.default")
def lower_mm(lower: Lower, call: OpCall) -> Value:
    """A product, or one for each matrix of a batch."""
    left, right = (lower.value(a) for a in call.args[:2])
    _is_small(left, right)
    total = contraction(lower, left, right)
    result = compute(tensor(call.output).dtype)
    return lower.pointwise(call, lambda b, i: b.cast(b.read(total, i), result), (total,))


@rule("addmm.default")
def lower_addmm(lower: Lower, call: OpCall) -> Value:
    """A scaled bias and a scaled product."""
    bias, left, right = (lower.value(a) for a in call.args[:3])
    beta, alpha = argument(call, 3, "beta", 1), argument(call, 4, "alpha", 1)
    if not number(beta) or not number(alpha):
        raise Refused("a factor that is no constant")
    _is_small(left, right)
    total = contraction(lower, left, right)
    dtype, result = compute(left.dtype), compute(tensor(call.output).dtype)

    def body(b: Builder, index: Indices) -> str:
        value = b.read(total, index)
        if alpha != 1:
            value = b.apply("mul", dtype, value, b.const(alpha, dtype))
        if beta != 0:
            extra = element(b, bias, index, dtype)
            if beta != 1:
                extra = b.apply("mul", dtype, extra, b.const(beta, dtype))
            value = b.apply("add", dtype, value, extra)
        return b.cast(value, result)

    return lower.pointwise(call, body, (total, bias), 1.0)


@rule("mv.default")
def lower_mv(lower: Lower, call: OpCall) -> Pointwise:
    """A matrix times a vector."""
    matrix, vector = (lower.value(a) for a in call.args[:2])
    dtype = compute(matrix.dtype)
    if dtype not in FLOATS or matrix.dtype != vector.dtype:
        raise Refused("a product that is not of floating-point numbers")
    if not all(isinstance(d, int) and d > 0 for d in matrix.shape):
        raise Refused("a product whose sizes are not known")

    def body(b: Builder, index: Indices) -> tuple[str, ...]:
        one = b.cast(b.read(matrix, index), dtype)
        other = b.cast(b.read(vector, index[1:]), dtype)
        return (b.apply("mul", dtype, one, other),)

    name = lower.fresh("product")
    total = Reduction(name, dtype, "sum", matrix.shape, (1,), body, (matrix, vector), dtype)
    result = compute(tensor(call.output).dtype)
    return lower.pointwise(call, lambda b, i: b.cast(b.read(total, i), result), (total,))
