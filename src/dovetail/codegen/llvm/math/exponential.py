"""Exponentials and what is made of them.

Those of float32 are computed in float32, to about one unit of the last place.
"""

from __future__ import annotations

import math

from dovetail.codegen.llvm.math import coefficients as k
from dovetail.codegen.llvm.math.arithmetic import (
    MAGIC,
    Pair,
    at_most,
    clamp,
    divide,
    fast_two_sum,
    keep_tiny,
    lesser,
    low_bits,
    polynomial,
    power_of_two,
    scale,
    total,
    two_product_with,
    two_sum,
)
from dovetail.codegen.llvm.math.number import Number, copysign, equals, fma, select
from dovetail.codegen.llvm.math.wide import can_scale, scaled

# ln 2 in two parts: the product of the first and a small integer is exact.
LN2_SPLIT = {
    "float32": (0.693145751953125, 1.42860682030941723212e-6),
    "float64": (6.93147180369123816490e-01, 1.90821492927058770002e-10),
}
_BOUNDS = {"float32": (-110.0, 100.0), "float64": (-760.0, 720.0)}


def exp(x: Number) -> Number:
    """e**x: x = n ln 2 + r, a polynomial in r, scaled by 2**n in two steps for denormals."""
    x = clamp(x, *_BOUNDS[x.dtype])
    if x.dtype == "float64":
        n, p = exp_pair(x)
        return scale(total(p), n)
    whole, shifted, value = _exp_fraction(x)
    return scaled(value, whole) if can_scale(x) else scale(value, low_bits(shifted))


def exp_normal(x: Number) -> Number:
    """e**x of float32 where results too small for a normal number may become zero."""
    if x.dtype == "float64" or can_scale(x):
        return exp(x)
    low = x.like(-87.3)
    x = clamp(x, -87.3, 89.5)
    tiny = x <= low
    return select(tiny, 0.0, _exp_to_infinity(x))


def _exp_to_infinity(x: Number) -> Number:
    """e**x of float32 between -87.3 and 89.5."""
    n, shifted, p = _exp_fraction(x)
    if can_scale(x):
        return scaled(p, n)
    # One less in the exponent, so that the largest results do not overflow on the way.
    less = low_bits(shifted) - 1
    return (p + p) * power_of_two(less, x.dtype)


def _exp_fraction(x: Number) -> tuple[Number, Number, Number]:
    """With x = (n + f) ln 2, for a result in float32: n, n in the low bits, and 2**f."""
    n, shifted, r = _reduced(x)
    p = polynomial(r, k.EXP32)
    return n, shifted, fma(fma(p, r, 1.0), r, 1.0)


def _reduced(x: Number) -> tuple[Number, Number, Number]:
    """With x = n ln 2 + r: n, n in the low bits, and r."""
    magic = x.like(MAGIC[x.dtype])
    shifted = fma(x, 1 / math.log(2), magic)
    n = shifted - magic
    first, second = LN2_SPLIT[x.dtype]
    r = fma(n, -second, fma(n, -first, x))
    return n, shifted, r


def _grown_by(shifted: Number, n: Number) -> Number:
    """2**n for a whole number that is in the low bits, too."""
    if can_scale(n):
        return scaled(n.like(1.0), n)
    return power_of_two(low_bits(shifted), n.dtype)


def _left_out(x: Number, n: Number, r: Number) -> Number:
    """What the rounding of r leaves out of x - n ln 2."""
    first, second = LN2_SPLIT[x.dtype]
    return fma(n, -second, fma(n, -first, x) - r)


def exp_short(x: Number) -> Number:
    """e**x in float64, to what a result in float32 needs."""
    _, shifted, value = _exp_fraction(clamp(x, -160.0, 160.0))
    return value * power_of_two(low_bits(shifted), x.dtype)


# ---- float64 -----------------------------------------------------------------------------------


