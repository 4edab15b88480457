"""Group normalisation: of rows where a channel's elements lie together, else down the channels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dovetail.ir.affine import mul, product
from dovetail.ir.call import OpCall
from dovetail.ir.size import Dim
from dovetail.ir.strides import contiguous_strides
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.expression import Body, Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.norms import check_normal, inverse_root, optional
from dovetail.lower.pointwise import element
from dovetail.lower.reductions import divide_by, finish, moments
from dovetail.lower.reindex import reshape
from dovetail.lower.rules import Lower, compute, result, rule, static, view
from dovetail.lower.values import Pointwise, Value, View


@dataclass(frozen=True)
class Norm:
    """The operands of a call, and the type it is computed in."""

    source: Value
    weight: Value | None
    bias: Value | None
    groups: int
    each: int  # channels of a group
    epsilon: float
    dtype: str

    def scaled(self, b: Builder, x: str, channel: Indices) -> str:
        """A value times its channel's weight."""
        if self.weight is None:
            return x
        return b.apply("mul", self.dtype, x, element(b, self.weight, channel, self.dtype))

    def shifted(self, b: Builder, x: str, channel: Indices) -> str:
        """A value plus its channel's bias."""
        if self.bias is None:
            return x
        return b.apply("add", self.dtype, x, element(b, self.bias, channel, self.dtype))

    def reads(self, *others: Value) -> tuple[Value, ...]:
        """What the result is computed from."""
        return tuple(v for v in (*others, self.weight, self.bias) if v is not None)


@rule("native_group_norm.default")
def lower_group_norm(lower: Lower, call: OpCall) -> Any:
    """The result, and each group's mean and inverse standard deviation."""
    source = lower.value(call.args[0])
    weight, bias = (optional(lower, a) for a in call.args[1:3])
    groups = static(call.args[6], "the number of groups")
    each = static(source.shape[1], "the number of channels") // max(groups, 1)
    check_normal(source, call.args[7])
    norm = Norm(source, weight, bias, groups, each, call.args[7], compute(source.dtype))
    desc = result(call, 0)
    last = source.strides[1] == 1 and groups * each > 1 and product(source.shape[2:]) != 1
    make = _down_channels if last else _along_rows
    out, mean, rstd = make(lower, f"{call.name}.0", desc, norm)
    return (
        out,
        finish(lower, call, mean, nth=1),
        finish(lower, call, rstd, nth=2),
    )


# ---- a channel's elements lie together -------------------------------------------------------


def _along_rows(
    lower: Lower, name: str, desc: TensorDesc, norm: Norm
) -> tuple[Value, Value, Value]:
    """The channels as two dimensions, the inner one reduced with the space behind it."""
    source, each, dtype = norm.source, norm.each, norm.dtype
    flat = all(_is_flat(source.shape, strides) for strides in (source.strides, desc.strides))
    fine = _grouped(lower, source, norm.groups, each, flat=flat)
    mean, variance = moments(lower, fine, tuple(range(2, len(fine.shape))), 0)
    rstd = inverse_root(lower, variance, norm.epsilon)

    def body(b: Builder, index: Indices) -> str:
        n, g, c = index[:3]
        x = b.cast(b.read(fine, index), dtype)
        x = b.apply("sub", dtype, x, b.read(mean, (n, g)))
        x = b.apply("mul", dtype, x, b.read(rstd, (n, g)))
        channel = (g.scale(each) + c,)
        return norm.shifted(b, norm.scaled(b, x, channel), channel)

    reads = norm.reads(fine, mean, rstd)
    strides = _split(_flattened(desc.strides) if flat else desc.strides, each)
    whole = Pointwise(lower.fresh("normal"), desc.dtype, fine.shape, strides, body, reads, 4.0)
    return reshape(lower, name, whole, desc.shape, desc.strides), mean, rstd


def _grouped(lower: Lower, source: Value, groups: int, each: int, *, flat: bool) -> View:
    """A value with its channels apart by group; ``flat``: its space as one dimension."""
    base = source
    if flat:
        sizes = (*source.shape[:2], product(source.shape[2:]))
        base = reshape(lower, lower.fresh("flat"), source, sizes, _flattened(source.strides))

    def index(i: Indices) -> Indices:
        return (i[0], i[1].scale(each) + i[2], *i[3:])

    shape = (base.shape[0], groups, each, *base.shape[2:])
    return view(lower.fresh("groups"), base, shape, index)


