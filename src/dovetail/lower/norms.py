"""Normalisations as row kernels: moments in two passes, then scale and shift."""

from __future__ import annotations

from typing import Any

from dovetail.ir.affine import mul, product
from dovetail.ir.call import OpCall, Ref
from dovetail.ir.kernel import FLOATS
from dovetail.ir.size import Dim
from dovetail.lower.pointwise import element
from dovetail.lower.reductions import kept_index, moments
from dovetail.lower.reindex import reshape
from dovetail.lower.rules import Lower, Refused, compute, number, rule, static, tensor
from dovetail.lower.values import Builder, Indices, Pointwise, Value, View, contiguous_strides


def _optional(lower: Lower, arg: Any) -> Value | None:
    return lower.value(arg) if isinstance(arg, Ref) else None


def inverse_root(lower: Lower, variance: Value, epsilon: float) -> Pointwise:
    """1 / sqrt(variance + epsilon)."""
    dtype = compute(variance.dtype)

    def body(b: Builder, index: Indices) -> str:
        total = b.apply("add", dtype, b.read(variance, index), b.const(epsilon, dtype))
        return b.apply("div", dtype, b.const(1, dtype), b.apply("sqrt", dtype, total))

    return lower.inner("rstd", dtype, variance.shape, body, (variance,))


def _in_shape(
    lower: Lower, name: str, desc: Any, value: Value, dims: tuple[int, ...], rank: int
) -> Value:
    """Moments in the shape and type that the operator returns them in."""
    described = tensor(desc)
    keep, kept = kept_index(dims, rank), len(described.shape) == rank
    result = compute(described.dtype)

    def body(b: Builder, index: Indices) -> str:
        return b.cast(b.read(value, keep(index, None) if kept else index), result)

    return Pointwise(name, described.dtype, described.shape, described.strides, body, (value,), 1.0)


@rule("native_layer_norm.default")
def lower_layer_norm(lower: Lower, call: OpCall) -> Any:
    """Normalise over the last dimensions."""
    source = lower.value(call.args[0])
    weight, bias = (_optional(lower, a) for a in call.args[2:4])
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
        row = keep(index, None)
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
        _in_shape(lower, f"{call.name}.1", call.output[1], mean, dims, rank),
        _in_shape(lower, f"{call.name}.2", call.output[2], rstd, dims, rank),
    )


@rule("native_group_norm.default")
def lower_group_norm(lower: Lower, call: OpCall) -> Any:
    """Normalise over groups of channels: the channels as two dimensions, the inner one folded."""
    source = lower.value(call.args[0])
    weight, bias = (_optional(lower, a) for a in call.args[1:3])
    groups = static(call.args[6], "the number of groups")
    each = static(source.shape[1], "the number of channels") // max(groups, 1)
    dtype = compute(source.dtype)
    if dtype not in FLOATS or not number(call.args[7]) or not isinstance(call.output, tuple):
        raise Refused("not a plain normalisation")
    if any(d == 0 for d in source.shape):
        raise Refused("a normalisation of nothing")
    desc = tensor(call.output[0])
    if source.strides[1] == 1 and each * groups > 1 and len(source.shape) > 2:
        raise Refused("channels last, where PyTorch has a kernel of its own")
    flat = all(_is_flat(source.shape, strides) for strides in (source.strides, desc.strides))
    fine = _grouped(lower, source, groups, each, flat=flat)
    mean, variance = moments(lower, fine, tuple(range(2, len(fine.shape))), 0)
    rstd = inverse_root(lower, variance, call.args[7])

    def body(b: Builder, index: Indices) -> str:
        n, g, c = index[:3]
        x = b.cast(b.read(fine, index), dtype)
        x = b.apply("sub", dtype, x, b.read(mean, (n, g)))
        x = b.apply("mul", dtype, x, b.read(rstd, (n, g)))
        channel = (g.scale(each) + c,)
        if weight is not None:
            x = b.apply("mul", dtype, x, element(b, weight, channel, dtype))
        return x if bias is None else b.apply("add", dtype, x, element(b, bias, channel, dtype))

    reads = tuple(v for v in (fine, mean, rstd, weight, bias) if v is not None)
    strides = _split(_flattened(desc.strides) if flat else desc.strides, each)
    whole = Pointwise(lower.fresh("normal"), desc.dtype, fine.shape, strides, body, reads, 4.0)
    out = reshape(lower, f"{call.name}.0", whole, desc.shape, desc.strides)
    return (
        out,
        _in_shape(lower, f"{call.name}.1", call.output[1], mean, (), 2),
        _in_shape(lower, f"{call.name}.2", call.output[2], rstd, (), 2),
    )


def _grouped(lower: Lower, source: Value, groups: int, each: int, *, flat: bool) -> View:
    """A value with its channels apart by group; ``flat``: its space as one dimension."""
    base = source
    if flat:
        sizes = (*source.shape[:2], product(source.shape[2:]))
        base = reshape(lower, lower.fresh("flat"), source, sizes, _flattened(source.strides))

    def index(i: Indices, _: Any) -> Indices:
        return (i[0], i[1].scale(each) + i[2], *i[3:])

    shape = (base.shape[0], groups, each, *base.shape[2:])
    return View(lower.fresh("groups"), base, shape, _split(base.strides, each), 0, index)


def _is_flat(shape: tuple[Dim, ...], strides: tuple[Dim, ...]) -> bool:
    """Whether the dimensions behind the channels are as good as one."""
    dense = contiguous_strides(shape[2:])
    steps = zip(strides[2:], dense, strict=True)
    return len(shape) > 2 and all(have == mul(want, strides[-1]) for have, want in steps)


def _flattened(strides: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return (*strides[:2], strides[-1])


def _split(strides: tuple[Dim, ...], each: int) -> tuple[Dim, ...]:
    return (strides[0], mul(strides[1], each), *strides[1:])
