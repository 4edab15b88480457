"""Functions that rendered kernels call: how reductions join values, and some functions of math."""

from __future__ import annotations

import triton
import triton.language as tl

from dovetail.codegen.llvm.math.coefficients import ERFC

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

_E0, _E1, _E2, _E3, _E4, _E5, _E6, _E7, _E8 = map(tl.constexpr, ERFC)
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def power_of_two(x):  # noqa: ANN001, ANN201
    """2**x in one instruction, to 22 bits."""
    return tl.inline_asm_elementwise(
        "ex2.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def inverse(x):  # noqa: ANN001, ANN201
    """1 / x in one instruction, to 23 bits."""
    return tl.inline_asm_elementwise(
        "rcp.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def short_exp(x):  # noqa: ANN001, ANN201
    """exp(x) with an error of |x| / 2**24 and a little more, relative to the result."""
    return power_of_two(x * _LOG2_E)


@triton.jit
def short_sigmoid(x):  # noqa: ANN001, ANN201
    """The logistic function to 20 bits."""
    return inverse(1.0 + power_of_two(x * -_LOG2_E))


@triton.jit
def short_tanh(x):  # noqa: ANN001, ANN201
    """The hyperbolic tangent to 16 bits: two terms of its series near zero, 1 - 2 / (1 + e**2x)."""
    near = tl.where(x == 0.0, x, tl.fma(x * x, x * -0.3333333, x))  # which keeps the sign of zero
    far = tl.fma(inverse(1.0 + power_of_two(x * (2 * _LOG2_E))), -2.0, 1.0)
    return tl.where(tl.abs(x) < 0.07, near, far)


@triton.jit
def erf_plus_one(x):  # noqa: ANN001, ANN201
    """1 + erf(x) to the accuracy of the sum: 2**(t q(t)), t being |x| up to 4, or 2 less that."""
    size = tl.abs(x)
    t = tl.minimum(size, 4.0, propagate_nan=tl.PropagateNan.ALL)
    q = tl.fma(tl.fma(tl.fma(tl.fma(t, _E8, _E7), t, _E6), t, _E5), t, _E4)
    q = tl.fma(tl.fma(tl.fma(tl.fma(q, t, _E3), t, _E2), t, _E1), t, _E0)
    rest = tl.where(size > 4.0, 0.0, power_of_two(t * q))
    return tl.where(x < 0.0, rest, 2.0 - rest)


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
