"""Logarithms, powers, and the inverses of hyperbolic functions.

log(m 2**e) = e ln 2 + 2 atanh((m - 1) / (m + 1)), m between sqrt(1/2) and sqrt(2). Float32 has a
polynomial in m - 1 instead of the quotient, m between 3/4 and 3/2.
"""

from __future__ import annotations

import math

from dovetail.codegen.llvm.math import coefficients as k
from dovetail.codegen.llvm.math.arithmetic import (
    Pair,
    clamp,
    divide,
    fast_two_sum,
    keep_tiny,
    lesser,
    polynomial,
    power_of_two,
    scale,
    sqrt,
    square_root,
    through_double,
    total,
    two_product,
    two_product_pair,
    two_product_with,
    two_sum,
)
from dovetail.codegen.llvm.math.exponential import LN2_SPLIT, exp_pair, exp_short
from dovetail.codegen.llvm.math.number import Number, copysign, equals, fma, select
from dovetail.codegen.llvm.math.wide import can_scale, get_exponent, get_mantissa, scaled

_LEAST = 2.2250738585072014e-308  # normal
_LARGE, _LARGE_SHORT = 2.0**28, 2.0**13  # beyond it x**2 + 1 is x**2


def _split(x: Number) -> tuple[Number, Number]:
    """X = m 2**e, x positive: the integer e, and m."""
    tiny = x < _LEAST
    bits = select(tiny, x * 2.0**54, x).convert("bitcast", "int64")
    moved = bits - 0x3FE6A09E667F3BCD
    e = moved >> 52
    m = (bits - (e << 52)).convert("bitcast", "float64")
    return select(tiny, e - 54, e), m


def _of_fraction(m: Number, low: Number | None = None) -> tuple[Pair, Pair]:
    """S = (m - 1) / (m + 1) for m + low near 1, and its square."""
    f: Pair = (m - 1.0, m.like(0.0))
    if low is not None:
        f = two_sum(f[0], low)
    below = fast_two_sum(m.like(2.0), f[0])
    s = divide(f, (below[0], below[1] + f[1]))
    z = two_product(s[0], s[0])
    return s, z


def _log_fraction(m: Number, low: Number | None = None) -> Pair:
    """The logarithm of m + low, near 1; good to 59 bits."""
    s, (z, _) = _of_fraction(m, low)
    p = fma(z, polynomial(z, k.LOG_TAIL64), k.TWO_THIRDS[0])
    rest = fma(s[1], 2.0, s[0] * z * p)
    return s[0] * 2.0, rest


def _log_fraction_long(m: Number) -> Pair:
    """The logarithm of m, near 1: 2 s + 2/3 s**3 + s**5 (2/5 + …), good to 68 bits."""
    s, z = _of_fraction(m)
    z_low = fma(s[0] * 2.0, s[1], z[1])
    cube = two_product(s[0], z[0])
    cube_low = fma(s[1], z[0], fma(s[0], z_low, cube[1]))
    third = two_product_with(cube[0], k.TWO_THIRDS)
    third_low = fma(cube_low, k.TWO_THIRDS[0], third[1])
    fifth = two_product(cube[0], z[0])
    fifth_low = fma(cube_low, z[0], fma(cube[0], z_low, fifth[1]))
    tail = two_product_pair((fifth[0], fifth_low), _log_tail(z[0]))
    higher, higher_low = fast_two_sum(third[0], tail[0])
    high, low = fast_two_sum(s[0] * 2.0, higher)
    rest = higher_low + (third_low + tail[1])
    return fast_two_sum(high, low + fma(s[1], 2.0, rest))


def _log_tail(z: Number) -> Pair:
    """2/5 + 2/7 z + …, what the logarithm's series has left from s**5 on."""
    more = z * polynomial(z, k.LOG_TAIL64[1:])
    high, low = fast_two_sum(z.like(k.TWO_FIFTHS[0]), more)
    return high, low + k.TWO_FIFTHS[1]


def _with_exponent(e: Number, log: Pair, unit: tuple[float, float]) -> Pair:
    """E * unit + log; the product of e and the unit's first part is exact."""
    high, low = fast_two_sum(e * unit[0], log[0])
    rest = fma(e, unit[1], log[1])
    return high, low + rest


def _specials(x: Number, result: Number) -> Number:
    """Infinity, zero, and what has no logarithm."""
    result = select(equals(x, math.inf), x, result)
    result = select(equals(x, 0.0), -math.inf, result)
    return select(x.compare("fcmp ult", 0.0), math.nan, result)


def log(x: Number) -> Number:
    """The natural logarithm."""
    if x.dtype == "float32":
        e, m = _split32(x)
        return _log32(e, m - 1.0)
    e, m = _split(x)
    e = e.convert("sitofp", "float64")
    value = _with_exponent(e, _log_fraction(m), LN2_SPLIT["float64"])
    return _specials(x, total(value))


