"""Sums, products, extremes, variances: reductions over dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dovetail.ir.affine import Affine, product
from dovetail.ir.call import OpCall
from dovetail.ir.dtypes import FLOATS
from dovetail.ir.size import Dim
from dovetail.ir.strides import contiguous_strides
from dovetail.lower.expression import Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.pointwise import lower_elements
from dovetail.lower.rules import (
    Lower,
    Refused,
    argument,
    compute,
    dims_of,
    number,
    result,
    rule,
    tensor,
)
from dovetail.lower.values import Reduction, Value

# What is done to an element before it is reduced.
Prologue = Callable[[Builder, str], str]


def reduction(
    lower: Lower,
    source: Value,
    op: str,
    dims: tuple[int, ...],
    dtype: str,
    accumulate: str,
    prologue: Prologue | None = None,
) -> Value:
    """A reduction of ``source`` over ``dims``; ``dtype`` is the result's storage type."""

    def body(b: Builder, index: Indices) -> str:
        value = b.cast(b.read(source, index), accumulate)
        return value if prologue is None else prologue(b, value)

    return lower.reduction(op, dtype, source.shape, dims, body, (source,), accumulate)


def kept_index(dims: tuple[int, ...], rank: int) -> Callable[[Indices], Indices]:
    """From the index of a result with its reduced dimensions kept to one without them."""
    return lambda index: tuple(index[n] for n in range(rank) if n not in dims)


def finish(
    lower: Lower,
    call: OpCall,
    value: Value,
    dims: tuple[int, ...] = (),
    rank: int = 0,
    last: Prologue | None = None,
    nth: int | None = None,
) -> Value:
    """A call's result: a last step applied to each element, in the shape and type asked for.

    A reduction's result may have its ``dims`` kept: then it is of the source's ``rank``.
    """
    desc = result(call, nth)
    kept = len(desc.shape) == rank and rank > 0
    keep = kept_index(dims, rank)

    def body(b: Builder, index: Indices) -> str:
        x = b.read(value, keep(index) if kept else index)
        return b.cast(x if last is None else last(b, x), compute(desc.dtype))

    return lower.pointwise(call, body, (value,), nth=nth)


def _nonempty(source: Value, dims: tuple[int, ...]) -> None:
    """Extremes of nothing raise in eager."""
    if any(source.shape[d] == 0 for d in dims):
        raise Refused("an extreme of nothing")


@rule("sum.default", "sum.dim_IntList", "mean.default", "mean.dim", "prod.default", "prod.dim_int")
def lower_sum(lower: Lower, call: OpCall) -> Value:
    """Sums, means and products, reduced in float32 (products in float64) or the integer type."""
    source, desc = lower.value(call.args[0]), tensor(call.output)
    rank = len(source.shape)
    kind, overload = call.op.split(".")[1:]
    given = None if overload == "default" else argument(call, 1, "dim")
    dims = dims_of(given, rank)
    accumulate = compute(desc.dtype)
    if accumulate == "bool":
        raise Refused("not for bool")
    op = "prod" if kind == "prod" else "sum"
    if op == "prod" and accumulate == "float32":
        accumulate = "float64"  # parts that each start at 1 would repeat the same roundings
    reduced = reduction(lower, source, op, dims, accumulate, accumulate)
    last = None
    if kind == "mean":
        count = product(source.shape[d] for d in dims)
        last = divide_by(count)
    return finish(lower, call, reduced, dims, rank, last)


def divide_by(count: Dim, correction: float = 0) -> Prologue:
    """Division by a number of elements."""

    def last(b: Builder, x: str) -> str:
        dtype = b.dtype_of(x)
        if isinstance(count, int):
            return b.apply("div", dtype, x, b.const(max(count - correction, 0), dtype))
        total = b.cast(b.position(Affine(count)), dtype)
        left = b.apply("sub", dtype, total, b.const(correction, dtype))
        return b.apply("div", dtype, x, b.apply("max", dtype, left, b.const(0, dtype)))

    return last


def lowest(dtype: str) -> float | int:
    """What no element of a computing type is below."""
    if dtype in FLOATS:
        return -math.inf
    if dtype == "bool":
        return 0
    return 0 if dtype.startswith("u") else -(2 ** (int(dtype.removeprefix("int")) - 1))


@rule("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims")
def lower_quantifier(lower: Lower, call: OpCall) -> Value:
    """Whether any element holds, or all do; of uint8 it is uint8."""
    source, (kind, overload) = lower.value(call.args[0]), call.op.split(".")[1:]
    rank, given = len(source.shape), argument(call, 1, "dim")
    if overload == "dims" and given == ():  # unlike sums, no dimension means none here
        return lower_elements(lower, call, call.args[:1], "bool", lambda _b, _dtype, x: x)
    dims = dims_of(None if overload == "default" else given, rank)
    reduced = reduction(lower, source, kind, dims, "bool", "bool")
    return finish(lower, call, reduced, dims, rank)


@rule("amax.default", "amin.default", "max.default", "min.default")
def lower_extreme(lower: Lower, call: OpCall) -> Value:
    """Extremes over dimensions, or of all elements."""
    source, kind = lower.value(call.args[0]), call.op.split(".")[1]
    rank, dtype = len(source.shape), compute(source.dtype)
    dims = dims_of(argument(call, 1, "dim"), rank)
    _nonempty(source, dims)
    op = _extreme(kind.removeprefix("a"), dtype)
    reduced = reduction(lower, source, op, dims, dtype, dtype)
    return finish(lower, call, reduced, dims, rank)


def _extreme(kind: str, dtype: str) -> str:
    """The reduction that gives the largest or smallest of numbers, or of truth values."""
    return {"max": "any", "min": "all"}[kind] if dtype == "bool" else kind


