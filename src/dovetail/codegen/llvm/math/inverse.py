"""The inverses of sine, cosine and tangent."""

from __future__ import annotations

import math

from dovetail.codegen.llvm.math import coefficients as k
from dovetail.codegen.llvm.math.arithmetic import (
    Pair,
    alike,
    at_most,
    choose,
    cube,
    divide,
    fast_two_sum,
    polynomial,
    sqrt,
    total,
    two_sum,
)
from dovetail.codegen.llvm.math.number import Number, copysign, equals, fma, select

_LOW, _HIGH = math.sqrt(2) - 1, math.sqrt(2) + 1  # tan(pi/8), tan(3 pi/8)


def _angle(above: Pair, below: Pair, base: Pair) -> Number:
    """Base + atan(above / below), the quotient at most tan(pi/8) in size."""
    t, t_low = divide(above, below)
    z = t * t
    rest = base[1] + fma(t * z, polynomial(z, k.ATAN64), t_low)
    high, low = two_sum(base[0], t)
    return high + (low + rest)


def _quarters(like: Number, count: int) -> Pair:
    """Count * pi/4, for 0 to 4."""
    if count == 3:
        high, low = 2.356194490192345, 9.1848509936051484e-17
    else:
        high, low = k.HALF_PI[0] * count / 2, k.HALF_PI[1] * count / 2
    return like.like(high), like.like(low)


def _parts(y: Number, x: Number) -> tuple[Number, Number, Pair, Pair]:
    """For y / x, both positive: whether it is small, or large, and a quotient near zero for it.

    atan(y / x) is atan(y / x), pi/4 + atan((y - x) / (y + x)) or pi/2 - atan(x / y).
    """
    zero = y.like(0.0)
    small = y < x * _LOW
    large = y > x * _HIGH
    above, below = two_sum(y, -x), two_sum(y, x)
    above = choose(small, (y, zero), choose(large, (-x, zero), above))
    below = choose(small, (x, zero), choose(large, (y, zero), below))
    return small, large, above, below


def _from_base(base: Number, s: Number, rest: Number) -> Number:
    """Base + s + rest in float32, where a base that is not zero is larger than s."""
    high = base + s
    low = s - (high - base)
    return high + (low + rest)


def _atan_from(base: Pair, t: Number, low: Number) -> Number:
    """Base + atan(t + low) in float32 for a t of at most 1 in size."""
    z, cubed, lost = cube(t)
    p = polynomial(z, k.ATAN32)
    slope = fma(z, -0.5, 1.0)  # about 1 / (1 + z)
    rest = fma(lost, p, fma(low, slope, base[1]))
    return _from_base(base[0], t, fma(cubed, p, rest))


def _base32(like: Number, quarters: int) -> Pair:
    """So many quarter turns in float32."""
    return like.like(k.HALF_PI_SHORT[0] * quarters), like.like(k.HALF_PI_SHORT[1] * quarters)


def _atan32(x: Number) -> Number:
    """A polynomial, of the negative reciprocal beyond 1: pi/2 is added then."""
    size = at_most(abs(x), 2.0**60)
    large = size > 1.0
    inverse = -1.0 / size
    lost = fma(inverse, size, 1.0) * inverse
    t, low = choose(large, (inverse, lost), (size, x.like(0.0)))
    base = choose(large, _base32(x, 1), _base32(x, 0))
    return copysign(_atan_from(base, t, low), x)


def atan(x: Number) -> Number:
    """The angle between -pi/2 and pi/2."""
    if x.dtype == "float32":
        return _atan32(x)
    size = at_most(abs(x), 2.0**60)
    small, large, above, below = _parts(size, x.like(1.0))
    base = choose(large, _quarters(x, 2), _quarters(x, 1))
    base = choose(small, _quarters(x, 0), base)
    return copysign(_angle(above, below, base), x)


def _bounded(y: Number, x: Number) -> tuple[Number, Number]:
    """Two sizes in the same ratio, far from the ends of the range, 0 / 0 as 0 / 1."""
    y_endless, x_endless = equals(y, math.inf), equals(x, math.inf)
    zero, one = y.like(0.0), y.like(1.0)
    new_y = select(y_endless, one, select(x_endless, zero, y))
    new_x = select(x_endless, one, select(y_endless, zero, x))
    most = select(new_y > new_x, new_y, new_x)
    factor = select(most > 2.0**900, 2.0**-100, one)
    factor = select(most < 2.0**-700, 2.0**300, factor)
    new_x = select(equals(most, 0.0), one, new_x)
    return new_y * factor, new_x * factor


