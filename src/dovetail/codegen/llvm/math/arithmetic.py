"""What the functions of math are made of: polynomials, powers of two, unevaluated sums.

A ``Pair`` is a number as the sum of two: its nearest value and what that leaves out. Sums,
products and quotients of pairs keep about twice the bits of one number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail.codegen.llvm.emit import Code, Val

Pair = tuple[Val, Val]
# Adding it rounds to an integer and leaves that integer in the low bits.
MAGIC = {"float32": 12582912.0, "float64": 6755399441055744.0}
_FORMAT = {"float32": ("int32", 23, 127), "float64": ("int64", 52, 1023)}


def polynomial(c: Code, x: Val, coefficients: Sequence[float]) -> Val:
    """Horner's scheme with fused multiply-adds."""
    total = c.like(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        total = c.intrinsic("fma", total, x, c.like(coefficient, x))
    return total


def fma(c: Code, a: Val, b: Val, d: Val) -> Val:
    """A * b + d, rounded once."""
    return c.intrinsic("fma", a, b, d)


def add(c: Code, a: Val, b: Val) -> Val:
    """A + b."""
    return c.op("fadd", a, b)


def sub(c: Code, a: Val, b: Val) -> Val:
    """A - b."""
    return c.op("fsub", a, b)


def mul(c: Code, a: Val, b: Val) -> Val:
    """A * b."""
    return c.op("fmul", a, b)


def times(c: Code, a: Val, factor: float) -> Val:
    """A times a number."""
    return c.op("fmul", a, c.like(factor, a))


def absolute(c: Code, x: Val) -> Val:
    """Its absolute value."""
    return c.intrinsic("fabs", x)


def negative(c: Code, x: Val) -> Val:
    """-x of floating-point numbers."""
    return c.new(f"fneg {x.type} {x.text}", x.dtype, x.lanes)


def at_most(c: Code, x: Val, high: float) -> Val:
    """X, or the bound where it is greater; a NaN stays."""
    return c.select(is_above(c, x, high), c.like(high, x), x)


def clamp(c: Code, x: Val, low: float, high: float) -> Val:
    """Between bounds; a NaN stays."""
    x = at_most(c, x, high)
    return c.select(is_below(c, x, low), c.like(low, x), x)


def is_above(c: Code, x: Val, bound: float) -> Val:
    """Whether x > bound; not for a NaN."""
    return c.compare("fcmp ogt", x, c.like(bound, x))


def is_below(c: Code, x: Val, bound: float) -> Val:
    """Whether x < bound; not for a NaN."""
    return c.compare("fcmp olt", x, c.like(bound, x))


def equals(c: Code, x: Val, number: float) -> Val:
    """Whether x is that number."""
    return c.compare("fcmp oeq", x, c.like(number, x))


def keep_tiny(c: Code, x: Val, bound: float, result: Val) -> Val:
    """X itself where it is below a bound in size: f(x) is x there, the sign of zero included."""
    return c.select(is_below(c, absolute(c, x), bound), x, result)


# ---- powers of two -----------------------------------------------------------------------------


def low_bits(c: Code, shifted: Val) -> Val:
    """The integer that adding the magic number left in the low bits."""
    integer, *_ = _FORMAT[shifted.dtype]
    bits = c.convert("bitcast", shifted, integer)
    return c.op("sub", bits, c.convert("bitcast", c.like(MAGIC[shifted.dtype], shifted), integer))


def power_of_two(c: Code, n: Val, dtype: str) -> Val:
    """2**n, where that is a normal number."""
    _, mantissa, bias = _FORMAT[dtype]
    bits = c.op("shl", c.op("add", n, c.like(bias, n)), c.like(mantissa, n))
    return c.convert("bitcast", bits, dtype)


def scale(c: Code, value: Val, n: Val) -> Val:
    """Value * 2**n, overflowing and becoming denormal as it should."""
    half = c.op("ashr", n, c.like(1, n))
    value = c.op("fmul", value, power_of_two(c, half, value.dtype))
    return c.op("fmul", value, power_of_two(c, c.op("sub", n, half), value.dtype))


def lesser(c: Code, n: Val, bound: int) -> Val:
    """The smaller of an integer and a bound."""
    return c.select(c.compare("icmp slt", n, c.like(bound, n)), n, c.like(bound, n))


# ---- through float64 ---------------------------------------------------------------------------


def through_double(c: Code, fn: Callable[..., Val], *args: Val) -> Val:
    """A function of float64 for any type: float32 is widened, and its result rounded."""
    args = c.alike(*args)
    if args[0].dtype == "float64":
        return fn(c, *args)
    wide = fn(c, *(c.convert("fpext", x, "float64") for x in args))
    return c.convert("fptrunc", wide, "float32")


# ---- pairs -------------------------------------------------------------------------------------


def two_sum(c: Code, a: Val, b: Val) -> Pair:
    """A + b and its rounding error."""
    total = c.op("fadd", a, b)
    share = c.op("fsub", total, a)
    left = c.op("fsub", a, c.op("fsub", total, share))
    return total, c.op("fadd", left, c.op("fsub", b, share))


def fast_two_sum(c: Code, a: Val, b: Val) -> Pair:
    """A + b and its rounding error, where a is the larger (or zero)."""
    total = c.op("fadd", a, b)
    return total, c.op("fsub", b, c.op("fsub", total, a))


def two_product(c: Code, a: Val, b: Val) -> Pair:
    """A * b and its rounding error."""
    product = c.op("fmul", a, b)
    return product, fma(c, a, b, negative(c, product))


def cube(c: Code, x: Val) -> tuple[Val, Val, Val]:
    """X**2, x**3, and what both roundings leave out of x**3."""
    square, square_low = two_product(c, x, x)
    cubed, low = two_product(c, square, x)
    return square, cubed, fma(c, square_low, x, low)


def two_product_with(c: Code, a: Val, number: tuple[float, float]) -> Pair:
    """A times a constant that is a pair."""
    high, low = two_product(c, a, c.like(number[0], a))
    return high, fma(c, a, c.like(number[1], a), low)


def two_product_pair(c: Code, a: Pair, b: Pair) -> Pair:
    """The product of two pairs."""
    high, low = two_product(c, a[0], b[0])
    return high, fma(c, a[0], b[1], fma(c, a[1], b[0], low))


def divide(c: Code, above: Pair, below: Pair) -> Pair:
    """A quotient; the divisor's reciprocal must not be denormal."""
    inverse = c.op("fdiv", c.like(1.0, below[0]), below[0])
    quotient = c.op("fmul", above[0], inverse)
    rest = fma(c, negative(c, quotient), below[0], above[0])
    rest = fma(c, negative(c, quotient), below[1], c.op("fadd", rest, above[1]))
    return quotient, c.op("fmul", rest, inverse)


def square_root(c: Code, x: Pair) -> Pair:
    """Its square root, where it is not zero."""
    root = c.intrinsic("sqrt", x[0])
    rest = c.op("fadd", fma(c, negative(c, root), root, x[0]), x[1])
    return root, c.op("fdiv", times(c, rest, 0.5), root)


def total(c: Code, pair: Pair) -> Val:
    """A pair as one number."""
    return c.op("fadd", *pair)