def _reduced_pair(x: Number, low: Number | None = None) -> tuple[Number, Pair]:
    """With x (+ low) = n ln 2 + r: the integer n, and r."""
    magic = x.like(MAGIC[x.dtype])
    shifted = fma(x, 1 / math.log(2), magic)
    n = shifted - magic
    first, second = LN2_SPLIT[x.dtype]
    lead = fma(n, -first, x)
    r = fma(n, -second, lead)
    rest = fma(n, -second, lead - r)
    return low_bits(shifted), (r, rest if low is None else rest + low)


def _grown(r: Pair) -> Number:
    """e**r - 1 - r[0] for a small r."""
    value = r[0] * r[0] * polynomial(r[0], k.EXP64)
    slope = 1.0 + (r[0] + value)
    return fma(r[1], slope, value)


def exp_pair(x: Number, low: Number | None = None) -> tuple[Number, Pair]:
    """e**(x + low) between -760 and 720 as an integer n and a pair p: p * 2**n."""
    n, r = _reduced_pair(x, low)
    high, rest = fast_two_sum(x.like(1.0), r[0])
    return n, fast_two_sum(high, rest + _grown(r))


def _expm1_pair(x: Number) -> tuple[Number, Pair]:
    """e**x - 1 between -40 and 720 as an integer n and a pair p: p * 2**n."""
    n, r = _reduced_pair(x)
    inverse = power_of_two(0 - lesser(n, 1000), x.dtype)
    high, rest = two_sum(1.0 - inverse, r[0])
    return n, fast_two_sum(high, rest + _grown(r))


def expm1(x: Number) -> Number:
    """exp(x) - 1."""
    if x.dtype == "float32":
        return keep_tiny(x, 2.0**-25, _expm1_32(clamp(x, -20.0, 88.8)))
    n, p = _expm1_pair(clamp(x, -40.0, 720.0))
    return select(equals(x, 0.0), x, scale(total(p), n))  # -0.0 stays


def _expm1_32(x: Number) -> Number:
    """2**n (e**r - 1) + 2**n - 1, by halves so that 2**n does not overflow before the sum.

    These may cancel each other, so r is added without its last part, and what the sum leaves out
    comes later.
    """
    n, shifted, r = _reduced(x)
    first, second = (x.like(-part) for part in LN2_SPLIT[x.dtype])
    exact = fma(n, first, x)
    bent = fma(r * r, polynomial(r, k.EXP32), n * second)
    half = x.like(0.5)
    if can_scale(x):
        grown = scaled(half, n)
    else:
        less = low_bits(shifted)
        grown = power_of_two(less - 1, x.dtype)
    whole = grown - half
    lost = grown - whole - half
    lead = fma(grown, exact, whole)
    lost = lost + fma(grown, exact, whole - lead)
    value = lead + fma(grown, bent, lost)
    return value + value


def exp2(x: Number) -> Number:
    """2**x."""
    if x.dtype == "float32":
        n, shifted, value = _exp2_fraction(clamp(x, -160.0, 140.0))
        return scaled(value, n) if can_scale(x) else scale(value, low_bits(shifted))
    x = clamp(x, -1080.0, 1030.0)
    magic = x.like(MAGIC[x.dtype])
    shifted = x + magic
    pair = two_product_with(x - (shifted - magic), k.LN2)
    high, low = fast_two_sum(x.like(1.0), pair[0])
    value = high + (low + _grown(pair))
    return scale(value, low_bits(shifted))


def exp2_bounded(x: Number) -> Number:
    """2**x of float32 between -120 and 120."""
    n, shifted, value = _exp2_fraction(x)
    if can_scale(x):
        return scaled(value, n)
    return value * power_of_two(low_bits(shifted), x.dtype)


def _exp2_fraction(x: Number) -> tuple[Number, Number, Number]:
    """With x = n + f, for a result in float32: n, n in the low bits, and 2**f."""
    magic = x.like(MAGIC[x.dtype])
    shifted = x + magic
    n = shifted - magic
    f = x - n
    return n, shifted, fma(f, polynomial(f, k.EXP2_32), 1.0)