def atan2(y: Number, x: Number) -> Number:
    """The angle of the point (x, y)."""
    y, x = alike(y, x)
    behind = copysign(1.0, x) < 0.0
    of_sizes = _atan2_32 if x.dtype == "float32" else _atan2_64
    value = copysign(of_sizes(abs(y), abs(x), behind), y)
    return select(y.compare("fcmp uno", x), math.nan, value)


def _atan2_64(y: Number, x: Number, behind: Number) -> Number:
    up, along = _bounded(y, x)
    small, large, above, below = _parts(up, along)
    flipped = -above[0], -above[1]
    above = choose(behind, flipped, above)
    quarters = [_quarters(x, n) for n in range(5)]
    ends = choose(behind, quarters[4], quarters[0])
    middle = choose(behind, quarters[3], quarters[1])
    base = choose(small, ends, choose(large, quarters[2], middle))
    return _angle(above, below, base)


def _atan2_32(y: Number, x: Number, behind: Number) -> Number:
    """The lesser size over the greater is at most 1; two that are alike are zeros or infinite."""
    steep = y > x
    least, most = select(steep, x, y), select(steep, y, x)
    t = least / most
    alike = least.compare("fcmp oeq", most)
    t = select(alike, select(equals(most, 0.0), most, 1.0), t)
    t = select(steep ^ behind, -t, t)
    ends = choose(behind, _base32(x, 2), _base32(x, 0))
    base = choose(steep, _base32(x, 1), ends)
    return _atan_from(base, t, x.like(0.0))


def _half_angle(x: Number) -> tuple[Number, Number, Number]:
    """For asin and acos: whether |x| is at most 1/2, s and the rest of asin(s).

    S is |x|, or sqrt((1 - |x|) / 2), whose double is the angle to the end of the range.
    """
    size = abs(x)
    small = size <= 0.5
    left = (1.0 - size) * 0.5
    left = select(left < 1e-300, 1e-300, left)
    root = sqrt(left)
    lost = fma(-root, root, left) * 0.5 / root
    z = select(small, x * x, left)
    s = select(small, size, root)
    low = select(small, 0.0, lost)
    return small, s, fma(s * z, polynomial(z, k.ASIN64), low)


def _outside(x: Number, result: Number) -> Number:
    outside = abs(x).compare("fcmp ugt", 1.0)
    return select(outside, math.nan, result)


def _base_less(base: Pair, s: Number, rest: Number) -> Number:
    """Base - (s + rest)."""
    high, low = fast_two_sum(base[0], -s)
    return high + (low + (base[1] - rest))


def _half_angle32(x: Number) -> tuple[Number, Number, Number]:
    """The same for float32: whether |x| is at most 1/2, twice the root, and the square of s."""
    size = abs(x)
    small = size <= 0.5
    left = fma(size, -0.5, 0.5)  # exact where it is used
    root = sqrt(left)
    return small, root + root, select(small, x * x, left)


def _asin_from(base: Pair, s: Number, z: Number) -> Number:
    rest = fma(s * z, polynomial(z, k.ASIN32), base[1])
    return _from_base(base[0], s, rest)


def _asin32(x: Number) -> Number:
    small, twice, z = _half_angle32(x)
    s = select(small, abs(x), -twice)
    base = choose(small, _base32(x, 0), _base32(x, 1))
    return copysign(_asin_from(base, s, z), x)


def _acos32(x: Number) -> Number:
    small, twice, z = _half_angle32(x)
    s = select(small, -x, copysign(twice, x))
    behind = x < 0.0
    base = choose(behind, _base32(x, 2), _base32(x, 0))
    base = choose(small, _base32(x, 1), base)
    return _asin_from(base, s, z)


def asin(x: Number) -> Number:
    """The angle between -pi/2 and pi/2."""
    if x.dtype == "float32":
        return _asin32(x)
    small, s, rest = _half_angle(x)
    right = _quarters(x, 2)
    far = _base_less(right, s * 2.0, rest * 2.0)
    value = select(small, s + rest, far)
    return _outside(x, copysign(value, x))


def acos(x: Number) -> Number:
    """The angle between 0 and pi."""
    if x.dtype == "float32":
        return _acos32(x)
    small, s, rest = _half_angle(x)
    signed = copysign(s, x), rest * copysign(1.0, x)
    near = _base_less(_quarters(x, 2), *signed)
    twice = s * 2.0, rest * 2.0
    behind = _base_less(_quarters(x, 4), *twice)
    far = select(x < 0.0, behind, total(twice))
    far = select(equals(x, 1.0), 0.0, far)
    return _outside(x, select(small, near, far))
