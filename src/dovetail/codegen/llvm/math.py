"""Our own vector math: polynomials fitted by tools/fit_polynomials.py.

What is hot (exp, tanh, erf, sigmoid) is computed in float32; the rest of float32 goes through
float64, whose error vanishes in the rounding. Nothing here calls a library.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from dovetail.codegen.llvm.emit import Code, Val

EXP32 = (
    0.4999999339683306567,
    0.1666651991109821598,
    0.04166839713307364298,
    0.008368802469303062805,
    0.001381436854877509463,
)
EXP64 = (
    0.5,
    0.1666666666666667104,
    0.04166666666666666979,
    0.008333333333326069756,
    0.001388888888888370162,
    0.0001984126987504890523,
    0.00002480158732571075832,
    2.755725511097888931e-6,
    2.755727343657048581e-7,
    2.510533724466521021e-8,
    2.091477283224808965e-9,
)
LOG64 = (
    0.6666666666666666667,
    0.3999999999999999187,
    0.2857142857143585766,
    0.2222222221971029625,
    0.1818181861517727863,
    0.1538457345002896918,
    0.1333571108500843531,
    0.1168650891731204597,
    0.1189655856841216441,
)
TANH32 = (
    -0.3333333287020081981,
    0.1333326259638908944,
    -0.05395055347441234829,
    0.02170512040127289236,
    -0.00815522196231633768,
    0.002098952822317725196,
)
ERF_NEAR = (
    0.1283791665669025433,
    -0.3761263300303897491,
    0.112836836993192075,
    -0.02685872269475625741,
    0.005199318198075916429,
    -0.000812296088777280524,
    0.00008285826548691171604,
)
ERF_FAR = (
    1.128746793411394749,
    0.6347905174484043161,
    0.106746792766817267,
    -0.02408968140469235254,
    0.003706136242053151819,
    -0.0002887885018981164738,
    -0.00001023959979227851269,
    4.210347220905629485e-6,
    -2.634545316321180513e-7,
)
ERFC = (
    1.12838067957283322,
    0.6365914526782872293,
    0.1029460532011812966,
    -0.01962043837560953496,
    0.0005266222327020602453,
    0.001102719794566556347,
    -0.0003742557315531845973,
    0.00005615650419191061004,
    -3.362334254862882066e-6,
)
SIN64 = (
    -0.1666666666666388481,
    0.008333333331078497489,
    -0.000198412669162803646,
    2.755599071608007975e-6,
    -2.480561646818083644e-8,
)
COS64 = (
    0.0416666666666646778,
    -0.001388888888727682403,
    0.00002480158521048592845,
    -2.755636954290332647e-7,
    2.070058634251581952e-9,
)
# ln 2 in two parts: the product of the first and a small integer is exact.
_LN2 = {
    "float32": (0.693145751953125, 1.42860682030941723212e-6),
    "float64": (6.93147180369123816490e-01, 1.90821492927058770002e-10),
}
# Adding it rounds to an integer and leaves that integer in the low bits.
_MAGIC = {"float32": 12582912.0, "float64": 6755399441055744.0}
_FORMAT = {"float32": ("int32", 23, 127), "float64": ("int64", 52, 1023)}
_EXP_BOUNDS = {"float32": (-110.0, 100.0), "float64": (-760.0, 720.0)}


def polynomial(c: Code, x: Val, coefficients: Sequence[float]) -> Val:
    """Horner's scheme with fused multiply-adds."""
    total = c.like(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        total = c.intrinsic("fma", total, x, c.like(coefficient, x))
    return total


def fma(c: Code, a: Val, b: Val, d: Val) -> Val:
    """A * b + d, rounded once."""
    return c.intrinsic("fma", a, b, d)


def exp(c: Code, x: Val) -> Val:
    """e**x: x = n ln 2 + r, a polynomial in r, scaled by 2**n in two steps for denormals."""
    x = _clamp(c, x, *_EXP_BOUNDS[x.dtype])
    n, shifted, p = _exp_fraction(c, x)
    return _scaled(c, p, n) if _can_scale(c, x) else _scale(c, p, _low_bits(c, shifted))


def exp_normal(c: Code, x: Val) -> Val:
    """e**x of float32 where results too small for a normal number may become zero."""
    if x.dtype == "float64" or _can_scale(c, x):
        return exp(c, x)
    low = c.like(-87.3, x)
    x = _clamp(c, x, -87.3, 89.5)
    tiny = c.compare("fcmp ole", x, low)
    return c.select(tiny, c.like(0.0, x), _exp_to_infinity(c, x))


def _exp_to_infinity(c: Code, x: Val) -> Val:
    """e**x of float32 between -87.3 and 89.5."""
    n, shifted, p = _exp_fraction(c, x)
    if _can_scale(c, x):
        return _scaled(c, p, n)
    # One less in the exponent, so that the largest results do not overflow on the way.
    less = c.op("sub", _low_bits(c, shifted), c.like(1, Val("", "int32", x.lanes)))
    return c.op("fmul", c.op("fadd", p, p), _power(c, less, x.dtype))


def _clamp(c: Code, x: Val, low: float, high: float) -> Val:
    """Between bounds; a NaN stays."""
    x = c.select(c.compare("fcmp ogt", x, c.like(high, x)), c.like(high, x), x)
    return c.select(c.compare("fcmp olt", x, c.like(low, x)), c.like(low, x), x)


def _exp_fraction(c: Code, x: Val) -> tuple[Val, Val, Val]:
    """With x = (n + f) ln 2: n, n in the low bits, and 2**f."""
    n, shifted, r = _reduced(c, x)
    p = polynomial(c, r, EXP32 if x.dtype == "float32" else EXP64)
    if x.dtype == "float32":
        return n, shifted, fma(c, fma(c, p, r, c.like(1.0, x)), r, c.like(1.0, x))
    p = fma(c, c.op("fmul", r, r), p, r)
    return n, shifted, c.op("fadd", p, c.like(1.0, x))


def _reduced(c: Code, x: Val) -> tuple[Val, Val, Val]:
    """With x = n ln 2 + r: n, n in the low bits, and r."""
    magic = c.like(_MAGIC[x.dtype], x)
    shifted = fma(c, x, c.like(1 / math.log(2), x), magic)
    n = c.op("fsub", shifted, magic)
    first, second = _LN2[x.dtype]
    r = fma(c, n, c.like(-second, x), fma(c, n, c.like(-first, x), x))
    return n, shifted, r


def _exp_bounded(c: Code, x: Val) -> Val:
    """e**x of float32 between -80 and 80."""
    n, shifted, p = _exp_fraction(c, x)
    if _can_scale(c, x):
        return _scaled(c, p, n)
    return c.op("fmul", p, _power(c, _low_bits(c, shifted), x.dtype))


def _can_scale(c: Code, x: Val) -> bool:
    """Whether one instruction multiplies by powers of two, denormals and all: AVX-512 has it.

    No other instruction set has vectors of sixteen floats.
    """
    return x.dtype == "float32" and x.lanes == c.lanes == 16


def _scaled(c: Code, value: Val, n: Val) -> Val:
    """Value * 2**n for a whole number n."""
    name, kind = "llvm.x86.avx512.mask.scalef.ps.512", value.type
    c.declare(name, kind, [kind, kind, kind, "i16", "i32"])
    given = f"{kind} {value.text}, {kind} {n.text}, {kind} zeroinitializer, i16 -1, i32 4"
    return c.new(f"call {kind} @{name}({given})", value.dtype, value.lanes)


def _low_bits(c: Code, shifted: Val) -> Val:
    """The integer that adding the magic number left in the low bits."""
    integer, *_ = _FORMAT[shifted.dtype]
    bits = c.convert("bitcast", shifted, integer)
    return c.op("sub", bits, c.convert("bitcast", c.like(_MAGIC[shifted.dtype], shifted), integer))


def _scale(c: Code, value: Val, n: Val) -> Val:
    """Value * 2**n, overflowing and becoming denormal as it should."""
    half = c.op("ashr", n, c.like(1, n))
    value = c.op("fmul", value, _power(c, half, value.dtype))
    return c.op("fmul", value, _power(c, c.op("sub", n, half), value.dtype))


def _power(c: Code, n: Val, dtype: str) -> Val:
    _, mantissa, bias = _FORMAT[dtype]
    bits = c.op("shl", c.op("add", n, c.like(bias, n)), c.like(mantissa, n))
    return c.convert("bitcast", bits, dtype)


def log(c: Code, x: Val) -> Val:
    """The natural logarithm; float32 by way of float64."""
    return _through_double(c, x, _log64)


def _through_double(c: Code, x: Val, fn: Callable[[Code, Val], Val]) -> Val:
    if x.dtype == "float64":
        return fn(c, x)
    return c.convert("fptrunc", fn(c, c.convert("fpext", x, "float64")), "float32")


def _log64(c: Code, x: Val) -> Val:
    """log(m 2**e) = e ln 2 + 2 atanh((m-1)/(m+1)), m between sqrt(1/2) and sqrt(2)."""
    tiny = c.compare("fcmp olt", x, c.like(2.2250738585072014e-308, x))
    scaled = c.select(tiny, c.op("fmul", x, c.like(2.0**54, x)), x)
    bits = c.convert("bitcast", scaled, "int64")
    moved = c.op("sub", bits, c.like(0x3FE6A09E667F3BCD, bits))
    exponent = c.op("ashr", moved, c.like(52, bits))
    mantissa = c.convert(
        "bitcast", c.op("sub", bits, c.op("shl", exponent, c.like(52, bits))), "float64"
    )
    e = c.convert("sitofp", exponent, "float64")
    e = c.select(tiny, c.op("fsub", e, c.like(54.0, e)), e)
    s = c.op("fdiv", c.op("fsub", mantissa, c.like(1.0, x)), c.op("fadd", mantissa, c.like(1.0, x)))
    z = c.op("fmul", s, s)
    p = c.op("fmul", c.op("fmul", s, z), polynomial(c, z, LOG64))
    first, second = _LN2["float64"]
    low = fma(c, e, c.like(second, x), p)
    result = fma(c, e, c.like(first, x), fma(c, s, c.like(2.0, x), low))
    return _log_specials(c, x, result)


def _log_specials(c: Code, x: Val, result: Val) -> Val:
    infinite = c.compare("fcmp oeq", x, c.like(math.inf, x))
    result = c.select(infinite, x, result)
    result = c.select(c.compare("fcmp oeq", x, c.like(0.0, x)), c.like(-math.inf, x), result)
    return c.select(c.compare("fcmp ult", x, c.like(0.0, x)), c.like(math.nan, x), result)


def log_times(factor: float) -> Callable[[Code, Val], Val]:
    """The logarithm to another base."""

    def scaled(c: Code, x: Val) -> Val:
        return c.op("fmul", _log64(c, x), c.like(factor, x))

    return lambda c, x: _through_double(c, x, scaled)


def log1p(c: Code, x: Val) -> Val:
    """log(1 + x) for float32: the sum is exact enough in float64, tiny x need a series."""

    def double(c: Code, wide: Val) -> Val:
        result = _log64(c, c.op("fadd", wide, c.like(1.0, wide)))
        small = c.compare("fcmp olt", absolute(c, wide), c.like(1e-7, wide))
        series = fma(c, c.op("fmul", wide, wide), c.like(-0.5, wide), wide)
        return c.select(small, series, result)

    return _through_double(c, x, double)


def expm1(c: Code, x: Val) -> Val:
    """exp(x) - 1 for float32, by way of float64."""

    def double(c: Code, wide: Val) -> Val:
        result = c.op("fsub", exp(c, wide), c.like(1.0, wide))
        small = c.compare("fcmp olt", absolute(c, wide), c.like(1e-5, wide))
        square = c.op("fmul", wide, wide)
        third = c.op("fmul", c.op("fmul", square, wide), c.like(1 / 6, wide))
        series = fma(c, square, c.like(0.5, wide), wide)
        return c.select(small, c.op("fadd", series, third), result)

    zero = c.compare("fcmp oeq", x, c.like(0.0, x))
    return c.select(zero, x, _through_double(c, x, double))  # -0.0 stays


def exp2(c: Code, x: Val) -> Val:
    """2**x for float32, by way of float64."""
    return _through_double(
        c, x, lambda c, wide: exp(c, c.op("fmul", wide, c.like(math.log(2), wide)))
    )


def absolute(c: Code, x: Val) -> Val:
    """Its absolute value."""
    return c.intrinsic("fabs", x)


def sigmoid(c: Code, x: Val) -> Val:
    """1 / (1 + exp(-x))."""
    x = _clamp(c, x, -89.5, 87.3)
    e = _exp_to_infinity(c, negative(c, x))
    return c.op("fdiv", c.like(1.0, x), c.op("fadd", c.like(1.0, x), e))


def negative(c: Code, x: Val) -> Val:
    """-x of floating-point numbers."""
    return c.new(f"fneg {x.type} {x.text}", x.dtype, x.lanes)


def tanh(c: Code, x: Val) -> Val:
    """A polynomial near zero; elsewhere 1 - 2 / (exp(2x) + 1), its last roundings made good."""
    size = absolute(c, x)
    z = c.op("fmul", x, x)
    near = fma(c, c.op("fmul", z, size), polynomial(c, z, TANH32), size)
    limit = c.like(20.0, x)
    bounded = c.select(c.compare("fcmp ogt", size, limit), limit, size)
    n, shifted, r = _reduced(c, c.op("fadd", bounded, bounded))
    t = fma(c, c.op("fmul", r, r), polynomial(c, r, EXP32), r)
    one = c.like(1.0, x)
    scale = _scaled(c, one, n) if _can_scale(c, x) else _power(c, _low_bits(c, shifted), x.dtype)
    total = fma(c, scale, t, c.op("fadd", scale, c.like(1.0, x)))
    ratio = c.op("fdiv", c.like(2.0, x), total)
    rest = fma(c, negative(c, total), ratio, c.like(2.0, x))
    far = c.op("fsub", c.like(1.0, x), ratio)
    low = c.op("fsub", c.op("fsub", c.like(1.0, x), far), ratio)
    low = fma(c, c.op("fmul", rest, ratio), c.like(-0.5, x), low)
    far = c.op("fadd", far, low)
    result = c.select(c.compare("fcmp olt", size, c.like(0.6875, x)), near, far)
    return c.intrinsic("copysign", result, x)


def erf(c: Code, x: Val) -> Val:
    """A polynomial near zero, 1 - exp(-t q(t)) elsewhere, 1 beyond 4."""
    z = c.op("fmul", x, x)
    near = fma(c, x, polynomial(c, z, ERF_NEAR), x)
    size = absolute(c, x)
    beyond = c.compare("fcmp ogt", size, c.like(4.0, x))
    t = c.select(beyond, c.like(4.0, x), size)
    power = c.op("fmul", t, polynomial(c, t, ERF_FAR))
    e = _exp_bounded(c, negative(c, power))
    far = c.intrinsic("copysign", c.op("fsub", c.like(1.0, x), e), x)
    return c.select(c.compare("fcmp olt", size, c.like(0.9375, x)), near, far)


def erf_plus_one(c: Code, x: Val) -> Val:
    """1 + erf(x), where only the sum's own accuracy counts: exp(-t q(t)) or its complement."""
    size = absolute(c, x)
    inside = c.compare("fcmp ule", size, c.like(4.0, x))
    t = c.select(c.compare("fcmp ogt", size, c.like(4.0, x)), c.like(4.0, x), size)
    power = c.op("fmul", t, polynomial(c, t, ERFC))
    e = c.select(inside, _exp_bounded(c, negative(c, power)), c.like(0.0, x))
    below = c.compare("fcmp olt", x, c.like(0.0, x))
    return c.select(below, e, c.op("fsub", c.like(2.0, x), e))


# Beyond it, x is reduced with a table of 2**e mod 2 pi.
_LARGE = 2.0**27
_PI_2 = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)


