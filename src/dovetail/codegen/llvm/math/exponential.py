"""Exponentials and what is made of them.

Those of float32 are computed in float32, to about one unit of the last place.
"""

from __future__ import annotations

import math

from dovetail.codegen.llvm.emit import Code, Val
from dovetail.codegen.llvm.math.arithmetic import (
    MAGIC,
    Pair,
    absolute,
    add,
    at_most,
    clamp,
    divide,
    equals,
    fast_two_sum,
    fma,
    is_below,
    keep_tiny,
    lesser,
    low_bits,
    mul,
    negative,
    polynomial,
    power_of_two,
    scale,
    sub,
    total,
    two_product_with,
    two_sum,
)
from dovetail.codegen.llvm.math.coefficients import (
    COSH32,
    EXP2_32,
    EXP32,
    EXP64,
    LN2,
    SINH32,
    SINH64,
    TANH32,
)
from dovetail.codegen.llvm.math.wide import can_scale, scaled

# ln 2 in two parts: the product of the first and a small integer is exact.
LN2_SPLIT = {
    "float32": (0.693145751953125, 1.42860682030941723212e-6),
    "float64": (6.93147180369123816490e-01, 1.90821492927058770002e-10),
}
_BOUNDS = {"float32": (-110.0, 100.0), "float64": (-760.0, 720.0)}


def exp(c: Code, x: Val) -> Val:
    """e**x: x = n ln 2 + r, a polynomial in r, scaled by 2**n in two steps for denormals."""
    x = clamp(c, x, *_BOUNDS[x.dtype])
    if x.dtype == "float64":
        n, p = exp_pair(c, x)
        return scale(c, total(c, p), n)
    whole, shifted, value = _exp_fraction(c, x)
    return scaled(c, value, whole) if can_scale(c, x) else scale(c, value, low_bits(c, shifted))


def exp_normal(c: Code, x: Val) -> Val:
    """e**x of float32 where results too small for a normal number may become zero."""
    if x.dtype == "float64" or can_scale(c, x):
        return exp(c, x)
    low = c.like(-87.3, x)
    x = clamp(c, x, -87.3, 89.5)
    tiny = c.compare("fcmp ole", x, low)
    return c.select(tiny, c.like(0.0, x), _exp_to_infinity(c, x))


def _exp_to_infinity(c: Code, x: Val) -> Val:
    """e**x of float32 between -87.3 and 89.5."""
    n, shifted, p = _exp_fraction(c, x)
    if can_scale(c, x):
        return scaled(c, p, n)
    # One less in the exponent, so that the largest results do not overflow on the way.
    less = c.op("sub", low_bits(c, shifted), c.like(1, Val("", "int32", x.lanes)))
    return mul(c, add(c, p, p), power_of_two(c, less, x.dtype))


def _exp_fraction(c: Code, x: Val) -> tuple[Val, Val, Val]:
    """With x = (n + f) ln 2, for a result in float32: n, n in the low bits, and 2**f."""
    n, shifted, r = _reduced(c, x)
    p = polynomial(c, r, EXP32)
    return n, shifted, fma(c, fma(c, p, r, c.like(1.0, x)), r, c.like(1.0, x))


def _reduced(c: Code, x: Val) -> tuple[Val, Val, Val]:
    """With x = n ln 2 + r: n, n in the low bits, and r."""
    magic = c.like(MAGIC[x.dtype], x)
    shifted = fma(c, x, c.like(1 / math.log(2), x), magic)
    n = sub(c, shifted, magic)
    first, second = LN2_SPLIT[x.dtype]
    r = fma(c, n, c.like(-second, x), fma(c, n, c.like(-first, x), x))
    return n, shifted, r


def _grown_by(c: Code, shifted: Val, n: Val) -> Val:
    """2**n for a whole number that is in the low bits, too."""
    if can_scale(c, n):
        return scaled(c, c.like(1.0, n), n)
    return power_of_two(c, low_bits(c, shifted), n.dtype)


def _left_out(c: Code, x: Val, n: Val, r: Val) -> Val:
    """What the rounding of r leaves out of x - n ln 2."""
    first, second = LN2_SPLIT[x.dtype]
    return fma(c, n, c.like(-second, x), sub(c, fma(c, n, c.like(-first, x), x), r))


def exp_short(c: Code, x: Val) -> Val:
    """e**x in float64, to what a result in float32 needs."""
    _, shifted, value = _exp_fraction(c, clamp(c, x, -160.0, 160.0))
    return mul(c, value, power_of_two(c, low_bits(c, shifted), x.dtype))


# ---- float64 -----------------------------------------------------------------------------------


def _reduced_pair(c: Code, x: Val, low: Val | None = None) -> tuple[Val, Pair]:
    """With x (+ low) = n ln 2 + r: the integer n, and r."""
    magic = c.like(MAGIC[x.dtype], x)
    shifted = fma(c, x, c.like(1 / math.log(2), x), magic)
    n = sub(c, shifted, magic)
    first, second = LN2_SPLIT[x.dtype]
    lead = fma(c, n, c.like(-first, x), x)
    r = fma(c, n, c.like(-second, x), lead)
    rest = fma(c, n, c.like(-second, x), sub(c, lead, r))
    return low_bits(c, shifted), (r, rest if low is None else add(c, rest, low))


