"""The inverses of sine, cosine and tangent."""

from __future__ import annotations

import math

from dovetail.codegen.llvm.emit import Code, Val
from dovetail.codegen.llvm.math.arithmetic import (
    Pair,
    absolute,
    add,
    at_most,
    cube,
    divide,
    equals,
    fast_two_sum,
    fma,
    is_above,
    is_below,
    mul,
    negative,
    polynomial,
    sub,
    times,
    total,
    two_sum,
)
from dovetail.codegen.llvm.math.coefficients import (
    ASIN32,
    ASIN64,
    ATAN32,
    ATAN64,
    HALF_PI,
    HALF_PI_SHORT,
)

_LOW, _HIGH = math.sqrt(2) - 1, math.sqrt(2) + 1  # tan(pi/8), tan(3 pi/8)


def _angle(c: Code, above: Pair, below: Pair, base: Pair) -> Val:
    """Base + atan(above / below), the quotient at most tan(pi/8) in size."""
    t, t_low = divide(c, above, below)
    z = mul(c, t, t)
    rest = add(c, base[1], fma(c, mul(c, t, z), polynomial(c, z, ATAN64), t_low))
    high, low = two_sum(c, base[0], t)
    return add(c, high, add(c, low, rest))


def _quarters(c: Code, like: Val, count: int) -> Pair:
    """Count * pi/4, for 0 to 4."""
    if count == 3:
        high, low = 2.356194490192345, 9.1848509936051484e-17
    else:
        high, low = HALF_PI[0] * count / 2, HALF_PI[1] * count / 2
    return c.like(high, like), c.like(low, like)


def _choose(c: Code, mask: Val, yes: Pair, no: Pair) -> Pair:
    return c.select(mask, yes[0], no[0]), c.select(mask, yes[1], no[1])


def _parts(c: Code, y: Val, x: Val) -> tuple[Val, Val, Pair, Pair]:
    """For y / x, both positive: whether it is small, or large, and a quotient near zero for it.

    atan(y / x) is atan(y / x), pi/4 + atan((y - x) / (y + x)) or pi/2 - atan(x / y).
    """
    zero = c.like(0.0, y)
    small = c.compare("fcmp olt", y, times(c, x, _LOW))
    large = c.compare("fcmp ogt", y, times(c, x, _HIGH))
    above, below = two_sum(c, y, negative(c, x)), two_sum(c, y, x)
    above = _choose(c, small, (y, zero), _choose(c, large, (negative(c, x), zero), above))
    below = _choose(c, small, (x, zero), _choose(c, large, (y, zero), below))
    return small, large, above, below


def _from_base(c: Code, base: Val, s: Val, rest: Val) -> Val:
    """Base + s + rest in float32, where a base that is not zero is larger than s."""
    high = add(c, base, s)
    low = sub(c, s, sub(c, high, base))
    return add(c, high, add(c, low, rest))


def _atan_from(c: Code, base: Pair, t: Val, low: Val) -> Val:
    """Base + atan(t + low) in float32 for a t of at most 1 in size."""
    z, cubed, lost = cube(c, t)
    p = polynomial(c, z, ATAN32)
    slope = fma(c, z, c.like(-0.5, z), c.like(1.0, z))  # about 1 / (1 + z)
    rest = fma(c, lost, p, fma(c, low, slope, base[1]))
    return _from_base(c, base[0], t, fma(c, cubed, p, rest))


def _base32(c: Code, like: Val, quarters: int) -> Pair:
    """So many quarter turns in float32."""
    return c.like(HALF_PI_SHORT[0] * quarters, like), c.like(HALF_PI_SHORT[1] * quarters, like)


