"""Logarithms, powers, and the inverses of hyperbolic functions.

log(m 2**e) = e ln 2 + 2 atanh((m - 1) / (m + 1)), m between sqrt(1/2) and sqrt(2). Float32 has a
polynomial in m - 1 instead of the quotient, m between 3/4 and 3/2.
"""

from __future__ import annotations

import math

from dovetail.codegen.llvm.emit import Code, Val
from dovetail.codegen.llvm.math.arithmetic import (
    Pair,
    absolute,
    add,
    clamp,
    divide,
    equals,
    fast_two_sum,
    fma,
    is_above,
    is_below,
    keep_tiny,
    lesser,
    mul,
    negative,
    polynomial,
    power_of_two,
    scale,
    square_root,
    sub,
    through_double,
    times,
    total,
    two_product,
    two_product_pair,
    two_product_with,
    two_sum,
)
from dovetail.codegen.llvm.math.coefficients import (
    INVERSE_LN2,
    INVERSE_LN2_SHORT,
    INVERSE_LN10,
    INVERSE_LN10_SHORT,
    LOG10_2,
    LOG10_2_SHORT,
    LOG32,
    LOG_SHORT,
    LOG_TAIL64,
    TWO_FIFTHS,
    TWO_THIRDS,
)
from dovetail.codegen.llvm.math.exponential import LN2_SPLIT, exp_pair, exp_short
from dovetail.codegen.llvm.math.wide import can_scale, get_exponent, get_mantissa, scaled

_LEAST = 2.2250738585072014e-308  # normal
_LARGE, _LARGE_SHORT = 2.0**28, 2.0**13  # beyond it x**2 + 1 is x**2


def _split(c: Code, x: Val) -> tuple[Val, Val]:
    """X = m 2**e, x positive: the integer e, and m."""
    tiny = is_below(c, x, _LEAST)
    bits = c.convert("bitcast", c.select(tiny, times(c, x, 2.0**54), x), "int64")
    moved = c.op("sub", bits, c.like(0x3FE6A09E667F3BCD, bits))
    e = c.op("ashr", moved, c.like(52, bits))
    m = c.convert("bitcast", c.op("sub", bits, c.op("shl", e, c.like(52, bits))), "float64")
    return c.select(tiny, c.op("sub", e, c.like(54, e)), e), m


def _of_fraction(c: Code, m: Val, low: Val | None = None) -> tuple[Pair, Pair]:
    """S = (m - 1) / (m + 1) for m + low near 1, and its square."""
    f: Pair = sub(c, m, c.like(1.0, m)), c.like(0.0, m)
    if low is not None:
        f = two_sum(c, f[0], low)
    below = fast_two_sum(c, c.like(2.0, m), f[0])
    s = divide(c, f, (below[0], add(c, below[1], f[1])))
    z = two_product(c, s[0], s[0])
    return s, z


def _log_fraction(c: Code, m: Val, low: Val | None = None) -> Pair:
    """The logarithm of m + low, near 1; good to 59 bits."""
    s, (z, _) = _of_fraction(c, m, low)
    p = fma(c, z, polynomial(c, z, LOG_TAIL64), c.like(TWO_THIRDS[0], m))
    rest = fma(c, s[1], c.like(2.0, m), mul(c, mul(c, s[0], z), p))
    return times(c, s[0], 2.0), rest


def _log_fraction_long(c: Code, m: Val) -> Pair:
    """The logarithm of m, near 1: 2 s + 2/3 s**3 + s**5 (2/5 + …), good to 68 bits."""
    s, z = _of_fraction(c, m)
    z_low = fma(c, times(c, s[0], 2.0), s[1], z[1])
    cube = two_product(c, s[0], z[0])
    cube_low = fma(c, s[1], z[0], fma(c, s[0], z_low, cube[1]))
    third = two_product_with(c, cube[0], TWO_THIRDS)
    third_low = fma(c, cube_low, c.like(TWO_THIRDS[0], m), third[1])
    fifth = two_product(c, cube[0], z[0])
    fifth_low = fma(c, cube_low, z[0], fma(c, cube[0], z_low, fifth[1]))
    tail = two_product_pair(c, (fifth[0], fifth_low), _log_tail(c, z[0]))
    higher, higher_low = fast_two_sum(c, third[0], tail[0])
    high, low = fast_two_sum(c, times(c, s[0], 2.0), higher)
    rest = add(c, higher_low, add(c, third_low, tail[1]))
    return fast_two_sum(c, high, add(c, low, fma(c, s[1], c.like(2.0, m), rest)))


def _log_tail(c: Code, z: Val) -> Pair:
    """2/5 + 2/7 z + …, what the logarithm's series has left from s**5 on."""
    more = mul(c, z, polynomial(c, z, LOG_TAIL64[1:]))
    high, low = fast_two_sum(c, c.like(TWO_FIFTHS[0], z), more)
    return high, add(c, low, c.like(TWO_FIFTHS[1], z))


