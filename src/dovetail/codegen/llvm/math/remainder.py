"""Remainders of floating-point division, exact, and the length of a vector."""

from __future__ import annotations

import math

from dovetail.codegen.llvm.math.arithmetic import (
    lesser,
    scale,
    sqrt,
    square_root,
    through_double,
    total,
    two_product,
    two_sum,
)
from dovetail.codegen.llvm.math.number import Number, copysign, equals, fma, select, while_any

_BITS = 50  # of a quotient, in one step


def _exponent(x: Number) -> Number:
    """The exponent of a positive float64 (of a denormal one too)."""
    tiny = x < 2.0**-1022
    bits = select(tiny, x * 2.0**54, x).convert("bitcast", "int64")
    e = bits.op("lshr", 52)
    return select(tiny, e - 54, e)


def _step(rest: Number, divisor: Number) -> Number:
    """Take away the largest multiple of divisor * 2**k that is a whole number of _BITS bits.

    Each product is exact in a fused multiply-add; a quotient rounded up is made good after it.
    """
    k = _exponent(rest) - _exponent(divisor) - _BITS
    k = select(k > 0, k, 0)
    grown = scale(divisor, lesser(k, 2046))
    quotient = (rest / grown).intrinsic("trunc")
    left = fma(-quotient, grown, rest)
    return select(left < 0.0, left + grown, left)


def fmod(x: Number, y: Number) -> Number:
    """What is left of x after whole multiples of y, with the sign of x."""
    return through_double(_fmod64, x, y)


def _fmod64(x: Number, y: Number) -> Number:
    size, divisor = abs(x), abs(y)
    sane = (size < math.inf) & (divisor > 0.0)

    def step(more: Number, rest: Number) -> list[Number]:
        safe = select(sane, divisor, 1.0)
        return [select(more, _step(rest, safe), rest)]

    start = select(sane, size, 0.0)
    rest = while_any([start], lambda rest: (rest >= divisor) & sane, step)
    result = copysign(rest, x)
    broken = (sane ^ True) | x.compare("fcmp uno", y)
    return select(broken, math.nan, result)


def hypot(x: Number, y: Number) -> Number:
    """sqrt(x**2 + y**2), without overflow on the way."""
    return through_double(_hypot64 if x.dtype == "float64" else _hypot_short, x, y)


def _hypot_short(x: Number, y: Number) -> Number:
    """Of numbers that were float32: their squares are exact in float64."""
    value = sqrt(fma(x, x, y * y))
    return _endless(abs(x), abs(y), value)


def _endless(x: Number, y: Number, value: Number) -> Number:
    """Infinity where either size is, beside a NaN too."""
    endless = equals(x, math.inf) | equals(y, math.inf)
    return select(endless, math.inf, value)


def _hypot64(x: Number, y: Number) -> Number:
    x, y = abs(x), abs(y)
    most = select(x > y, x, y)
    one = x.like(1.0)
    down, up = most > 2.0**500, most < 2.0**-500
    factor = select(down, 2.0**-600, select(up, 2.0**600, one))
    back = select(down, 2.0**600, select(up, 2.0**-600, one))
    squares = [two_product(v, v) for v in (x * factor, y * factor)]
    high, low = two_sum(squares[0][0], squares[1][0])
    low = low + (squares[0][1] + squares[1][1])
    value = total(square_root((high, low))) * back
    value = select(equals(most, 0.0), most, value)
    return _endless(x, y, select(x.compare("fcmp uno", y), math.nan, value))