def _is_flat(shape: tuple[Dim, ...], strides: tuple[Dim, ...]) -> bool:
    """Whether the dimensions behind the channels are as good as one."""
    dense = contiguous_strides(shape[2:])
    steps = zip(strides[2:], dense, strict=True)
    return len(shape) > 2 and all(have == mul(want, strides[-1]) for have, want in steps)


def _flattened(strides: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return (*strides[:2], strides[-1])


def _split(strides: tuple[Dim, ...], each: int) -> tuple[Dim, ...]:
    return (strides[0], mul(strides[1], each), *strides[1:])


# ---- channels last -----------------------------------------------------------------------------


def _down_channels(
    lower: Lower, name: str, desc: TensorDesc, norm: Norm
) -> tuple[Value, Value, Value]:
    """Sums of each channel, then of each group's; a scale and a centre for each channel.

    The channels of a group are a few elements, all channels are whole vectors.
    """
    source, dtype = norm.source, norm.dtype
    count = product((norm.each, *source.shape[2:]))

    def element_of(b: Builder, index: Indices) -> str:
        return b.cast(b.read(source, (index[0], index[-1], *index[1:-1])), dtype)

    def square(b: Builder, index: Indices) -> str:
        off = b.apply("sub", dtype, element_of(b, index), b.read(centre, (index[0], index[-1])))
        return b.apply("mul", dtype, off, off)

    total = _sum(lower, norm, element_of, (source,))
    mean = lower.mapped("scaled", total, divide_by(count))
    centre = _for_each_channel(lower, norm, mean, lambda _b, x, _channel: x, ())
    squares = _sum(lower, norm, square, (source, centre))
    variance = lower.mapped("scaled", squares, divide_by(count))
    rstd = inverse_root(lower, variance, norm.epsilon)
    scale = _for_each_channel(lower, norm, rstd, norm.scaled, (norm.weight,))

    def body(b: Builder, index: Indices) -> str:
        x = b.cast(b.read(source, index), dtype)
        x = b.apply("sub", dtype, x, b.read(centre, index[:2]))
        x = b.apply("mul", dtype, x, b.read(scale, index[:2]))
        return norm.shifted(b, x, index[1:2])

    reads = tuple(v for v in (source, centre, scale, norm.bias) if v is not None)
    form = desc.dtype, desc.shape, desc.strides
    return Pointwise(name, *form, body, reads, 4.0), mean, rstd


def _sum(lower: Lower, norm: Norm, body: Body, reads: tuple[Value, ...]) -> Value:
    """An expression of (batch, space, channel) summed by channel, then by group.

    There are few sums of channels in a group, so that they are added up without error.
    """
    batch, channels, *space = norm.source.shape
    dtype, groups, each = norm.dtype, norm.groups, norm.each
    shape, dims = (batch, *space, channels), tuple(range(1, len(space) + 1))
    down = lower.reduction("sum", dtype, shape, dims, body, reads)
    wide = "float64" if dtype == "float32" else dtype

    def of_group(b: Builder, index: Indices) -> str:
        channel = index[-2].scale(each) + index[-1]
        return b.cast(b.read(down, (index[0], channel)), wide)

    total = lower.reduction("sum", wide, (batch, groups, each), (2,), of_group, (down,))
    return lower.inner(
        "sum", dtype, total.shape, lambda b, i: b.cast(b.read(total, i), dtype), (total,)
    )


def _for_each_channel(
    lower: Lower,
    norm: Norm,
    value: Value,
    change: Callable[[Builder, str, Indices], str],
    reads: tuple[Value | None, ...],
) -> View:
    """A group's value, changed for each channel, in memory as (batch, channel)."""
    shape = (value.shape[0], norm.groups, norm.each)

    def body(b: Builder, index: Indices) -> str:
        channel = (index[1].scale(norm.each) + index[2],)
        return change(b, b.read(value, index[:2]), channel)

    spread = lower.inner("spread", norm.dtype, shape, body, (value, *reads))
    sizes = (value.shape[0], norm.groups * norm.each)
    return reshape(lower, lower.fresh("channels"), spread, sizes, contiguous_strides(sizes))