def _with_exponent(c: Code, e: Val, log: Pair, unit: tuple[float, float]) -> Pair:
    """E * unit + log; the product of e and the unit's first part is exact."""
    high, low = fast_two_sum(c, mul(c, e, c.like(unit[0], e)), log[0])
    rest = fma(c, e, c.like(unit[1], e), log[1])
    return high, add(c, low, rest)


def _specials(c: Code, x: Val, result: Val) -> Val:
    """Infinity, zero, and what has no logarithm."""
    result = c.select(equals(c, x, math.inf), x, result)
    result = c.select(equals(c, x, 0.0), c.like(-math.inf, x), result)
    return c.select(c.compare("fcmp ult", x, c.like(0.0, x)), c.like(math.nan, x), result)


def log(c: Code, x: Val) -> Val:
    """The natural logarithm."""
    if x.dtype == "float32":
        e, m = _split32(c, x)
        return _log32(c, e, sub(c, m, c.like(1.0, x)))
    e, m = _split(c, x)
    e = c.convert("sitofp", e, "float64")
    value = _with_exponent(c, e, _log_fraction(c, m), LN2_SPLIT["float64"])
    return _specials(c, x, total(c, value))


def _split32(c: Code, x: Val) -> tuple[Val, Val]:
    """X = m 2**e for a float32, m from 3/4 to 3/2: the whole number e, and m.

    E is infinite for infinity and zero, and m a NaN for what has no logarithm.
    """
    if can_scale(c, x):
        m = get_mantissa(c, x)
        return sub(c, get_exponent(c, x), get_exponent(c, m)), m
    tiny = is_below(c, x, 2.0**-126)
    bits = c.convert("bitcast", c.select(tiny, times(c, x, 2.0**25), x), "int32")
    e = c.op("ashr", c.op("sub", bits, c.like(0x3F400000, bits)), c.like(23, bits))
    m = c.convert("bitcast", c.op("sub", bits, c.op("shl", e, c.like(23, bits))), "float32")
    whole = c.convert("sitofp", e, "float32")
    whole = c.select(tiny, sub(c, whole, c.like(25.0, x)), whole)
    whole = c.select(equals(c, x, math.inf), x, whole)
    whole = c.select(equals(c, x, 0.0), c.like(-math.inf, x), whole)
    lost = c.compare("fcmp ult", x, c.like(0.0, x))
    return whole, c.select(lost, c.like(math.nan, x), m)


def _log32(c: Code, e: Val, f: Val) -> Val:
    """E ln 2 + log(1 + f) in float32."""
    near = fma(c, mul(c, f, f), _curve32(c, f), f)
    first, second = LN2_SPLIT["float32"]
    return fma(c, e, c.like(first, f), fma(c, e, c.like(second, f), near))


def _curve32(c: Code, f: Val) -> Val:
    """(log(1 + f) - f) / f**2."""
    return fma(c, f, polynomial(c, f, LOG32), c.like(-0.5, f))


def _one_more(c: Code, x: Val, low: Val | None = None) -> Pair:
    """1 + x (+ low) in float32, where x is no less than -1."""
    one = c.like(1.0, x)
    high = add(c, x, one)
    lost = sub(c, x, sub(c, high, one))
    return high, lost if low is None else add(c, lost, low)


def _log_pair32(c: Code, x: Pair, twice: Val | None = None) -> Val:
    """The logarithm of a pair in float32, or of its double where ``twice`` holds."""
    e, m = _split32(c, x[0])
    if can_scale(c, m):
        low = scaled(c, x[1], negative(c, e))
    else:
        low = mul(c, x[1], c.op("fdiv", m, x[0]))  # a power of two
    if twice is not None:
        e = add(c, e, c.select(twice, c.like(1.0, e), c.like(0.0, e)))
    return _unless_endless(c, e, _log32(c, e, add(c, low, sub(c, m, c.like(1.0, m)))))


def _log_either32(c: Code, large: Val, x: Val, u: Pair) -> Val:
    """log(2 x) where x is large, elsewhere log(1 + u)."""
    high, low = _one_more(c, *u)
    known = c.select(large, x, high), c.select(large, c.like(0.0, x), low)
    return _log_pair32(c, known, large)


def _unless_endless(c: Code, e: Val, value: Val) -> Val:
    return c.select(equals(c, absolute(c, e), math.inf), e, value)


