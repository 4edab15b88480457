"""Normalisations as row kernels: moments in two passes, then scale and shift."""

from __future__ import annotations

from typing import Any

from dovetail.ir.call import OpCall, Ref
from dovetail.ir.dtypes import FLOATS
from dovetail.ir.size import Dim
from dovetail.lower.expression import Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.pointwise import element
from dovetail.lower.reductions import kept_index, moments
from dovetail.lower.rules import Lower, Refused, compute, number, rule, tensor
from dovetail.lower.values import Pointwise, Value


def optional(lower: Lower, arg: Any) -> Value | None:
    """The value of an operand, if there is one."""
    return lower.value(arg) if isinstance(arg, Ref) else None


def inverse_root(lower: Lower, variance: Value, epsilon: float) -> Pointwise:
    """1 / sqrt(variance + epsilon)."""
    dtype = compute(variance.dtype)

    def body(b: Builder, index: Indices) -> str:
        total = b.apply("add", dtype, b.read(variance, index), b.const(epsilon, dtype))
        return b.apply("div", dtype, b.const(1, dtype), b.apply("sqrt", dtype, total))

    return lower.inner("rstd", dtype, variance.shape, body, (variance,))


def in_shape(
    lower: Lower, name: str, desc: Any, value: Value, dims: tuple[int, ...], rank: int
) -> Value:
    """Moments in the shape and type that the operator returns them in."""
    described = tensor(desc)
    keep, kept = kept_index(dims, rank), len(described.shape) == rank
    result = compute(described.dtype)

    def body(b: Builder, index: Indices) -> str:
        return b.cast(b.read(value, keep(index) if kept else index), result)

    return Pointwise(name, described.dtype, described.shape, described.strides, body, (value,), 1.0)


@rule("native_layer_norm.default")
def lower_layer_norm(lower: Lower, call: OpCall) -> Any:
    """Normalise over the last dimensions."""
    source = lower.value(call.args[0])
    weight, bias = (optional(lower, a) for a in call.args[2:4])
    rank, inner = len(source.shape), len(call.args[1])
    dims = tuple(range(rank - inner, rank))
    return _normalise(lower, call, source, dims, weight, bias, call.args[4], source.shape, inner)


def _normalise(
    lower: Lower,
    call: OpCall,
    source: Value,
    dims: tuple[int, ...],
    weight: Value | None,
    bias: Value | None,
    epsilon: Any,
    shape: tuple[Dim, ...],
    inner: int,
) -> Any:
    """Output, mean and inverse standard deviation; weights go by the last ``inner`` dimensions."""
    dtype = compute(source.dtype)
    if dtype not in FLOATS or not number(epsilon) or not isinstance(call.output, tuple):
        raise Refused("not a plain normalisation")
    if any(d == 0 for d in shape):
        raise Refused("a normalisation of nothing")
    rank = len(source.shape)
    mean, variance = moments(lower, source, dims, 0)
    rstd = inverse_root(lower, variance, epsilon)
    keep = kept_index(dims, rank)
    desc = tensor(call.output[0])

    def body(b: Builder, index: Indices) -> str:
        row = keep(index)
        x = b.cast(b.read(source, index), dtype)
        x = b.apply("sub", dtype, x, b.read(mean, row))
        x = b.apply("mul", dtype, x, b.read(rstd, row))
        place = index[rank - inner :]
        if weight is not None:
            x = b.apply("mul", dtype, x, element(b, weight, place, dtype))
        return x if bias is None else b.apply("add", dtype, x, element(b, bias, place, dtype))

    reads = tuple(v for v in (source, mean, rstd, weight, bias) if v is not None)
    out = Pointwise(f"{call.name}.0", desc.dtype, desc.shape, desc.strides, body, reads, 4.0)
    return (
        out,
        in_shape(lower, f"{call.name}.1", call.output[1], mean, dims, rank),
        in_shape(lower, f"{call.name}.2", call.output[2], rstd, dims, rank),
    )
