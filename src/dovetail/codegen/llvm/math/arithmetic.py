"""What the functions of math are made of: polynomials, powers of two, unevaluated sums.

A ``Pair`` is a number as the sum of two: its nearest value and what that leaves out. Sums,
products and quotients of pairs keep about twice the bits of one number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail.codegen.llvm.math.number import Number, fma, select

Pair = tuple[Number, Number]
# Adding it rounds to an integer and leaves that integer in the low bits.
MAGIC = {"float32": 12582912.0, "float64": 6755399441055744.0}
_FORMAT = {"float32": ("int32", 23, 127), "float64": ("int64", 52, 1023)}


def polynomial(x: Number, coefficients: Sequence[float]) -> Number:
    """Horner's scheme with fused multiply-adds."""
    total = x.like(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = fma(total, x, coefficient)
    return total


def alike(*values: Number) -> tuple[Number, ...]:
    """The values with one lane count."""
    c = values[0].c
    return tuple(Number(c, val) for val in c.alike(*(x.val for x in values)))


def sqrt(x: Number) -> Number:
    """Its square root."""
    return x.intrinsic("sqrt")


def at_most(x: Number, high: float) -> Number:
    """X, or the bound where it is greater; a NaN stays."""
    return select(x > high, high, x)


def clamp(x: Number, low: float, high: float) -> Number:
    """Between bounds; a NaN stays."""
    x = at_most(x, high)
    return select(x < low, low, x)


def keep_tiny(x: Number, bound: float, result: Number) -> Number:
    """X itself where it is below a bound in size: f(x) is x there, the sign of zero included."""
    return select(abs(x) < bound, x, result)


# ---- powers of two -----------------------------------------------------------------------------


def low_bits(shifted: Number) -> Number:
    """The integer that adding the magic number left in the low bits."""
    integer, *_ = _FORMAT[shifted.dtype]
    bits = shifted.convert("bitcast", integer)
    return bits - shifted.like(MAGIC[shifted.dtype]).convert("bitcast", integer)


def power_of_two(n: Number, dtype: str) -> Number:
    """2**n, where that is a normal number."""
    _, mantissa, bias = _FORMAT[dtype]
    return ((n + bias) << mantissa).convert("bitcast", dtype)


def scale(value: Number, n: Number) -> Number:
    """Value * 2**n, overflowing and becoming denormal as it should."""
    half = n >> 1
    value = value * power_of_two(half, value.dtype)
    return value * power_of_two(n - half, value.dtype)


def lesser(n: Number, bound: int) -> Number:
    """The smaller of an integer and a bound."""
    return select(n < bound, n, bound)


# ---- through float64 ---------------------------------------------------------------------------


def through_double(fn: Callable[..., Number], *args: Number) -> Number:
    """A function of float64 for any type: float32 is widened, and its result rounded."""
    args = alike(*args)
    if args[0].dtype == "float64":
        return fn(*args)
    return fn(*(x.convert("fpext", "float64") for x in args)).convert("fptrunc", "float32")


# ---- pairs -------------------------------------------------------------------------------------


def choose(mask: Number, yes: Pair, no: Pair) -> Pair:
    """One of two pairs."""
    return select(mask, yes[0], no[0]), select(mask, yes[1], no[1])


def two_sum(a: Number, b: Number) -> Pair:
    """A + b and its rounding error."""
    total = a + b
    share = total - a
    left = a - (total - share)
    return total, left + (b - share)


def fast_two_sum(a: Number, b: Number) -> Pair:
    """A + b and its rounding error, where a is the larger (or zero)."""
    total = a + b
    return total, b - (total - a)


def two_product(a: Number, b: Number) -> Pair:
    """A * b and its rounding error."""
    product = a * b
    return product, fma(a, b, -product)


def cube(x: Number) -> tuple[Number, Number, Number]:
    """X**2, x**3, and what both roundings leave out of x**3."""
    square, square_low = two_product(x, x)
    cubed, low = two_product(square, x)
    return square, cubed, fma(square_low, x, low)


def two_product_with(a: Number, number: tuple[float, float]) -> Pair:
    """A times a constant that is a pair."""
    high, low = two_product(a, a.like(number[0]))
    return high, fma(a, number[1], low)


def two_product_pair(a: Pair, b: Pair) -> Pair:
    """The product of two pairs."""
    high, low = two_product(a[0], b[0])
    return high, fma(a[0], b[1], fma(a[1], b[0], low))


def divide(above: Pair, below: Pair) -> Pair:
    """A quotient; the divisor's reciprocal must not be denormal."""
    inverse = 1.0 / below[0]
    quotient = above[0] * inverse
    rest = fma(-quotient, below[0], above[0])
    rest = fma(-quotient, below[1], rest + above[1])
    return quotient, rest * inverse


def square_root(x: Pair) -> Pair:
    """Its square root, where it is not zero."""
    root = sqrt(x[0])
    rest = fma(-root, root, x[0]) + x[1]
    return root, rest * 0.5 / root


def total(pair: Pair) -> Number:
    """A pair as one number."""
    return pair[0] + pair[1]
