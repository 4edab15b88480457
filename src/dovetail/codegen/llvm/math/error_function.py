"""The error function and its complement."""

from __future__ import annotations

from dovetail.codegen.llvm.emit import Code, Val
from dovetail.codegen.llvm.math.arithmetic import (
    absolute,
    add,
    at_most,
    divide,
    fast_two_sum,
    fma,
    is_above,
    is_below,
    mul,
    negative,
    polynomial,
    scale,
    sub,
    through_double,
    times,
    total,
    two_product,
    two_sum,
)
from dovetail.codegen.llvm.math.coefficients import (
    ERF64,
    ERF_FAR,
    ERF_NEAR,
    ERFC,
    ERFCX64,
    ERFCX_SHORT,
)
from dovetail.codegen.llvm.math.exponential import exp2_bounded, exp_pair, exp_short


def erf(c: Code, x: Val) -> Val:
    """A polynomial near zero, 1 - 2**(t q(t)) elsewhere, 1 beyond 4."""
    if x.dtype == "float64":
        return _erf64(c, x)
    z = mul(c, x, x)
    near = fma(c, x, polynomial(c, z, ERF_NEAR), x)
    size = absolute(c, x)
    t = at_most(c, size, 4.0)
    e = exp2_bounded(c, mul(c, t, polynomial(c, t, ERF_FAR)))
    far = c.intrinsic("copysign", sub(c, c.like(1.0, x), e), x)
    return c.select(is_below(c, size, 0.9375), near, far)


def erf_plus_one(c: Code, x: Val) -> Val:
    """1 + erf(x), where only the sum's own accuracy counts: 2**(t q(t)) or its complement."""
    if x.dtype == "float64":
        return erfc(c, negative(c, x))
    size = absolute(c, x)
    inside = c.compare("fcmp ule", size, c.like(4.0, x))
    t = at_most(c, size, 4.0)
    e = exp2_bounded(c, mul(c, t, polynomial(c, t, ERFC)))
    e = c.select(inside, e, c.like(0.0, x))
    return c.select(is_below(c, x, 0.0), e, sub(c, c.like(2.0, x), e))


def _far(c: Code, size: Val) -> Val:
    """Erfc from 0.45 up: exp(-x**2) / (1 + 2x) times a polynomial in (x - 4) / (x + 4)."""
    size = at_most(c, size, 28.0)
    square = two_product(c, size, size)
    n, e = exp_pair(c, negative(c, square[0]), negative(c, square[1]))
    four = c.like(4.0, size)
    q = c.op("fdiv", sub(c, size, four), add(c, size, four))
    slope = mul(c, q, polynomial(c, q, ERFCX64[1:]))
    p = fast_two_sum(c, c.like(ERFCX64[0], size), slope)
    above = two_product(c, e[0], p[0])
    low = fma(c, e[0], p[1], fma(c, e[1], p[0], above[1]))
    below = two_sum(c, times(c, size, 2.0), c.like(1.0, size))
    return scale(c, total(c, divide(c, (above[0], low), below)), n)


def _erf64(c: Code, x: Val) -> Val:
    z = mul(c, x, x)
    near = fma(c, x, polynomial(c, z, ERF64), x)
    size = absolute(c, x)
    far = sub(c, c.like(1.0, x), _far(c, at_most(c, size, 7.0)))
    return c.select(is_below(c, size, 1.0), near, c.intrinsic("copysign", far, x))


def _erfc_short(c: Code, x: Val) -> Val:
    """In float64, to what a result in float32 needs: the formula of ``_far`` from zero up."""
    size = at_most(c, absolute(c, x), 10.2)
    e = exp_short(c, negative(c, mul(c, size, size)))
    below = fma(c, size, c.like(2.0, x), c.like(1.0, x))
    three = c.like(3.0, x)
    above = add(c, size, three)
    inverse = c.op("fdiv", c.like(1.0, x), mul(c, above, below))
    q = mul(c, mul(c, sub(c, size, three), below), inverse)
    value = mul(c, mul(c, e, mul(c, above, inverse)), polynomial(c, q, ERFCX_SHORT))
    return c.select(is_below(c, x, 0.0), sub(c, c.like(2.0, x), value), value)


def erfc(c: Code, x: Val) -> Val:
    """1 - erf(x), to full accuracy where it is small."""
    if x.dtype == "float32":
        return through_double(c, _erfc_short, x)
    z = mul(c, x, x)
    high, low = two_sum(c, c.like(1.0, x), negative(c, x))
    near = add(c, high, sub(c, low, mul(c, x, polynomial(c, z, ERF64))))
    size = absolute(c, x)
    far = _far(c, size)
    far = c.select(is_below(c, x, 0.0), sub(c, c.like(2.0, x), far), far)
    far = c.select(is_above(c, x, 27.3), c.like(0.0, x), far)
    return c.select(is_below(c, size, 0.5), near, far)
