"""Sine, cosine and tangent over the whole range of a type.

|x| = n pi/2 + r with r at most pi/4 in size, or a little more. That takes pi/2 in parts up to a
bound, and beyond it what ``angles`` does.
"""

from __future__ import annotations

import math

from dovetail.codegen.llvm.emit import Code, Val
from dovetail.codegen.llvm.math.angles import reduce_large
from dovetail.codegen.llvm.math.arithmetic import (
    MAGIC,
    Pair,
    absolute,
    add,
    cube,
    divide,
    fast_two_sum,
    fma,
    is_above,
    mul,
    negative,
    polynomial,
    sub,
    times,
    total,
    two_product,
    two_sum,
)
from dovetail.codegen.llvm.math.coefficients import COS32, COS64, SIN32, SIN64, TAN32

_LARGE = {"float32": 2.0**17, "float64": 2.0**27}
# pi/2: 24 bits, 24 bits, the rest; and 33 bits, 33 bits, 33 bits, the rest.
_PARTS32 = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
_PARTS64 = (
    1.5707963267341256,
    6.077100506303966e-11,
    2.0222662487111665e-21,
    8.4784276603688996e-32,
)
_INTEGERS = {"float32": ("int32", 32), "float64": ("int64", 64)}


def _less32(c: Code, x: Val, n: Val) -> Pair:
    """X - n pi/2 of float32 to twice its bits, for an n below 2**18.

    ``lead`` is below 1 and its bits end no later than those of x and the first part: it is exact.
    So is its difference from ``r``, which comes from a rounded product: ``low`` is what is missing.
    """
    first, second, third = (c.like(-part, x) for part in _PARTS32)
    lead = fma(c, n, first, x)
    r = add(c, lead, mul(c, n, second))
    low = fma(c, n, second, sub(c, lead, r))
    return r, fma(c, n, third, low)


def _less64(c: Code, x: Val, n: Val) -> Pair:
    """X - n pi/2 of float64 to twice its bits, however close to zero."""
    r = fma(c, n, c.like(-_PARTS64[0], x), x)  # exact
    second = two_product(c, n, c.like(_PARTS64[1], x))
    third = two_product(c, n, c.like(_PARTS64[2], x))
    r, low = two_sum(c, r, negative(c, second[0]))
    low = sub(c, low, second[1])
    r, lost = two_sum(c, r, negative(c, third[0]))
    rest = fma(c, n, c.like(-_PARTS64[3], x), sub(c, lost, third[1]))
    r, low = two_sum(c, r, low)
    return fast_two_sum(c, r, add(c, low, rest))


def _quadrant(c: Code, x: Val) -> tuple[Val, Pair]:
    """A size as n pi/2 + r: an integer with the low bits of n, and r."""
    magic = c.like(MAGIC[x.dtype], x)
    shifted = fma(c, x, c.like(2 / math.pi, x), magic)
    r = (_less32 if x.dtype == "float32" else _less64)(c, x, sub(c, shifted, magic))
    found = [c.convert("bitcast", shifted, _INTEGERS[x.dtype][0]), *r]
    slots = [c.slot(v.dtype, v.lanes) for v in found]
    for slot, value in zip(slots, found, strict=True):
        c.put(slot, value)
    large = is_above(c, x, _LARGE[x.dtype])
    some = large if x.lanes == 1 else c.intrinsic("vector.reduce.or", large)
    slow, done = c.label("large"), c.label("reduced")
    c.line(f"br i1 {some.text}, label %{slow}, label %{done}, !prof !0")
    c.start(slow)
    for slot, value, better in zip(slots, found, reduce_large(c, x), strict=True):
        c.put(slot, c.select(large, better, value))
    c.block(done)
    n, high, low = (c.get(s, v.dtype, v.lanes) for s, v in zip(slots, found, strict=True))
    return n, (high, low)


def _reduced(c: Code, x: Val) -> tuple[Val, Pair]:
    """The quadrant of a size, found once for all functions of it."""
    key = f"quadrant of {x.type} {x.text}"
    if key not in c.shared:
        n, r = _quadrant(c, x)
        c.shared[key] = (n, *r)
    n, high, low = c.shared[key]
    return n, (high, low)


def _sine(c: Code, r: Pair) -> Pair:
    z = mul(c, r[0], r[0])
    cubed = mul(c, z, r[0])
    if z.dtype == "float32":
        return r[0], fma(c, cubed, polynomial(c, z, SIN32), r[1])
    slope = fma(c, z, c.like(-0.5, z), c.like(1.0, z))
    return r[0], fma(c, cubed, polynomial(c, z, SIN64), mul(c, r[1], slope))