def _log_short(c: Code, x: Val) -> Val:
    """The logarithm to what a result in float32 needs, and a few bits more."""
    exponent, m = _split(c, x)
    e = c.convert("sitofp", exponent, "float64")
    s = c.op("fdiv", sub(c, m, c.like(1.0, x)), add(c, m, c.like(1.0, x)))
    z = mul(c, s, s)
    p = mul(c, mul(c, s, z), polynomial(c, z, LOG_SHORT))
    first, second = LN2_SPLIT["float64"]
    low = fma(c, e, c.like(second, x), p)
    return _specials(c, x, fma(c, e, c.like(first, x), fma(c, s, c.like(2.0, x), low)))


def log2(c: Code, x: Val) -> Val:
    """The logarithm to base 2."""
    single = x.dtype == "float32"
    return _to_base(c, x, (1.0, 0.0), INVERSE_LN2_SHORT if single else INVERSE_LN2)


def log10(c: Code, x: Val) -> Val:
    """The logarithm to base 10."""
    if x.dtype == "float32":
        return _to_base(c, x, LOG10_2_SHORT, INVERSE_LN10_SHORT)
    return _to_base(c, x, LOG10_2, INVERSE_LN10)


def _to_base(c: Code, x: Val, unit: tuple[float, float], factor: tuple[float, float]) -> Val:
    if x.dtype == "float32":
        return _to_base32(c, x, unit, factor)
    e, m = _split(c, x)
    high, low = _log_fraction(c, m)
    scaled = two_product_with(c, high, factor)
    log = scaled[0], fma(c, low, c.like(factor[0], x), scaled[1])
    value = _with_exponent(c, c.convert("sitofp", e, "float64"), log, unit)
    return _specials(c, x, total(c, value))


def _to_base32(c: Code, x: Val, unit: tuple[float, float], factor: tuple[float, float]) -> Val:
    """E * unit + f * factor, and a sum of all that is left out or smaller."""
    e, m = _split32(c, x)
    f = sub(c, m, c.like(1.0, x))
    times_f = c.like(factor[0], x)
    whole = e if unit[0] == 1.0 else times(c, e, unit[0])  # exact
    lead = add(c, whole, mul(c, f, times_f))
    low = fma(c, f, times_f, sub(c, whole, lead))
    low = fma(c, f, c.like(factor[1], x), low)
    if unit[1]:
        low = fma(c, e, c.like(unit[1], x), low)
    square = two_product(c, f, f)
    low = fma(c, square[1], c.like(-0.5, x), times(c, low, 1 / factor[0]))
    rest = fma(c, square[0], _curve32(c, f), low)
    return _unless_endless(c, e, fma(c, rest, times_f, lead))


def _log_one_plus(c: Code, u: Pair, large: Val | None = None) -> Val:
    """log(1 + u), or log(2 u) where ``large`` holds."""
    high, low = two_sum(c, c.like(1.0, u[0]), u[0])
    low = add(c, low, u[1])
    if large is not None:
        high, low = c.select(large, u[0], high), c.select(large, c.like(0.0, low), low)
    e, m = _split(c, high)
    back = power_of_two(c, c.op("sub", c.like(0, e), lesser(c, e, 1000)), "float64")
    value = _log_fraction(c, m, mul(c, low, back))
    if large is not None:
        e = c.select(large, c.op("add", e, c.like(1, e)), e)
    e = c.convert("sitofp", e, "float64")
    return total(c, _with_exponent(c, e, value, LN2_SPLIT["float64"]))


def log1p(c: Code, x: Val) -> Val:
    """log(1 + x)."""
    if x.dtype == "float32":
        return c.intrinsic("copysign", _log_pair32(c, _one_more(c, x)), x)  # -0.0 stays
    value = _log_one_plus(c, (x, c.like(0.0, x)))
    value = c.select(equals(c, x, math.inf), x, value)
    value = c.select(equals(c, x, -1.0), c.like(-math.inf, x), value)
    value = c.select(c.compare("fcmp ult", x, c.like(-1.0, x)), c.like(math.nan, x), value)
    return keep_tiny(c, x, 2.0**-54, value)


def asinh(c: Code, x: Val) -> Val:
    """log(x + sqrt(x**2 + 1)), as log(1 + x + x**2 / (1 + sqrt(x**2 + 1)))."""
    size = absolute(c, x)
    if x.dtype == "float32":
        root = c.intrinsic("sqrt", fma(c, size, size, c.like(1.0, x)))
        extra = c.op("fdiv", mul(c, size, size), add(c, root, c.like(1.0, x)))
        large = is_above(c, size, _LARGE_SHORT)
        value = _log_either32(c, large, size, fast_two_sum(c, size, extra))
        return c.intrinsic("copysign", value, x)
    square = two_product(c, size, size)
    high, low = two_sum(c, square[0], c.like(1.0, x))
    root64 = square_root(c, (high, add(c, low, square[1])))
    high, low = two_sum(c, root64[0], c.like(1.0, x))
    quotient = divide(c, square, (high, add(c, low, root64[1])))
    high, low = fast_two_sum(c, size, quotient[0])
    large = is_above(c, size, _LARGE)
    u = c.select(large, size, high), add(c, low, quotient[1])
    value = c.intrinsic("copysign", _log_one_plus(c, u, large), x)
    value = c.select(equals(c, size, math.inf), x, value)
    return keep_tiny(c, x, 2.0**-28, value)