def _atan32(c: Code, x: Val) -> Val:
    """A polynomial, of the negative reciprocal beyond 1: pi/2 is added then."""
    size = at_most(c, absolute(c, x), 2.0**60)
    large = is_above(c, size, 1.0)
    inverse = c.op("fdiv", c.like(-1.0, x), size)
    lost = mul(c, fma(c, inverse, size, c.like(1.0, x)), inverse)
    t, low = _choose(c, large, (inverse, lost), (size, c.like(0.0, x)))
    base = _choose(c, large, _base32(c, x, 1), _base32(c, x, 0))
    return c.intrinsic("copysign", _atan_from(c, base, t, low), x)


def atan(c: Code, x: Val) -> Val:
    """The angle between -pi/2 and pi/2."""
    if x.dtype == "float32":
        return _atan32(c, x)
    size = at_most(c, absolute(c, x), 2.0**60)
    small, large, above, below = _parts(c, size, c.like(1.0, x))
    base = _choose(c, large, _quarters(c, x, 2), _quarters(c, x, 1))
    base = _choose(c, small, _quarters(c, x, 0), base)
    return c.intrinsic("copysign", _angle(c, above, below, base), x)


def _bounded(c: Code, y: Val, x: Val) -> tuple[Val, Val]:
    """Two sizes in the same ratio, far from the ends of the range, 0 / 0 as 0 / 1."""
    y_endless, x_endless = equals(c, y, math.inf), equals(c, x, math.inf)
    zero, one = c.like(0.0, y), c.like(1.0, y)
    new_y = c.select(y_endless, one, c.select(x_endless, zero, y))
    new_x = c.select(x_endless, one, c.select(y_endless, zero, x))
    most = c.select(c.compare("fcmp ogt", new_y, new_x), new_y, new_x)
    factor = c.select(is_above(c, most, 2.0**900), c.like(2.0**-100, y), one)
    factor = c.select(is_below(c, most, 2.0**-700), c.like(2.0**300, y), factor)
    new_x = c.select(equals(c, most, 0.0), one, new_x)
    return mul(c, new_y, factor), mul(c, new_x, factor)


def atan2(c: Code, y: Val, x: Val) -> Val:
    """The angle of the point (x, y)."""
    y, x = c.alike(y, x)
    behind = is_below(c, c.intrinsic("copysign", c.like(1.0, x), x), 0.0)
    of_sizes = _atan2_32 if x.dtype == "float32" else _atan2_64
    value = c.intrinsic("copysign", of_sizes(c, absolute(c, y), absolute(c, x), behind), y)
    return c.select(c.compare("fcmp uno", y, x), c.like(math.nan, x), value)


def _atan2_64(c: Code, y: Val, x: Val, behind: Val) -> Val:
    up, along = _bounded(c, y, x)
    small, large, above, below = _parts(c, up, along)
    flipped = negative(c, above[0]), negative(c, above[1])
    above = _choose(c, behind, flipped, above)
    quarters = [_quarters(c, x, n) for n in range(5)]
    ends = _choose(c, behind, quarters[4], quarters[0])
    middle = _choose(c, behind, quarters[3], quarters[1])
    base = _choose(c, small, ends, _choose(c, large, quarters[2], middle))
    return _angle(c, above, below, base)


def _atan2_32(c: Code, y: Val, x: Val, behind: Val) -> Val:
    """The lesser size over the greater is at most 1; two that are alike are zeros or infinite."""
    steep = c.compare("fcmp ogt", y, x)
    least, most = c.select(steep, x, y), c.select(steep, y, x)
    t = c.op("fdiv", least, most)
    alike = c.compare("fcmp oeq", least, most)
    t = c.select(alike, c.select(equals(c, most, 0.0), most, c.like(1.0, x)), t)
    t = c.select(c.op("xor", steep, behind), negative(c, t), t)
    ends = _choose(c, behind, _base32(c, x, 2), _base32(c, x, 0))
    base = _choose(c, steep, _base32(c, x, 1), ends)
    return _atan_from(c, base, t, c.like(0.0, x))