@functools.cache
def _reduction_table() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """2**e mod 2 pi for e = 0 … 104: 29 leading bits, and the rest."""
    bits = 400
    circle = _two_pi(bits)
    high, low = [], []
    for e in range(105):
        remainder = (1 << (e + bits)) % circle
        lead = remainder >> (bits - 26) << (bits - 26)
        high.append(lead / 2.0**bits if not lead else math.ldexp(lead >> (bits - 26), -26))
        rest = remainder - lead
        low.append(math.ldexp(rest >> (bits - 100), -100))
    return tuple(high), tuple(low)


def _two_pi(bits: int) -> int:
    """2 pi * 2**bits, by Machin's formula."""
    unit = 1 << (bits + 32)

    def arctan_inverse(n: int) -> int:
        total = term = unit // n
        k = 1
        while term:
            term //= -n * n
            total += term // (2 * k + 1)
            k += 1
        return total

    quarter = 4 * arctan_inverse(5) - arctan_inverse(239)
    return (8 * quarter) >> 32


def _table(c: Code, name: str, values: Sequence[float]) -> None:
    items = ", ".join(f"double {c.const(v, 'float64').text}" for v in values)
    c.globals[name] = f"@{name} = internal constant [{len(values)} x double] [{items}]"


def _lookup(c: Code, name: str, position: Val) -> Val:
    pointer = c.new(
        f"getelementptr double, ptr @{name}, {position.type} {position.text}", "ptr", position.lanes
    )
    if position.lanes == 1:
        return c.new(f"load double, ptr {pointer.text}", "float64", 1)
    lanes = position.lanes
    full = f"llvm.masked.gather.v{lanes}f64.v{lanes}p0"
    to = f"<{lanes} x double>"
    c.declare(full, to, [pointer.type, "i32", f"<{lanes} x i1>", to])
    mask = f"<{lanes} x i1> splat (i1 true)"
    given = f"{pointer.type} {pointer.text}, i32 8, {mask}, {to} poison"
    text = f"call {to} @{full}({given})"
    return c.new(text, "float64", lanes)