def _split32(x: Number) -> tuple[Number, Number]:
    """X = m 2**e for a float32, m from 3/4 to 3/2: the whole number e, and m.

    E is infinite for infinity and zero, and m a NaN for what has no logarithm.
    """
    if can_scale(x):
        m = get_mantissa(x)
        return get_exponent(x) - get_exponent(m), m
    tiny = x < 2.0**-126
    bits = select(tiny, x * 2.0**25, x).convert("bitcast", "int32")
    e = bits - 0x3F400000 >> 23
    m = (bits - (e << 23)).convert("bitcast", "float32")
    whole = e.convert("sitofp", "float32")
    whole = select(tiny, whole - 25.0, whole)
    whole = select(equals(x, math.inf), x, whole)
    whole = select(equals(x, 0.0), -math.inf, whole)
    lost = x.compare("fcmp ult", 0.0)
    return whole, select(lost, math.nan, m)


def _log32(e: Number, f: Number) -> Number:
    """E ln 2 + log(1 + f) in float32."""
    near = fma(f * f, _curve32(f), f)
    first, second = LN2_SPLIT["float32"]
    return fma(e, first, fma(e, second, near))


def _curve32(f: Number) -> Number:
    """(log(1 + f) - f) / f**2."""
    return fma(f, polynomial(f, k.LOG32), -0.5)


def _one_more(x: Number, low: Number | None = None) -> Pair:
    """1 + x (+ low) in float32, where x is no less than -1."""
    one = x.like(1.0)
    high = x + one
    lost = x - (high - one)
    return high, lost if low is None else lost + low


def _log_pair32(x: Pair, twice: Number | None = None) -> Number:
    """The logarithm of a pair in float32, or of its double where ``twice`` holds."""
    e, m = _split32(x[0])
    low = scaled(x[1], -e) if can_scale(m) else x[1] * (m / x[0])  # times a power of two
    if twice is not None:
        e = e + select(twice, e.like(1.0), e.like(0.0))
    return _unless_endless(e, _log32(e, low + (m - 1.0)))


def _log_either32(large: Number, x: Number, u: Pair) -> Number:
    """log(2 x) where x is large, elsewhere log(1 + u)."""
    high, low = _one_more(*u)
    known = select(large, x, high), select(large, 0.0, low)
    return _log_pair32(known, large)


def _unless_endless(e: Number, value: Number) -> Number:
    return select(equals(abs(e), math.inf), e, value)


def _log_short(x: Number) -> Number:
    """The logarithm to what a result in float32 needs, and a few bits more."""
    exponent, m = _split(x)
    e = exponent.convert("sitofp", "float64")
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = s * z * polynomial(z, k.LOG_SHORT)
    first, second = LN2_SPLIT["float64"]
    low = fma(e, second, p)
    return _specials(x, fma(e, first, fma(s, 2.0, low)))


def log2(x: Number) -> Number:
    """The logarithm to base 2."""
    single = x.dtype == "float32"
    return _to_base(x, (1.0, 0.0), k.INVERSE_LN2_SHORT if single else k.INVERSE_LN2)


def log10(x: Number) -> Number:
    """The logarithm to base 10."""
    if x.dtype == "float32":
        return _to_base(x, k.LOG10_2_SHORT, k.INVERSE_LN10_SHORT)
    return _to_base(x, k.LOG10_2, k.INVERSE_LN10)


def _to_base(x: Number, unit: tuple[float, float], factor: tuple[float, float]) -> Number:
    if x.dtype == "float32":
        return _to_base32(x, unit, factor)
    e, m = _split(x)
    high, low = _log_fraction(m)
    scaled = two_product_with(high, factor)
    log = scaled[0], fma(low, factor[0], scaled[1])
    value = _with_exponent(e.convert("sitofp", "float64"), log, unit)
    return _specials(x, total(value))


def _to_base32(x: Number, unit: tuple[float, float], factor: tuple[float, float]) -> Number:
    """E * unit + f * factor, and a sum of all that is left out or smaller."""
    e, m = _split32(x)
    f = m - 1.0
    times_f = x.like(factor[0])
    whole = e if unit[0] == 1.0 else e * unit[0]  # exact
    lead = whole + f * times_f
    low = fma(f, times_f, whole - lead)
    low = fma(f, factor[1], low)
    if unit[1]:
        low = fma(e, unit[1], low)
    square = two_product(f, f)
    low = fma(square[1], -0.5, low * (1 / factor[0]))
    rest = fma(square[0], _curve32(f), low)
    return _unless_endless(e, fma(rest, times_f, lead))


def _log_one_plus(u: Pair, large: Number | None = None) -> Number:
    """log(1 + u), or log(2 u) where ``large`` holds."""
    high, low = two_sum(u[0].like(1.0), u[0])
    low = low + u[1]
    if large is not None:
        high, low = select(large, u[0], high), select(large, 0.0, low)
    e, m = _split(high)
    back = power_of_two(0 - lesser(e, 1000), "float64")
    value = _log_fraction(m, low * back)
    if large is not None:
        e = select(large, e + 1, e)
    e = e.convert("sitofp", "float64")
    return total(_with_exponent(e, value, LN2_SPLIT["float64"]))


