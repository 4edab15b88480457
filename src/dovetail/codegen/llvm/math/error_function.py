"""The error function and its complement."""

from __future__ import annotations

from dovetail.codegen.llvm.math import coefficients as k
from dovetail.codegen.llvm.math.arithmetic import (
    at_most,
    divide,
    fast_two_sum,
    polynomial,
    scale,
    through_double,
    total,
    two_product,
    two_sum,
)
from dovetail.codegen.llvm.math.exponential import exp2_bounded, exp_pair, exp_short
from dovetail.codegen.llvm.math.number import Number, copysign, fma, select


def erf(x: Number) -> Number:
    """A polynomial near zero, 1 - 2**(t q(t)) elsewhere, 1 beyond 4."""
    if x.dtype == "float64":
        return _erf64(x)
    z = x * x
    near = fma(x, polynomial(z, k.ERF_NEAR), x)
    size = abs(x)
    t = at_most(size, 4.0)
    e = exp2_bounded(t * polynomial(t, k.ERF_FAR))
    far = copysign(1.0 - e, x)
    return select(size < 0.9375, near, far)


def erf_plus_one(x: Number) -> Number:
    """1 + erf(x), where only the sum's own accuracy counts: 2**(t q(t)) or its complement."""
    if x.dtype == "float64":
        return erfc(-x)
    size = abs(x)
    inside = size.compare("fcmp ule", 4.0)
    t = at_most(size, 4.0)
    e = exp2_bounded(t * polynomial(t, k.ERFC))
    e = select(inside, e, 0.0)
    return select(x < 0.0, e, 2.0 - e)


def _far(size: Number) -> Number:
    """Erfc from 0.45 up: exp(-x**2) / (1 + 2x) times a polynomial in (x - 4) / (x + 4)."""
    size = at_most(size, 28.0)
    square = two_product(size, size)
    n, e = exp_pair(-square[0], -square[1])
    four = size.like(4.0)
    q = (size - four) / (size + four)
    slope = q * polynomial(q, k.ERFCX64[1:])
    p = fast_two_sum(size.like(k.ERFCX64[0]), slope)
    above = two_product(e[0], p[0])
    low = fma(e[0], p[1], fma(e[1], p[0], above[1]))
    below = two_sum(size * 2.0, size.like(1.0))
    return scale(total(divide((above[0], low), below)), n)


def _erf64(x: Number) -> Number:
    z = x * x
    near = fma(x, polynomial(z, k.ERF64), x)
    size = abs(x)
    far = 1.0 - _far(at_most(size, 7.0))
    return select(size < 1.0, near, copysign(far, x))


def _erfc_short(x: Number) -> Number:
    """In float64, to what a result in float32 needs: the formula of ``_far`` from zero up."""
    size = at_most(abs(x), 10.2)
    e = exp_short(-(size * size))
    below = fma(size, 2.0, 1.0)
    three = x.like(3.0)
    above = size + three
    inverse = 1.0 / (above * below)
    q = (size - three) * below * inverse
    value = e * (above * inverse) * polynomial(q, k.ERFCX_SHORT)
    return select(x < 0.0, 2.0 - value, value)


def erfc(x: Number) -> Number:
    """1 - erf(x), to full accuracy where it is small."""
    if x.dtype == "float32":
        return through_double(_erfc_short, x)
    z = x * x
    high, low = two_sum(x.like(1.0), -x)
    near = high + (low - x * polynomial(z, k.ERF64))
    size = abs(x)
    far = _far(size)
    far = select(x < 0.0, 2.0 - far, far)
    far = select(x > 27.3, 0.0, far)
    return select(size < 0.5, near, far)