def _reduce_large(c: Code, x: Val) -> Val:
    """A float32 value beyond 2**27 (or not finite), in float64, as a number congruent to it."""
    high, low = _reduction_table()
    _table(c, "two_pi_high", high)
    _table(c, "two_pi_low", low)
    bits = c.convert("bitcast", x, "int64")
    exponent = c.op("and", c.op("lshr", bits, c.like(52, bits)), c.like(0x7FF, bits))
    e = c.op("sub", exponent, c.like(1023 + 23, bits))
    e = c.select(c.compare("icmp slt", e, c.like(0, e)), c.like(0, e), e)
    e = c.select(c.compare("icmp sgt", e, c.like(104, e)), c.like(104, e), e)
    mantissa = c.op("and", bits, c.like((1 << 52) - 1, bits))
    unit = c.op("or", mantissa, c.like(0x3FF << 52, bits))
    m = c.op("fmul", c.convert("bitcast", unit, "float64"), c.like(2.0**23, x))
    m = c.intrinsic("copysign", m, x)
    lead, rest = _lookup(c, "two_pi_high", e), _lookup(c, "two_pi_low", e)
    whole = c.op("fmul", m, lead)  # exact: 24 and 29 bits
    turns = c.op("fmul", whole, c.like(1 / (2 * math.pi), x))
    n = c.intrinsic("roundeven", turns)
    for part in _PI_2:
        whole = fma(c, n, c.like(-4 * part, x), whole)
    reduced = fma(c, m, rest, whole)
    finite = c.compare("fcmp olt", absolute(c, x), c.like(math.inf, x))
    return c.select(finite, reduced, c.like(math.nan, x))


