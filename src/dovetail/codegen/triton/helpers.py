"""Functions that rendered kernels call: how reductions join values, and powers of integers."""

from __future__ import annotations

import triton
import triton.language as tl

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"


@triton.jit
def larger(a, b):  # noqa: ANN001, ANN201
    """The larger of two; a NaN beats all."""
    if a.dtype == tl.float64:
        return tl.where((a > b) | (a != a), a, b)
    if a.dtype.is_floating():
        return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    return tl.maximum(a, b)


@triton.jit
def smaller(a, b):  # noqa: ANN001, ANN201
    """The smaller of two; a NaN beats all."""
    if a.dtype == tl.float64:
        return tl.where((a < b) | (a != a), a, b)
    if a.dtype.is_floating():
        return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(a, b)


@triton.jit
def multiplied(a, b):  # noqa: ANN001, ANN201
    """The product of two."""
    return a * b


@triton.jit
def first_larger(value, place, other, at):  # noqa: ANN001, ANN201
    """The larger value and its place; a NaN beats all, the first of equals wins."""
    better = (value > other) | ((value != value) & (other == other))
    equal = (value == other) | ((value != value) & (other != other))
    take = better | (equal & (place < at))
    return tl.where(take, value, other), tl.where(take, place, at)


@triton.jit
def first_smaller(value, place, other, at):  # noqa: ANN001, ANN201
    """The smaller value and its place; a NaN beats all, the first of equals wins."""
    better = (value < other) | ((value != value) & (other == other))
    equal = (value == other) | ((value != value) & (other != other))
    take = better | (equal & (place < at))
    return tl.where(take, value, other), tl.where(take, place, at)


@triton.jit
def whole_power(base, exponent):  # noqa: ANN001, ANN201
    """A power of integers, which wraps; with a negative exponent all but 1 and -1 give 0."""
    left = tl.where(exponent < 0, exponent & 1, exponent)  # of 1 and -1 only that bit counts
    result, square = base * 0 + exponent * 0 + 1, base + exponent * 0
    for _ in tl.static_range(base.dtype.primitive_bitwidth):
        result = tl.where((left & 1) != 0, result * square, result)
        square, left = square * square, left >> 1
    kept = (base == 1) | (base == -1)
    return tl.where((exponent < 0) & (kept == 0), 0, result)
