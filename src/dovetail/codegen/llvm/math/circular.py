"""Sine, cosine and tangent over the whole range of a type.

|x| = n pi/2 + r with r at most pi/4 in size, or a little more. That takes pi/2 in parts up to a
bound, and beyond it what ``angles`` does.
"""

from __future__ import annotations

import math

from dovetail.codegen.llvm.math import coefficients as k
from dovetail.codegen.llvm.math.angles import reduce_large
from dovetail.codegen.llvm.math.arithmetic import (
    MAGIC,
    Pair,
    choose,
    cube,
    divide,
    fast_two_sum,
    polynomial,
    total,
    two_product,
    two_sum,
)
from dovetail.codegen.llvm.math.number import Number, Variables, fma, select, shared

_LARGE = {"float32": 2.0**17, "float64": 2.0**27}
# pi/2: 24 bits, 24 bits, the rest; and 33 bits, 33 bits, 33 bits, the rest.
_PARTS32 = 1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15
_PARTS64 = (
    1.5707963267341256,
    6.077100506303966e-11,
    2.0222662487111665e-21,
    8.4784276603688996e-32,
)
_INTEGERS = {"float32": ("int32", 32), "float64": ("int64", 64)}


def _less32(x: Number, n: Number) -> Pair:
    """X - n pi/2 of float32 to twice its bits, for an n below 2**18.

    ``lead`` is below 1 and its bits end no later than those of x and the first part: it is exact.
    So is its difference from ``r``, which comes from a rounded product: ``low`` is what is missing.
    """
    first, second, third = (x.like(-part) for part in _PARTS32)
    lead = fma(n, first, x)
    r = lead + n * second
    low = fma(n, second, lead - r)
    return r, fma(n, third, low)


def _less64(x: Number, n: Number) -> Pair:
    """X - n pi/2 of float64 to twice its bits, however close to zero."""
    r = fma(n, -_PARTS64[0], x)  # exact
    second = two_product(n, x.like(_PARTS64[1]))
    third = two_product(n, x.like(_PARTS64[2]))
    r, low = two_sum(r, -second[0])
    low = low - second[1]
    r, lost = two_sum(r, -third[0])
    rest = fma(n, -_PARTS64[3], lost - third[1])
    r, low = two_sum(r, low)
    return fast_two_sum(r, low + rest)


def _quadrant(x: Number) -> tuple[Number, Pair]:
    """A size as n pi/2 + r: an integer with the low bits of n, and r."""
    magic = x.like(MAGIC[x.dtype])
    shifted = fma(x, 2 / math.pi, magic)
    r = (_less32 if x.dtype == "float32" else _less64)(x, shifted - magic)
    found = [shifted.convert("bitcast", _INTEGERS[x.dtype][0]), *r]
    variables, large = Variables(found), x > _LARGE[x.dtype]

    def slow() -> None:
        better = zip(reduce_large(x), found, strict=True)
        variables.put(select(large, new, old) for new, old in better)

    x.c.when(large.any(), slow, seldom=True)
    n, high, low = variables.get()
    return n, (high, low)


def _reduced(x: Number) -> tuple[Number, Pair]:
    """The quadrant of a size, found once for all functions of it."""

    def find() -> list[Number]:
        n, r = _quadrant(x)
        return [n, *r]

    n, high, low = shared(x, "quadrant", find)
    return n, (high, low)


def _sine(r: Pair) -> Pair:
    z = r[0] * r[0]
    cubed = z * r[0]
    if z.dtype == "float32":
        return r[0], fma(cubed, polynomial(z, k.SIN32), r[1])
    slope = fma(z, -0.5, 1.0)
    return r[0], fma(cubed, polynomial(z, k.SIN64), r[1] * slope)


def _cosine(r: Pair) -> Number:
    """Of float32."""
    z = r[0] * r[0]
    half = fma(polynomial(z, k.COS32), z, -0.5)
    return fma(fma(half, r[0], -r[1]), r[0], 1.0)


def _cosine64(r: Pair) -> Pair:
    one = r[0].like(1.0)
    z, z_low = two_product(r[0], r[0])
    half = z * 0.5
    high = one - half
    low = one - high - half
    rest = fma(z_low, -0.5, fma(-r[0], r[1], low))
    return high, fma(z * z, polynomial(z, k.COS64), rest)


def _waves(x: Number) -> tuple[Number, Number, Number]:
    """The quadrant of a size, and the sine and the cosine of what is beyond it."""

    def find() -> list[Number]:
        n, r = _reduced(x)
        cosine = _cosine(r) if x.dtype == "float32" else total(_cosine64(r))
        return [n, total(_sine(r)), cosine]

    n, sine, cosine = shared(x, "waves", find)
    return n, sine, cosine


def _is_odd(n: Number) -> Number:
    return (n & 1).compare("icmp ne", 0)


def _with_sign(value: Number, n: Number, bit: int, sign: Number | None = None) -> Number:
    """A value whose sign is flipped where n has a bit, and once more where another has a sign."""
    integer, width = _INTEGERS[value.dtype]
    flipped = n << (width - 1 - bit)
    if sign is not None:
        flipped = flipped ^ sign.convert("bitcast", integer)
    flipped = flipped & (1 << (width - 1))
    bits = value.convert("bitcast", integer) ^ flipped
    return bits.convert("bitcast", value.dtype)


def _size(x: Number) -> Number:
    return shared(x, "size", lambda: [abs(x)])[0]


def sin(x: Number) -> Number:
    """The sine: that of the size, and the sign."""
    n, sine, cosine = _waves(_size(x))
    return _with_sign(select(_is_odd(n), cosine, sine), n, 1, x)


def cos(x: Number) -> Number:
    """The cosine."""
    n, sine, cosine = _waves(_size(x))
    value = select(_is_odd(n), sine, cosine)
    return _with_sign(value, n + 1, 1)


def tan(x: Number) -> Number:
    """The tangent: that of the size, or the negative of its reciprocal, and the sign."""
    n, r = _reduced(_size(x))
    odd = _is_odd(n)
    if x.dtype == "float32":
        return _with_sign(_tangent32(odd, r), n, 0, x)
    sine, cosine = two_sum(*_sine(r)), two_sum(*_cosine64(r))
    quotient = divide(choose(odd, cosine, sine), choose(odd, sine, cosine))
    return _with_sign(total(quotient), n, 0, x)


def _tangent32(odd: Number, r: Pair) -> Number:
    """A polynomial, or the reciprocal of it and of what its rounding leaves out."""
    z, cubed, lost = cube(r[0])
    p = polynomial(z, k.TAN32)
    slope = fma(fma(z, 2 / 3, 1.0), z, 1.0)
    grown = fma(r[1], slope, lost * p)  # 1 / cos(r)**2 begins so
    grown = fma(cubed, p, grown)
    value, low = fast_two_sum(r[0], grown)
    inverse = 1.0 / value
    off = fma(-value, inverse, 1.0)
    off = fma(-low, inverse, off)
    return select(odd, fma(inverse, off, inverse), value)