def _quadrant(c: Code, x: Val) -> tuple[Val, Val]:
    """X as n pi/2 + r: the low bits of n, and r."""
    large = c.compare("fcmp ugt", absolute(c, x), c.like(_LARGE, x))
    slot = c.slot(x.dtype, x.lanes)
    c.put(slot, x)
    some = large if x.lanes == 1 else c.intrinsic("vector.reduce.or", large)
    slow, done = c.label("large"), c.label("reduced")
    c.line(f"br i1 {some.text}, label %{slow}, label %{done}")
    c.start(slow)
    c.put(slot, c.select(large, _reduce_large(c, x), x))
    c.block(done)
    x = c.get(slot, x.dtype, x.lanes)
    magic = c.like(_MAGIC["float64"], x)
    shifted = fma(c, x, c.like(2 / math.pi, x), magic)
    n = c.op("fsub", shifted, magic)
    r = x
    for part in _PI_2:
        r = fma(c, n, c.like(-part, x), r)
    return _low_bits(c, shifted), r


def _wave(c: Code, x: Val, quarter_turns: int) -> Val:
    """sin(x + quarter_turns * pi/2) in float64."""
    n, r = _quadrant(c, x)
    n = c.op("add", n, c.like(quarter_turns, n))
    z = c.op("fmul", r, r)
    sine = fma(c, c.op("fmul", z, r), polynomial(c, z, SIN64), r)
    cosine = fma(c, c.op("fmul", z, z), polynomial(c, z, COS64), c.like(1.0, x))
    cosine = fma(c, z, c.like(-0.5, x), cosine)
    odd = c.compare("icmp ne", c.op("and", n, c.like(1, n)), c.like(0, n))
    value = c.select(odd, cosine, sine)
    flip = c.compare("icmp ne", c.op("and", n, c.like(2, n)), c.like(0, n))
    negative = c.new(f"fneg {value.type} {value.text}", value.dtype, value.lanes)
    return c.select(flip, negative, value)


