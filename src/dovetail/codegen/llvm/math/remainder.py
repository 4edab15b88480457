"""Remainders of floating-point division, exact, and the length of a vector."""

from __future__ import annotations

import math

from dovetail.codegen.llvm.emit import Code, Val
from dovetail.codegen.llvm.math.arithmetic import (
    absolute,
    add,
    equals,
    fma,
    is_above,
    is_below,
    lesser,
    mul,
    negative,
    scale,
    square_root,
    through_double,
    times,
    total,
    two_product,
    two_sum,
)

_BITS = 50  # of a quotient, in one step


def _exponent(c: Code, x: Val) -> Val:
    """The exponent of a positive float64 (of a denormal one too)."""
    tiny = is_below(c, x, 2.0**-1022)
    bits = c.convert("bitcast", c.select(tiny, times(c, x, 2.0**54), x), "int64")
    e = c.op("lshr", bits, c.like(52, bits))
    return c.select(tiny, c.op("sub", e, c.like(54, e)), e)


def _step(c: Code, rest: Val, divisor: Val) -> Val:
    """Take away the largest multiple of divisor * 2**k that is a whole number of _BITS bits.

    Each product is exact in a fused multiply-add; a quotient rounded up is made good after it.
    """
    k = c.op("sub", _exponent(c, rest), _exponent(c, divisor))
    k = c.op("sub", k, c.like(_BITS, k))
    k = c.select(c.compare("icmp sgt", k, c.like(0, k)), k, c.like(0, k))
    grown = scale(c, divisor, lesser(c, k, 2046))
    quotient = c.intrinsic("trunc", c.op("fdiv", rest, grown))
    left = fma(c, negative(c, quotient), grown, rest)
    return c.select(is_below(c, left, 0.0), add(c, left, grown), left)


def fmod(c: Code, x: Val, y: Val) -> Val:
    """What is left of x after whole multiples of y, with the sign of x."""
    return through_double(c, _fmod64, x, y)


def _fmod64(c: Code, x: Val, y: Val) -> Val:
    size, divisor = absolute(c, x), absolute(c, y)
    sane = c.op("and", is_below(c, size, math.inf), is_above(c, divisor, 0.0))
    slot = c.slot(x.dtype, x.lanes)
    c.put(slot, c.select(sane, size, c.like(0.0, x)))
    again, body, done = c.label("again"), c.label("step"), c.label("left")
    c.block(again)
    rest = c.get(slot, x.dtype, x.lanes)
    more = c.compare("fcmp oge", rest, divisor)
    more = c.op("and", more, sane)
    some = more if x.lanes == 1 else c.intrinsic("vector.reduce.or", more)
    c.line(f"br i1 {some.text}, label %{body}, label %{done}")
    c.start(body)
    safe = c.select(sane, divisor, c.like(1.0, divisor))
    c.put(slot, c.select(more, _step(c, rest, safe), rest))
    c.line(f"br label %{again}")
    c.start(done)
    result = c.intrinsic("copysign", c.get(slot, x.dtype, x.lanes), x)
    broken = c.op("xor", sane, c.like(True, sane))
    broken = c.op("or", broken, c.compare("fcmp uno", x, y))
    return c.select(broken, c.like(math.nan, x), result)


def hypot(c: Code, x: Val, y: Val) -> Val:
    """sqrt(x**2 + y**2), without overflow on the way."""
    return through_double(c, _hypot64 if x.dtype == "float64" else _hypot_short, x, y)


def _hypot_short(c: Code, x: Val, y: Val) -> Val:
    """Of numbers that were float32: their squares are exact in float64."""
    value = c.intrinsic("sqrt", fma(c, x, x, mul(c, y, y)))
    return _endless(c, absolute(c, x), absolute(c, y), value)


def _endless(c: Code, x: Val, y: Val, value: Val) -> Val:
    """Infinity where either size is, beside a NaN too."""
    endless = c.op("or", equals(c, x, math.inf), equals(c, y, math.inf))
    return c.select(endless, c.like(math.inf, x), value)


def _hypot64(c: Code, x: Val, y: Val) -> Val:
    x, y = absolute(c, x), absolute(c, y)
    most = c.select(c.compare("fcmp ogt", x, y), x, y)
    one = c.like(1.0, x)
    down, up = is_above(c, most, 2.0**500), is_below(c, most, 2.0**-500)
    factor = c.select(down, c.like(2.0**-600, x), c.select(up, c.like(2.0**600, x), one))
    back = c.select(down, c.like(2.0**600, x), c.select(up, c.like(2.0**-600, x), one))
    squares = [two_product(c, v, v) for v in (mul(c, x, factor), mul(c, y, factor))]
    high, low = two_sum(c, squares[0][0], squares[1][0])
    low = add(c, low, add(c, squares[0][1], squares[1][1]))
    value = mul(c, total(c, square_root(c, (high, low))), back)
    value = c.select(equals(c, most, 0.0), most, value)
    return _endless(c, x, y, c.select(c.compare("fcmp uno", x, y), c.like(math.nan, x), value))
