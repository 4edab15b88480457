"""Normalisations as row kernels: moments in two passes, then scale and shift."""

from __future__ import annotations

from typing import Any

from dovetail.ir.call import OpCall, Ref
from dovetail.ir.dtypes import FLOATS
from dovetail.lower.expression import Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.pointwise import element
from dovetail.lower.reductions import finish, kept_index, moments
from dovetail.lower.rules import Lower, Refused, compute, number, rule
from dovetail.lower.values import Pointwise, Value


def optional(lower: Lower, arg: Any) -> Value | None:
    """The value of an operand, if there is one."""
    return lower.value(arg) if isinstance(arg, Ref) else None


def inverse_root(lower: Lower, variance: Value, epsilon: float) -> Pointwise:
    """1 / sqrt(variance + epsilon)."""
    dtype = compute(variance.dtype)

    def change(b: Builder, x: str) -> str:
        total = b.apply("add", dtype, x, b.const(epsilon, dtype))
        return b.apply("div", dtype, b.const(1, dtype), b.apply("sqrt", dtype, total))

    return lower.mapped("rstd", variance, change)


def check_normal(source: Value, epsilon: Any) -> None:
    """Refuse what is no normalisation of floating-point numbers."""
    if compute(source.dtype) not in FLOATS or not number(epsilon):
        raise Refused("not a plain normalisation")
    if any(d == 0 for d in source.shape):
        raise Refused("a normalisation of nothing")


@rule("native_layer_norm.default")
def lower_layer_norm(lower: Lower, call: OpCall) -> Any:
    """Output, mean and inverse standard deviation over the last dimensions."""
    source, epsilon = lower.value(call.args[0]), call.args[4]
    weight, bias = (optional(lower, a) for a in call.args[2:4])
    check_normal(source, epsilon)
    dtype, rank, inner = compute(source.dtype), len(source.shape), len(call.args[1])
    dims = tuple(range(rank - inner, rank))
    mean, variance = moments(lower, source, dims, 0)
    rstd = inverse_root(lower, variance, epsilon)
    keep = kept_index(dims, rank)

    def body(b: Builder, index: Indices) -> str:
        row = keep(index)
        x = b.cast(b.read(source, index), dtype)
        x = b.apply("sub", dtype, x, b.read(mean, row))
        x = b.apply("mul", dtype, x, b.read(rstd, row))
        place = index[rank - inner :]
        if weight is not None:
            x = b.apply("mul", dtype, x, element(b, weight, place, dtype))
        return x if bias is None else b.apply("add", dtype, x, element(b, bias, place, dtype))

    return (
        lower.pointwise(call, body, (source, mean, rstd, weight, bias), 4.0, nth=0),
        finish(lower, call, mean, dims, rank, nth=1),
        finish(lower, call, rstd, dims, rank, nth=2),
    )