def sin(c: Code, x: Val) -> Val:
    """The sine of a float32, over its whole range."""
    result = _through_double(c, x, lambda c, wide: _wave(c, wide, 0))
    zero = c.compare("fcmp oeq", x, c.like(0.0, x))
    return c.select(zero, x, result)  # -0.0 stays


def cos(c: Code, x: Val) -> Val:
    """The cosine of a float32, over its whole range."""
    return _through_double(c, x, lambda c, wide: _wave(c, wide, 1))


def tan(c: Code, x: Val) -> Val:
    """sin(x) / cos(x) of float32."""

    def double(c: Code, wide: Val) -> Val:
        return c.op("fdiv", _wave(c, wide, 0), _wave(c, wide, 1))

    zero = c.compare("fcmp oeq", x, c.like(0.0, x))
    return c.select(zero, x, _through_double(c, x, double))


def power(c: Code, x: Val, y: Val) -> Val:
    """x**y of float32 with C's special cases, by way of float64."""
    x, y = c.alike(x, y)
    base, exponent = c.convert("fpext", x, "float64"), c.convert("fpext", y, "float64")
    size = absolute(c, base)
    result = exp(c, c.op("fmul", exponent, _log64(c, size)))
    whole = c.compare("fcmp oeq", exponent, c.intrinsic("trunc", exponent))
    half = c.op("fmul", exponent, c.like(0.5, base))
    odd = c.op("and", whole, c.compare("fcmp une", half, c.intrinsic("trunc", half)))
    sign = c.select(odd, base, c.like(1.0, base))
    signed = c.intrinsic("copysign", result, sign)
    negative = c.compare("fcmp olt", base, c.like(0.0, base))
    finite = c.compare("fcmp olt", size, c.like(math.inf, base))
    infinite_power = c.compare("fcmp oeq", absolute(c, exponent), c.like(math.inf, base))
    broken = c.op("and", c.op("and", negative, finite), c.op("xor", whole, c.like(True, whole)))
    signed = c.select(broken, c.like(math.nan, base), signed)
    one = c.compare("fcmp oeq", size, c.like(1.0, base))
    signed = c.select(c.op("and", one, infinite_power), c.like(1.0, base), signed)
    always_one = c.op(
        "or",
        c.compare("fcmp oeq", exponent, c.like(0.0, base)),
        c.compare("fcmp oeq", base, c.like(1.0, base)),
    )
    signed = c.select(always_one, c.like(1.0, base), signed)
    return c.convert("fptrunc", signed, "float32")


FUNCTIONS: dict[str, Callable[[Code, Val], Val]] = {
    "exp": exp,
    "exp_normal": exp_normal,
    "exp2": exp2,
    "expm1": expm1,
    "log": log,
    "log2": log_times(1 / math.log(2)),
    "log10": log_times(1 / math.log(10)),
    "log1p": log1p,
    "sin": sin,
    "cos": cos,
    "tan": tan,
    "tanh": tanh,
    "erf": erf,
    "sigmoid": sigmoid,
}