@rule("max.dim", "min.dim")
def lower_extreme_and_place(lower: Lower, call: OpCall) -> Any:
    """The extreme along a dimension, and the first position it stands at."""
    source = lower.value(call.args[0])
    rank, dtype = len(source.shape), compute(source.dtype)
    dims = dims_of(call.args[1], rank)
    _nonempty(source, dims)
    if not rank:
        raise Refused("an extreme of a number")
    kind = call.op.split(".")[1]
    value = reduction(lower, source, _extreme(kind, dtype), dims, dtype, dtype)
    place = _place(lower, source, f"arg{kind}", dims, flat=False)
    return tuple(
        finish(lower, call, reduced, dims, rank, nth=n) for n, reduced in enumerate((value, place))
    )


@rule("linalg_vector_norm.default")
def lower_norm(lower: Lower, call: OpCall) -> Value:
    """Norms of every order."""
    source, desc = lower.value(call.args[0]), tensor(call.output)
    order = argument(call, 1, "ord", 2)
    rank, dtype = len(source.shape), compute(desc.dtype)
    if not number(order) or not {compute(source.dtype), dtype} <= FLOATS:
        raise Refused("a norm of another order")
    dims = dims_of(argument(call, 2, "dim"), rank)
    if any(source.shape[d] == 0 for d in dims):
        raise Refused("a norm of nothing")
    plain = order in (0, 1, 2) or math.isinf(order)

    def before(b: Builder, x: str) -> str:
        if order == 2:
            return b.apply("mul", dtype, x, x)
        if order == 0:
            return b.cast(b.apply("ne", "bool", x, b.const(0, dtype)), dtype)
        size = b.apply("abs", dtype, x)
        return size if plain else b.apply("pow", dtype, size, b.const(order, dtype))

    def after(b: Builder, x: str) -> str:
        return _root(b, x) if order == 2 else b.apply("pow", dtype, x, b.const(1 / order, dtype))

    op = ("max" if order > 0 else "min") if math.isinf(order) else "sum"
    reduced = reduction(lower, source, op, dims, dtype, dtype, before)
    last = after if order == 2 or not plain else None
    return finish(lower, call, reduced, dims, rank, last)


@rule("argmax.default", "argmin.default")
def lower_argmax(lower: Lower, call: OpCall) -> Value:
    """The position of the extreme; over all elements it counts in row-major order."""
    source, given = lower.value(call.args[0]), argument(call, 1, "dim")
    rank = len(source.shape)
    dims = dims_of(given, rank)
    _nonempty(source, dims)
    reduced = _place(lower, source, call.op.split(".")[1], dims, flat=given is None)
    return finish(lower, call, reduced, dims, rank)


def _place(lower: Lower, source: Value, op: str, dims: tuple[int, ...], *, flat: bool) -> Reduction:
    """Where the extreme stands, along the dimension or in row-major order."""
    strides = contiguous_strides(source.shape)

    def body(b: Builder, index: Indices) -> tuple[str, ...]:
        place = Affine()
        for d in dims:
            place += index[d].scale(strides[d] if flat else 1)
        value = b.read(source, index)
        return b.cast(value, "uint8") if source.dtype == "bool" else value, b.position(place)

    return lower.reduction(op, "int64", source.shape, dims, body, (source,))


def moments(
    lower: Lower, source: Value, dims: tuple[int, ...], correction: float, dtype: str = ""
) -> tuple[Value, Value]:
    """Mean and variance in two passes; both in the shape without the reduced dimensions."""
    dtype = dtype or compute(source.dtype)
    count = product(source.shape[d] for d in dims)
    total = reduction(lower, source, "sum", dims, dtype, dtype)
    mean = lower.mapped("scaled", total, divide_by(count))
    squares = squared_deviations(lower, source, mean, dims, dtype)
    return mean, lower.mapped("scaled", squares, divide_by(count, correction))


def squared_deviations(
    lower: Lower, source: Value, mean: Value, dims: tuple[int, ...], dtype: str
) -> Reduction:
    """The sum of the squares of elements without their mean."""
    keep = kept_index(dims, len(source.shape))

    def body(b: Builder, index: Indices) -> str:
        centre = b.read(mean, keep(index))
        off = b.apply("sub", dtype, b.cast(b.read(source, index), dtype), centre)
        return b.apply("mul", dtype, off, off)

    return lower.reduction("sum", dtype, source.shape, dims, body, (source, mean))


@rule("var.correction", "var.dim", "var_mean.correction", "var_mean.dim")
@rule("std.correction", "std_mean.correction")
def lower_var(lower: Lower, call: OpCall) -> Any:
    """Variances and their roots, with the means where asked.

    Squares may leave float32 where a deviation does not: for those they are reduced in float64.
    """
    source = lower.value(call.args[0])
    rank = len(source.shape)
    dims = dims_of(argument(call, 1, "dim"), rank)
    correction = argument(call, 2, "correction") if "correction" in call.op else None
    if "correction" not in call.op:
        correction = 1 if argument(call, 2, "unbiased", True) else 0
    correction = 1 if correction is None else correction
    if not number(correction) or compute(source.dtype) not in FLOATS:
        raise Refused("a correction that is no number")
    last, wide = (_root, "float64") if "std" in call.op else (None, "")
    mean, variance = moments(lower, source, dims, correction, wide)
    if "_mean" not in call.op:
        return finish(lower, call, variance, dims, rank, last)
    spread = finish(lower, call, variance, dims, rank, last, nth=0)
    return spread, finish(lower, call, mean, dims, rank, nth=1)


def _root(b: Builder, x: str) -> str:
    return b.apply("sqrt", b.dtype_of(x), x)