def _grown(c: Code, r: Pair) -> Val:
    """e**r - 1 - r[0] for a small r."""
    value = mul(c, mul(c, r[0], r[0]), polynomial(c, r[0], EXP64))
    slope = add(c, c.like(1.0, value), add(c, r[0], value))
    return fma(c, r[1], slope, value)


def exp_pair(c: Code, x: Val, low: Val | None = None) -> tuple[Val, Pair]:
    """e**(x + low) between -760 and 720 as an integer n and a pair p: p * 2**n."""
    n, r = _reduced_pair(c, x, low)
    high, rest = fast_two_sum(c, c.like(1.0, x), r[0])
    return n, fast_two_sum(c, high, add(c, rest, _grown(c, r)))


def _expm1_pair(c: Code, x: Val) -> tuple[Val, Pair]:
    """e**x - 1 between -40 and 720 as an integer n and a pair p: p * 2**n."""
    n, r = _reduced_pair(c, x)
    inverse = power_of_two(c, c.op("sub", c.like(0, n), lesser(c, n, 1000)), x.dtype)
    high, rest = two_sum(c, sub(c, c.like(1.0, x), inverse), r[0])
    return n, fast_two_sum(c, high, add(c, rest, _grown(c, r)))


def expm1(c: Code, x: Val) -> Val:
    """exp(x) - 1."""
    if x.dtype == "float32":
        return keep_tiny(c, x, 2.0**-25, _expm1_32(c, clamp(c, x, -20.0, 88.8)))
    n, p = _expm1_pair(c, clamp(c, x, -40.0, 720.0))
    return c.select(equals(c, x, 0.0), x, scale(c, total(c, p), n))  # -0.0 stays


def _expm1_32(c: Code, x: Val) -> Val:
    """2**n (e**r - 1) + 2**n - 1, by halves so that 2**n does not overflow before the sum.

    These may cancel each other, so r is added without its last part, and what the sum leaves out
    comes later.
    """
    n, shifted, r = _reduced(c, x)
    first, second = (c.like(-part, x) for part in LN2_SPLIT[x.dtype])
    exact = fma(c, n, first, x)
    bent = fma(c, mul(c, r, r), polynomial(c, r, EXP32), mul(c, n, second))
    half = c.like(0.5, x)
    if can_scale(c, x):
        grown = scaled(c, half, n)
    else:
        less = low_bits(c, shifted)
        grown = power_of_two(c, c.op("sub", less, c.like(1, less)), x.dtype)
    whole = sub(c, grown, half)
    lost = sub(c, sub(c, grown, whole), half)
    lead = fma(c, grown, exact, whole)
    lost = add(c, lost, fma(c, grown, exact, sub(c, whole, lead)))
    value = add(c, lead, fma(c, grown, bent, lost))
    return add(c, value, value)


def exp2(c: Code, x: Val) -> Val:
    """2**x."""
    if x.dtype == "float32":
        n, shifted, value = _exp2_fraction(c, clamp(c, x, -160.0, 140.0))
        return scaled(c, value, n) if can_scale(c, x) else scale(c, value, low_bits(c, shifted))
    x = clamp(c, x, -1080.0, 1030.0)
    magic = c.like(MAGIC[x.dtype], x)
    shifted = add(c, x, magic)
    pair = two_product_with(c, sub(c, x, sub(c, shifted, magic)), LN2)
    high, low = fast_two_sum(c, c.like(1.0, x), pair[0])
    value = add(c, high, add(c, low, _grown(c, pair)))
    return scale(c, value, low_bits(c, shifted))


def exp2_bounded(c: Code, x: Val) -> Val:
    """2**x of float32 between -120 and 120."""
    n, shifted, value = _exp2_fraction(c, x)
    if can_scale(c, x):
        return scaled(c, value, n)
    return mul(c, value, power_of_two(c, low_bits(c, shifted), x.dtype))


def _exp2_fraction(c: Code, x: Val) -> tuple[Val, Val, Val]:
    """With x = n + f, for a result in float32: n, n in the low bits, and 2**f."""
    magic = c.like(MAGIC[x.dtype], x)
    shifted = add(c, x, magic)
    n = sub(c, shifted, magic)
    f = sub(c, x, n)
    return n, shifted, fma(c, f, polynomial(c, f, EXP2_32), c.like(1.0, x))


def sigmoid(c: Code, x: Val) -> Val:
    """1 / (1 + exp(-x))."""
    if x.dtype == "float64":
        e = exp(c, negative(c, x))
    else:
        x = clamp(c, x, -89.5, 87.3)
        e = _exp_to_infinity(c, negative(c, x))
    return c.op("fdiv", c.like(1.0, x), add(c, c.like(1.0, x), e))


