"""Softmax: every row's maximum, the sum of its powers, and what follows from both."""

from __future__ import annotations

from dovetail.ir.call import OpCall
from dovetail.lower.expression import Builder
from dovetail.lower.functions import reciprocal
from dovetail.lower.index_map import Indices
from dovetail.lower.reductions import kept_index, reduction
from dovetail.lower.rules import Lower, Refused, compute, dims_of, rule, tensor
from dovetail.lower.values import Pointwise, Value


@rule("_softmax.default", "_log_softmax.default")
def lower_softmax(lower: Lower, call: OpCall) -> Value:
    """Powers relative to the maximum over their sum, or the logarithm of that."""
    source, desc = lower.value(call.args[0]), tensor(call.output)
    rank, dtype = len(source.shape), compute(desc.dtype)
    if call.args[2] and source.dtype != "float16":
        raise Refused("half to float")
    if not rank:
        raise Refused("a softmax of a number")
    dims = dims_of(call.args[1], rank)
    keep = kept_index(dims, rank)

    highest = reduction(lower, source, "max", dims, dtype, dtype)

    def shifted(b: Builder, index: Indices) -> str:
        x = b.cast(b.read(source, index), dtype)
        return b.apply("sub", dtype, x, b.read(highest, keep(index)))

    moved = lower.inner("shifted", dtype, source.shape, shifted, (source, highest))
    # The smallest powers are results themselves, unless they are only added up.
    is_log = "log" in call.op
    power = powers(lower, moved, "exp_normal" if is_log else "exp")
    total = reduction(lower, power, "sum", dims, dtype, dtype)
    if is_log:
        logarithm = lower.mapped("log", total, lambda b, x: b.apply("log", dtype, x))
        op, left, right = "sub", moved, logarithm
    else:
        inverse = lower.mapped("reciprocal", total, lambda b, x: reciprocal(b, dtype, x))
        op, left, right = "mul", power, inverse

    def body(b: Builder, index: Indices) -> str:
        return b.apply(op, dtype, b.read(left, index), b.read(right, keep(index)))

    return lower.pointwise(call, body, (left, right))


def powers(lower: Lower, moved: Value, op: str) -> Pointwise:
    """The exponential, in one of its forms, of what is not above 0."""
    return lower.mapped("powers", moved, lambda b, x: b.apply(op, moved.dtype, x), 12)