def log1p(x: Number) -> Number:
    """log(1 + x)."""
    if x.dtype == "float32":
        return copysign(_log_pair32(_one_more(x)), x)  # -0.0 stays
    value = _log_one_plus((x, x.like(0.0)))
    value = select(equals(x, math.inf), x, value)
    value = select(equals(x, -1.0), -math.inf, value)
    value = select(x.compare("fcmp ult", -1.0), math.nan, value)
    return keep_tiny(x, 2.0**-54, value)


def asinh(x: Number) -> Number:
    """log(x + sqrt(x**2 + 1)), as log(1 + x + x**2 / (1 + sqrt(x**2 + 1)))."""
    size = abs(x)
    if x.dtype == "float32":
        root = sqrt(fma(size, size, 1.0))
        extra = size * size / (root + 1.0)
        large = size > _LARGE_SHORT
        value = _log_either32(large, size, fast_two_sum(size, extra))
        return copysign(value, x)
    square = two_product(size, size)
    high, low = two_sum(square[0], x.like(1.0))
    root64 = square_root((high, low + square[1]))
    high, low = two_sum(root64[0], x.like(1.0))
    quotient = divide(square, (high, low + root64[1]))
    high, low = fast_two_sum(size, quotient[0])
    large = size > _LARGE
    u = select(large, size, high), low + quotient[1]
    value = copysign(_log_one_plus(u, large), x)
    value = select(equals(size, math.inf), x, value)
    return keep_tiny(x, 2.0**-28, value)


def acosh(x: Number) -> Number:
    """log(x + sqrt(x**2 - 1)), as log(1 + t + sqrt(t (t + 2))) with t = x - 1."""
    t = x - 1.0
    if x.dtype == "float32":
        root = sqrt(fma(t, t, t + t))
        root = select(x < 1.0, math.nan, root)
        return _log_either32(x > _LARGE_SHORT, x, fast_two_sum(root, t))
    high, low = two_sum(t, x.like(2.0))
    square = two_product(t, high)
    root64 = square_root((square[0], fma(t, low, square[1])))
    high, low = two_sum(t, root64[0])
    large = x > _LARGE
    value = _log_one_plus((select(large, x, high), low + root64[1]), large)
    value = select(equals(x, math.inf), x, value)
    value = select(equals(x, 1.0), 0.0, value)
    return select(x < 1.0, math.nan, value)


def atanh(x: Number) -> Number:
    """Half of log(1 + 2x / (1 - x))."""
    size = abs(x)
    single = x.dtype == "float32"
    below = (fast_two_sum if single else two_sum)(x.like(1.0), -size)
    u = divide((size + size, x.like(0.0)), below)
    if single:
        value = _log_pair32(_one_more(*u)) * 0.5
        return copysign(value, x)
    value = _log_one_plus(u) * 0.5
    value = select(equals(size, 1.0), math.inf, value)
    value = select(size > 1.0, math.nan, value)
    return keep_tiny(x, 2.0**-28, copysign(value, x))


# ---- powers ------------------------------------------------------------------------------------


def power(x: Number, y: Number) -> Number:
    """x**y with C's special cases."""
    short = x.dtype == "float32"

    def double(base: Number, exponent: Number) -> Number:
        size = abs(base)
        value = (_power_short if short else _power_long)(size, exponent)
        return _power_specials(base, exponent, value)

    return through_double(double, x, y)


def _power_short(size: Number, exponent: Number) -> Number:
    return exp_short(exponent * _log_short(size))


def _power_long(size: Number, exponent: Number) -> Number:
    """The logarithm and its product with the exponent as pairs: large powers magnify errors."""
    e, m = _split(size)
    e = e.convert("sitofp", "float64")
    high, low = _with_exponent(e, _log_fraction_long(m), LN2_SPLIT["float64"])
    high, low = fast_two_sum(high, low)
    high = _specials(size, high)
    product = two_product(exponent, high)
    rest = fma(exponent, low, product[1])
    ordinary = abs(product[0]) < 2000.0
    rest = select(ordinary, rest, 0.0)
    n, p = exp_pair(clamp(product[0], -760.0, 720.0), rest)
    return scale(total(p), n)


def _power_specials(base: Number, exponent: Number, value: Number) -> Number:
    size, one = abs(base), base.like(1.0)
    whole = exponent.compare("fcmp oeq", exponent.intrinsic("trunc"))
    half = exponent * 0.5
    odd = whole & half.compare("fcmp une", half.intrinsic("trunc"))
    value = copysign(value, select(odd, base, one))
    fraction = whole ^ True
    lost = (base < 0.0) & (size < math.inf)
    value = select(lost & fraction, math.nan, value)
    endless = equals(abs(exponent), math.inf)
    value = select(equals(size, 1.0) & endless, one, value)
    always_one = equals(exponent, 0.0) | equals(base, 1.0)
    return select(always_one, one, value)