def tanh(c: Code, x: Val) -> Val:
    """A polynomial near zero; elsewhere 1 - 2 / (exp(2x) + 1), its last roundings made good."""
    if x.dtype == "float64":
        return _tanh64(c, x)
    size, one = absolute(c, x), c.like(1.0, x)
    z = mul(c, x, x)
    near = fma(c, mul(c, z, size), polynomial(c, z, TANH32), size)
    bounded = at_most(c, size, 20.0)
    n, shifted, r = _reduced(c, add(c, bounded, bounded))
    t = fma(c, mul(c, r, r), polynomial(c, r, EXP32), r)
    grown = _grown_by(c, shifted, n)
    below = fma(c, grown, t, add(c, grown, one))
    ratio = c.op("fdiv", c.like(2.0, x), below)
    rest = fma(c, negative(c, below), ratio, c.like(2.0, x))
    far = sub(c, one, ratio)
    low = sub(c, sub(c, one, far), ratio)
    far = add(c, far, fma(c, mul(c, rest, ratio), c.like(-0.5, x), low))
    return c.intrinsic("copysign", c.select(is_below(c, size, 0.6875), near, far), x)


def _tanh64(c: Code, x: Val) -> Val:
    """E / (E + 2), where E = exp(2 |x|) - 1."""
    bounded = at_most(c, absolute(c, x), 20.0)
    n, p = _expm1_pair(c, add(c, bounded, bounded))
    grown = power_of_two(c, n, x.dtype)
    above = mul(c, p[0], grown), mul(c, p[1], grown)
    high, low = two_sum(c, above[0], c.like(2.0, x))
    value = total(c, divide(c, above, (high, add(c, low, above[1]))))
    tiny = is_below(c, bounded, 1e-9)
    return c.intrinsic("copysign", c.select(tiny, bounded, value), x)


def _both_ways(c: Code, x: Val) -> tuple[Val, Pair, Val]:
    """e**|x| as p * 2**n, and e**-|x| in the same units."""
    n, p = exp_pair(c, at_most(c, absolute(c, x), 715.0))
    few = c.op("shl", lesser(c, n, 500), c.like(1, n))
    shrunk = power_of_two(c, c.op("sub", c.like(0, n), few), x.dtype)
    return n, p, c.op("fdiv", shrunk, p[0])


def _hyperbolic32(c: Code, x: Val, *, odd: bool) -> Val:
    """Sinh or cosh of a size: with x = n ln 2 + r, by the sum formula from those of both parts.

    Half of the result is found first, as 2**n may overflow where it does not.
    """
    x = at_most(c, x, 89.6)
    n, shifted, r = _reduced(c, x)
    low = _left_out(c, x, n, r)
    if can_scale(c, x):
        quarter = c.like(0.25, x)
        up, down = scaled(c, quarter, n), scaled(c, quarter, negative(c, n))
    else:
        whole = low_bits(c, shifted)
        less = c.op("sub", whole, c.like(2, whole))
        more = c.op("sub", c.like(-2, whole), lesser(c, whole, 124))
        up, down = power_of_two(c, less, x.dtype), power_of_two(c, more, x.dtype)
    even, slope = add(c, up, down), sub(c, up, down)  # halves of cosh and sinh of n ln 2
    z = mul(c, r, r)
    grown = mul(c, z, polynomial(c, z, COSH32))  # cosh(r) - 1
    bent = fma(c, mul(c, z, r), polynomial(c, z, SINH32), low)  # sinh(r) - r
    if odd:
        lead, slope, rest = slope, even, mul(c, slope, grown)
    else:
        lead, rest = up, fma(c, even, grown, down)
    half = add(c, lead, fma(c, slope, r, fma(c, slope, bent, rest)))
    return add(c, half, half)


def sinh(c: Code, x: Val) -> Val:
    """(exp(x) - exp(-x)) / 2, a polynomial near zero."""
    size = absolute(c, x)
    if x.dtype == "float32":
        value = keep_tiny(c, size, 2.0**-13, _hyperbolic32(c, size, odd=True))
        return c.intrinsic("copysign", value, x)
    z = mul(c, x, x)
    near = fma(c, mul(c, z, size), polynomial(c, z, SINH64), size)
    n, p, back = _both_ways(c, x)
    far = add(c, p[0], sub(c, p[1], back))
    far = scale(c, far, c.op("sub", n, c.like(1, n)))
    return c.intrinsic("copysign", c.select(is_below(c, size, 1.0), near, far), x)


def cosh(c: Code, x: Val) -> Val:
    """(exp(x) + exp(-x)) / 2."""
    if x.dtype == "float32":
        return _hyperbolic32(c, absolute(c, x), odd=False)
    n, p, back = _both_ways(c, x)
    high, low = two_sum(c, p[0], back)
    value = add(c, high, add(c, low, p[1]))
    return scale(c, value, c.op("sub", n, c.like(1, n)))