def _cosine(c: Code, r: Pair) -> Val:
    """Of float32."""
    z = mul(c, r[0], r[0])
    half = fma(c, polynomial(c, z, COS32), z, c.like(-0.5, z))
    return fma(c, fma(c, half, r[0], negative(c, r[1])), r[0], c.like(1.0, z))


def _cosine64(c: Code, r: Pair) -> Pair:
    one = c.like(1.0, r[0])
    z, z_low = two_product(c, r[0], r[0])
    half = times(c, z, 0.5)
    high = sub(c, one, half)
    low = sub(c, sub(c, one, high), half)
    rest = fma(c, z_low, c.like(-0.5, z), fma(c, negative(c, r[0]), r[1], low))
    return high, fma(c, mul(c, z, z), polynomial(c, z, COS64), rest)


def _waves(c: Code, x: Val) -> tuple[Val, Val, Val]:
    """The quadrant of a size, and the sine and the cosine of what is beyond it."""
    key = f"waves of {x.type} {x.text}"
    if key not in c.shared:
        n, r = _reduced(c, x)
        cosine = _cosine(c, r) if x.dtype == "float32" else total(c, _cosine64(c, r))
        c.shared[key] = n, total(c, _sine(c, r)), cosine
    n, sine, cosine = c.shared[key]
    return n, sine, cosine


def _is_odd(c: Code, n: Val) -> Val:
    return c.compare("icmp ne", c.op("and", n, c.like(1, n)), c.like(0, n))


def _turn(c: Code, value: Val, n: Val, bit: int, sign: Val | None = None) -> Val:
    """A value whose sign is turned where n has a bit, and once more where another has a sign."""
    integer, width = _INTEGERS[value.dtype]
    turned = c.op("shl", n, c.like(width - 1 - bit, n))
    if sign is not None:
        turned = c.op("xor", turned, c.convert("bitcast", sign, integer))
    turned = c.op("and", turned, c.like(1 << (width - 1), n))
    bits = c.op("xor", c.convert("bitcast", value, integer), turned)
    return c.convert("bitcast", bits, value.dtype)


def _size(c: Code, x: Val) -> Val:
    return c.once(f"size of {x.type} {x.text}", lambda: absolute(c, x))


def sin(c: Code, x: Val) -> Val:
    """The sine: that of the size, and the sign."""
    n, sine, cosine = _waves(c, _size(c, x))
    return _turn(c, c.select(_is_odd(c, n), cosine, sine), n, 1, x)


def cos(c: Code, x: Val) -> Val:
    """The cosine."""
    n, sine, cosine = _waves(c, _size(c, x))
    value = c.select(_is_odd(c, n), sine, cosine)
    return _turn(c, value, c.op("add", n, c.like(1, n)), 1)


def tan(c: Code, x: Val) -> Val:
    """The tangent: that of the size, or the negative of its reciprocal, and the sign."""
    n, r = _reduced(c, _size(c, x))
    odd = _is_odd(c, n)
    if x.dtype == "float32":
        return _turn(c, _tangent32(c, odd, r), n, 0, x)
    sine, cosine = two_sum(c, *_sine(c, r)), two_sum(c, *_cosine64(c, r))
    quotient = divide(c, _choose(c, odd, cosine, sine), _choose(c, odd, sine, cosine))
    return _turn(c, total(c, quotient), n, 0, x)


def _tangent32(c: Code, odd: Val, r: Pair) -> Val:
    """A polynomial, or the reciprocal of it and of what its rounding leaves out."""
    z, cubed, lost = cube(c, r[0])
    p = polynomial(c, z, TAN32)
    slope = fma(c, fma(c, z, c.like(2 / 3, z), c.like(1.0, z)), z, c.like(1.0, z))
    grown = fma(c, r[1], slope, mul(c, lost, p))  # 1 / cos(r)**2 begins so
    grown = fma(c, cubed, p, grown)
    value, low = fast_two_sum(c, r[0], grown)
    inverse = c.op("fdiv", c.like(1.0, z), value)
    off = fma(c, negative(c, value), inverse, c.like(1.0, z))
    off = fma(c, negative(c, low), inverse, off)
    return c.select(odd, fma(c, inverse, off, inverse), value)


def _choose(c: Code, mask: Val, yes: Pair, no: Pair) -> Pair:
    return c.select(mask, yes[0], no[0]), c.select(mask, yes[1], no[1])