def acosh(c: Code, x: Val) -> Val:
    """log(x + sqrt(x**2 - 1)), as log(1 + t + sqrt(t (t + 2))) with t = x - 1."""
    t = sub(c, x, c.like(1.0, x))
    if x.dtype == "float32":
        root = c.intrinsic("sqrt", fma(c, t, t, add(c, t, t)))
        root = c.select(is_below(c, x, 1.0), c.like(math.nan, x), root)
        return _log_either32(c, is_above(c, x, _LARGE_SHORT), x, fast_two_sum(c, root, t))
    high, low = two_sum(c, t, c.like(2.0, x))
    square = two_product(c, t, high)
    root64 = square_root(c, (square[0], fma(c, t, low, square[1])))
    high, low = two_sum(c, t, root64[0])
    large = is_above(c, x, _LARGE)
    value = _log_one_plus(c, (c.select(large, x, high), add(c, low, root64[1])), large)
    value = c.select(equals(c, x, math.inf), x, value)
    value = c.select(equals(c, x, 1.0), c.like(0.0, x), value)
    return c.select(is_below(c, x, 1.0), c.like(math.nan, x), value)


def atanh(c: Code, x: Val) -> Val:
    """Half of log(1 + 2x / (1 - x))."""
    size = absolute(c, x)
    single = x.dtype == "float32"
    below = (fast_two_sum if single else two_sum)(c, c.like(1.0, x), negative(c, size))
    u = divide(c, (add(c, size, size), c.like(0.0, x)), below)
    if single:
        value = times(c, _log_pair32(c, _one_more(c, *u)), 0.5)
        return c.intrinsic("copysign", value, x)
    value = times(c, _log_one_plus(c, u), 0.5)
    value = c.select(equals(c, size, 1.0), c.like(math.inf, x), value)
    value = c.select(is_above(c, size, 1.0), c.like(math.nan, x), value)
    return keep_tiny(c, x, 2.0**-28, c.intrinsic("copysign", value, x))


# ---- powers ------------------------------------------------------------------------------------


def power(c: Code, x: Val, y: Val) -> Val:
    """x**y with C's special cases."""
    short = x.dtype == "float32"

    def double(c: Code, base: Val, exponent: Val) -> Val:
        size = absolute(c, base)
        value = (_power_short if short else _power_long)(c, size, exponent)
        return _power_specials(c, base, exponent, value)

    return through_double(c, double, x, y)


def _power_short(c: Code, size: Val, exponent: Val) -> Val:
    return exp_short(c, mul(c, exponent, _log_short(c, size)))


def _power_long(c: Code, size: Val, exponent: Val) -> Val:
    """The logarithm and its product with the exponent as pairs: large powers magnify errors."""
    e, m = _split(c, size)
    e = c.convert("sitofp", e, "float64")
    high, low = _with_exponent(c, e, _log_fraction_long(c, m), LN2_SPLIT["float64"])
    high, low = fast_two_sum(c, high, low)
    high = _specials(c, size, high)
    product = two_product(c, exponent, high)
    rest = fma(c, exponent, low, product[1])
    ordinary = is_below(c, absolute(c, product[0]), 2000.0)
    rest = c.select(ordinary, rest, c.like(0.0, rest))
    n, p = exp_pair(c, clamp(c, product[0], -760.0, 720.0), rest)
    return scale(c, total(c, p), n)


def _power_specials(c: Code, base: Val, exponent: Val, value: Val) -> Val:
    size, one = absolute(c, base), c.like(1.0, base)
    whole = c.compare("fcmp oeq", exponent, c.intrinsic("trunc", exponent))
    half = times(c, exponent, 0.5)
    odd = c.op("and", whole, c.compare("fcmp une", half, c.intrinsic("trunc", half)))
    value = c.intrinsic("copysign", value, c.select(odd, base, one))
    fraction = c.op("xor", whole, c.like(True, whole))
    lost = c.op("and", is_below(c, base, 0.0), is_below(c, size, math.inf))
    value = c.select(c.op("and", lost, fraction), c.like(math.nan, base), value)
    endless = equals(c, absolute(c, exponent), math.inf)
    value = c.select(c.op("and", equals(c, size, 1.0), endless), one, value)
    always_one = c.op("or", equals(c, exponent, 0.0), equals(c, base, 1.0))
    return c.select(always_one, one, value)