def sigmoid(x: Number) -> Number:
    """1 / (1 + exp(-x))."""
    if x.dtype == "float64":
        e = exp(-x)
    else:
        x = clamp(x, -89.5, 87.3)
        e = _exp_to_infinity(-x)
    return 1.0 / (1.0 + e)


def tanh(x: Number) -> Number:
    """A polynomial near zero; elsewhere 1 - 2 / (exp(2x) + 1), its last roundings made good."""
    if x.dtype == "float64":
        return _tanh64(x)
    size, one = abs(x), x.like(1.0)
    z = x * x
    near = fma(z * size, polynomial(z, k.TANH32), size)
    bounded = at_most(size, 20.0)
    n, shifted, r = _reduced(bounded + bounded)
    t = fma(r * r, polynomial(r, k.EXP32), r)
    grown = _grown_by(shifted, n)
    below = fma(grown, t, grown + one)
    ratio = 2.0 / below
    rest = fma(-below, ratio, 2.0)
    far = one - ratio
    low = one - far - ratio
    far = far + fma(rest * ratio, -0.5, low)
    return copysign(select(size < 0.6875, near, far), x)


def _tanh64(x: Number) -> Number:
    """E / (E + 2), where E = exp(2 |x|) - 1."""
    bounded = at_most(abs(x), 20.0)
    n, p = _expm1_pair(bounded + bounded)
    grown = power_of_two(n, x.dtype)
    above = p[0] * grown, p[1] * grown
    high, low = two_sum(above[0], x.like(2.0))
    value = total(divide(above, (high, low + above[1])))
    tiny = bounded < 1e-9
    return copysign(select(tiny, bounded, value), x)


def _both_ways(x: Number) -> tuple[Number, Pair, Number]:
    """e**|x| as p * 2**n, and e**-|x| in the same units."""
    n, p = exp_pair(at_most(abs(x), 715.0))
    few = lesser(n, 500) << 1
    shrunk = power_of_two(0 - few, x.dtype)
    return n, p, shrunk / p[0]


def _hyperbolic32(x: Number, *, odd: bool) -> Number:
    """Sinh or cosh of a size: with x = n ln 2 + r, by the sum formula from those of both parts.

    Half of the result is found first, as 2**n may overflow where it does not.
    """
    x = at_most(x, 89.6)
    n, shifted, r = _reduced(x)
    low = _left_out(x, n, r)
    if can_scale(x):
        quarter = x.like(0.25)
        up, down = scaled(quarter, n), scaled(quarter, -n)
    else:
        whole = low_bits(shifted)
        less = whole - 2
        more = -2 - lesser(whole, 124)
        up, down = power_of_two(less, x.dtype), power_of_two(more, x.dtype)
    even, slope = up + down, up - down  # halves of cosh and sinh of n ln 2
    z = r * r
    grown = z * polynomial(z, k.COSH32)  # cosh(r) - 1
    bent = fma(z * r, polynomial(z, k.SINH32), low)  # sinh(r) - r
    if odd:
        lead, slope, rest = slope, even, slope * grown
    else:
        lead, rest = up, fma(even, grown, down)
    half = lead + fma(slope, r, fma(slope, bent, rest))
    return half + half


def sinh(x: Number) -> Number:
    """(exp(x) - exp(-x)) / 2, a polynomial near zero."""
    size = abs(x)
    if x.dtype == "float32":
        value = keep_tiny(size, 2.0**-13, _hyperbolic32(size, odd=True))
        return copysign(value, x)
    z = x * x
    near = fma(z * size, polynomial(z, k.SINH64), size)
    n, p, back = _both_ways(x)
    far = p[0] + (p[1] - back)
    far = scale(far, n - 1)
    return copysign(select(size < 1.0, near, far), x)


def cosh(x: Number) -> Number:
    """(exp(x) + exp(-x)) / 2."""
    if x.dtype == "float32":
        return _hyperbolic32(abs(x), odd=False)
    n, p, back = _both_ways(x)
    high, low = two_sum(p[0], back)
    value = high + (low + p[1])
    return scale(value, n - 1)