def _half_angle(c: Code, x: Val) -> tuple[Val, Val, Val]:
    """For asin and acos: whether |x| is at most 1/2, s and the rest of asin(s).

    S is |x|, or sqrt((1 - |x|) / 2), whose double is the angle to the end of the range.
    """
    size = absolute(c, x)
    small = c.compare("fcmp ole", size, c.like(0.5, x))
    left = times(c, sub(c, c.like(1.0, x), size), 0.5)
    left = c.select(is_below(c, left, 1e-300), c.like(1e-300, x), left)
    root = c.intrinsic("sqrt", left)
    lost = c.op("fdiv", times(c, fma(c, negative(c, root), root, left), 0.5), root)
    z = c.select(small, mul(c, x, x), left)
    s = c.select(small, size, root)
    low = c.select(small, c.like(0.0, x), lost)
    return small, s, fma(c, mul(c, s, z), polynomial(c, z, ASIN64), low)


def _outside(c: Code, x: Val, result: Val) -> Val:
    outside = c.compare("fcmp ugt", absolute(c, x), c.like(1.0, x))
    return c.select(outside, c.like(math.nan, x), result)


def _base_less(c: Code, base: Pair, s: Val, rest: Val) -> Val:
    """Base - (s + rest)."""
    high, low = fast_two_sum(c, base[0], negative(c, s))
    return add(c, high, add(c, low, sub(c, base[1], rest)))


def _half_angle32(c: Code, x: Val) -> tuple[Val, Val, Val]:
    """The same for float32: whether |x| is at most 1/2, twice the root, and the square of s."""
    size = absolute(c, x)
    small = c.compare("fcmp ole", size, c.like(0.5, x))
    left = fma(c, size, c.like(-0.5, x), c.like(0.5, x))  # exact where it is used
    root = c.intrinsic("sqrt", left)
    return small, add(c, root, root), c.select(small, mul(c, x, x), left)


def _asin_from(c: Code, base: Pair, s: Val, z: Val) -> Val:
    rest = fma(c, mul(c, s, z), polynomial(c, z, ASIN32), base[1])
    return _from_base(c, base[0], s, rest)


def _asin32(c: Code, x: Val) -> Val:
    small, twice, z = _half_angle32(c, x)
    s = c.select(small, absolute(c, x), negative(c, twice))
    base = _choose(c, small, _base32(c, x, 0), _base32(c, x, 1))
    return c.intrinsic("copysign", _asin_from(c, base, s, z), x)


def _acos32(c: Code, x: Val) -> Val:
    small, twice, z = _half_angle32(c, x)
    s = c.select(small, negative(c, x), c.intrinsic("copysign", twice, x))
    behind = is_below(c, x, 0.0)
    base = _choose(c, behind, _base32(c, x, 2), _base32(c, x, 0))
    base = _choose(c, small, _base32(c, x, 1), base)
    return _asin_from(c, base, s, z)


def asin(c: Code, x: Val) -> Val:
    """The angle between -pi/2 and pi/2."""
    if x.dtype == "float32":
        return _asin32(c, x)
    small, s, rest = _half_angle(c, x)
    right = _quarters(c, x, 2)
    far = _base_less(c, right, times(c, s, 2.0), times(c, rest, 2.0))
    value = c.select(small, add(c, s, rest), far)
    return _outside(c, x, c.intrinsic("copysign", value, x))


def acos(c: Code, x: Val) -> Val:
    """The angle between 0 and pi."""
    if x.dtype == "float32":
        return _acos32(c, x)
    small, s, rest = _half_angle(c, x)
    signed = (
        c.intrinsic("copysign", s, x),
        mul(c, rest, c.intrinsic("copysign", c.like(1.0, x), x)),
    )
    near = _base_less(c, _quarters(c, x, 2), *signed)
    twice = times(c, s, 2.0), times(c, rest, 2.0)
    behind = _base_less(c, _quarters(c, x, 4), *twice)
    far = c.select(is_below(c, x, 0.0), behind, total(c, twice))
    far = c.select(equals(c, x, 1.0), c.like(0.0, x), far)
    return _outside(c, x, c.select(small, near, far))
