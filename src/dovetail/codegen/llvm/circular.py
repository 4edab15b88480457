"""Sine, cosine and tangent over the whole range of a type.

x = n pi/2 + r with r at most pi/4 in size. Up to 2**27 that takes pi/2 in parts; beyond, the
product of x and 2/pi modulo 4, from a table of 2/pi times powers of two.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from dovetail.codegen.llvm.arithmetic import (
    MAGIC,
    Pair,
    absolute,
    add,
    divide,
    equals,
    fast_two_sum,
    fma,
    low_bits,
    mul,
    negative,
    polynomial,
    sub,
    through_double,
    times,
    total,
    two_product,
    two_product_with,
    two_sum,
)
from dovetail.codegen.llvm.coefficients import COS32, COS64, HALF_PI, SIN32, SIN64
from dovetail.codegen.llvm.emit import Code, Val

_LARGE = 2.0**27
# pi/2: 33 bits, 33 bits, 33 bits, the rest.
_PARTS = (
    1.5707963267341256,
    6.077100506303966e-11,
    2.0222662487111665e-21,
    8.4784276603688996e-32,
)
_PARTS_SHORT = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)
_STEP, _FIRST, _ROWS, _WORDS = 16, 32, 63, 4  # rows are for 2**(16 k - 32)
_WORDS_SHORT = 3  # what a result in float32 needs of a row


@functools.cache
def _reduction_table() -> tuple[float, ...]:
    """2**(16 k - 32) * 2/pi modulo 4, as four numbers that do not overlap."""
    bits = 1400
    ratio = (2 << (2 * bits)) // _pi(bits)  # 2/pi * 2**bits
    words = []
    for k in range(_ROWS):
        rest = (ratio << (_STEP * k)) % (1 << (bits + _FIRST + 2))
        for word in range(_WORDS):
            unit = bits + _FIRST + 2 - 53 * (word + 1)  # the last place of this number
            lead = rest >> unit
            words.append(math.ldexp(lead, unit - bits - _FIRST))
            rest -= lead << unit
    return tuple(words)


def _pi(bits: int) -> int:
    """Pi * 2**bits, by Machin's formula."""
    unit = 1 << (bits + 32)

    def arctan_inverse(n: int) -> int:
        total = term = unit // n
        k = 1
        while term:
            term //= -n * n
            total += term // (2 * k + 1)
            k += 1
        return total

    return (4 * (4 * arctan_inverse(5) - arctan_inverse(239))) >> 32


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


def _in_table(c: Code, x: Val, count: int) -> tuple[Val, list[Val]]:
    """X as m 2**e, where e is one of the table's: m, and the numbers of that row."""
    bits = c.convert("bitcast", x, "int64")
    exponent = c.op("and", c.op("lshr", bits, c.like(52, bits)), c.like(0x7FF, bits))
    e = c.op("sub", exponent, c.like(1023 + 52 - _FIRST, bits))
    e = c.select(c.compare("icmp slt", e, c.like(0, e)), c.like(0, e), e)
    last = _STEP * _ROWS - 1  # infinity
    e = c.select(c.compare("icmp sgt", e, c.like(last, e)), c.like(last, e), e)
    part = c.op("and", e, c.like(_STEP - 1, e))
    raised = c.op("shl", c.op("add", part, c.like(1023 + 52, e)), c.like(52, e))
    mantissa = c.op("and", bits, c.like((1 << 52) - 1, bits))
    m = c.convert("bitcast", c.op("or", mantissa, raised), "float64")
    _table(c, "two_over_pi", _reduction_table())
    row = c.op("shl", c.op("lshr", e, c.like(4, e)), c.like(2, e))
    words = [_lookup(c, "two_over_pi", c.op("add", row, c.like(n, e))) for n in range(count)]
    return c.intrinsic("copysign", m, x), words


def _modulo_four(c: Code, x: Val) -> Val:
    whole = c.intrinsic("roundeven", times(c, x, 0.25))
    return fma(c, whole, c.like(-4.0, x), x)


def _reduce_large(c: Code, x: Val, *, short: bool) -> tuple[Val, Pair]:
    """The quarter turns in any number beyond 2**20, modulo 4, and the angle that is left."""
    m, words = _in_table(c, x, _WORDS_SHORT if short else _WORDS)
    first, second = (two_product(c, m, word) for word in words[:2])
    terms = [_modulo_four(c, v) for v in (first[0], first[1], second[0])]
    if short:
        rest = fma(c, m, words[2], second[1])
    else:
        third = two_product(c, m, words[2])
        terms += [second[1], third[0]]
        rest = fma(c, m, words[3], third[1])
    lead, errors = terms[0], []
    for term in terms[1:]:
        lead, error = two_sum(c, lead, term)
        errors.append(error)
    n = c.intrinsic("roundeven", lead)
    lead = sub(c, lead, n)
    for error in errors:
        if short:
            lost = error
        else:
            lead, lost = two_sum(c, lead, error)
        rest = add(c, rest, lost)
    return _turned(c, x, n, fast_two_sum(c, lead, rest))


def _call_large(c: Code, x: Val, *, short: bool) -> list[Val]:
    """What ``_reduce_large`` gives, by a call for all lanes: it is seldom needed, and long."""
    name = f"math.large_angles.{'short' if short else 'long'}"
    kinds = ("float64", "int64", "float64", "float64")
    given = (Val("%count", "int64"), *(Val(f"%p{n}", "ptr") for n in range(len(kinds))))

    def write(inside: Code) -> str:
        _each_angle(inside, given[0], [place.text for place in given[1:]], short=short)
        return "void"

    c.outline(name, "void", given, write)
    slots = [c.slot(kind, x.lanes) for kind in kinds]
    c.put(slots[0], x)
    c.line(f"call void @{name}(i64 {x.lanes}, {', '.join(f'ptr {s}' for s in slots)})")
    return [c.get(s, kind, x.lanes) for s, kind in list(zip(slots, kinds, strict=True))[1:]]


def _each_angle(c: Code, count: Val, places: list[str], *, short: bool) -> None:
    """Reduce angles in memory, one after the other: their turns, and both parts of the rest."""
    counter = c.slot("int64", 1)
    c.put(counter, c.const(0, "int64"))
    again, done = c.label("angle"), c.label("done")
    c.block(again)
    i = c.get(counter, "int64", 1)
    here = [c.new(f"getelementptr i64, ptr {p}, i64 {i.text}", "ptr", 1).text for p in places]
    turns, angle = _reduce_large(c, c.get(here[0], "float64", 1), short=short)
    for place, value in zip(here[1:], (turns, *angle), strict=True):
        c.put(place, value)
    following = c.op("add", i, c.const(1, "int64"))
    c.put(counter, following)
    more = c.compare("icmp slt", following, count)
    c.line(f"br i1 {more.text}, label %{again}, label %{done}")
    c.start(done)


def _turned(c: Code, x: Val, n: Val, part: Pair) -> tuple[Val, Pair]:
    """Whole quarter turns as an integer, and a part of one as an angle; NaN for infinities."""
    angle = two_product_with(c, part[0], HALF_PI)
    finite = c.compare("fcmp olt", absolute(c, x), c.like(math.inf, x))
    reduced = c.select(finite, angle[0], c.like(math.nan, x))
    turns = c.select(finite, n, c.like(0.0, n))
    integer = c.convert("fptosi", turns, "int64")
    return integer, (reduced, fma(c, part[1], c.like(HALF_PI[0], x), angle[1]))


def _reduce_short(c: Code, x: Val, n: Val) -> Pair:
    """X - n pi/2 to what a result in float32 needs."""
    r = x
    for part in _PARTS_SHORT:
        r = fma(c, n, c.like(-part, x), r)
    return r, c.like(0.0, x)


def _reduce_long(c: Code, x: Val, n: Val) -> Pair:
    """X - n pi/2 to twice the bits of float64, however close to zero."""
    r = fma(c, n, c.like(-_PARTS[0], x), x)  # exact
    second = two_product(c, n, c.like(_PARTS[1], x))
    third = two_product(c, n, c.like(_PARTS[2], x))
    r, low = two_sum(c, r, negative(c, second[0]))
    low = sub(c, low, second[1])
    r, lost = two_sum(c, r, negative(c, third[0]))
    rest = fma(c, n, c.like(-_PARTS[3], x), sub(c, lost, third[1]))
    r, low = two_sum(c, r, low)
    return fast_two_sum(c, r, add(c, low, rest))


def _quadrant(c: Code, x: Val, *, short: bool) -> tuple[Val, Pair]:
    """X as n pi/2 + r: the low bits of n, and r."""
    magic = c.like(MAGIC["float64"], x)
    shifted = fma(c, x, c.like(2 / math.pi, x), magic)
    r = (_reduce_short if short else _reduce_long)(c, x, sub(c, shifted, magic))
    found = [low_bits(c, shifted), *r]
    slots = [c.slot(v.dtype, v.lanes) for v in found]
    for slot, value in zip(slots, found, strict=True):
        c.put(slot, value)
    large = c.compare("fcmp ugt", absolute(c, x), c.like(_LARGE, x))
    some = large if x.lanes == 1 else c.intrinsic("vector.reduce.or", large)
    slow, done = c.label("large"), c.label("reduced")
    c.line(f"br i1 {some.text}, label %{slow}, label %{done}, !prof !0")
    c.start(slow)
    turns, *angle = _call_large(c, x, short=short)
    for slot, value, better in zip(slots, found, (turns, *angle), strict=True):
        c.put(slot, c.select(large, better, value))
    c.block(done)
    n, high, low = (c.get(s, v.dtype, v.lanes) for s, v in zip(slots, found, strict=True))
    return n, (high, low)


def _sine(c: Code, r: Pair, *, short: bool) -> Pair:
    z = mul(c, r[0], r[0])
    cubed = mul(c, z, r[0])
    if short:
        return r[0], mul(c, cubed, polynomial(c, z, SIN32))
    slope = fma(c, z, c.like(-0.5, z), c.like(1.0, z))
    return r[0], fma(c, cubed, polynomial(c, z, SIN64), mul(c, r[1], slope))


def _cosine(c: Code, r: Pair, *, short: bool) -> Pair:
    one = c.like(1.0, r[0])
    z, z_low = two_product(c, r[0], r[0])
    if short:
        rest = fma(c, mul(c, z, z), polynomial(c, z, COS32), one)
        return times(c, z, -0.5), rest
    half = times(c, z, 0.5)
    high = sub(c, one, half)
    low = sub(c, sub(c, one, high), half)
    rest = fma(c, z_low, c.like(-0.5, z), fma(c, negative(c, r[0]), r[1], low))
    return high, fma(c, mul(c, z, z), polynomial(c, z, COS64), rest)


def _choose(c: Code, mask: Val, yes: Pair, no: Pair) -> Pair:
    return c.select(mask, yes[0], no[0]), c.select(mask, yes[1], no[1])


def _bit(c: Code, n: Val, bit: int) -> Val:
    return c.compare("icmp ne", c.op("and", n, c.like(bit, n)), c.like(0, n))


def _reduced(c: Code, x: Val, wide: Val) -> tuple[Val, Pair]:
    """The quadrant of a value that was widened, found once for all functions of it."""
    key = f"quadrant of {x.type} {x.text}"
    if key not in c.shared:
        n, r = _quadrant(c, wide, short=x.dtype == "float32")
        c.shared[key] = (n, *r)
    n, high, low = c.shared[key]
    return n, (high, low)


def _wave(c: Code, x: Val, wide: Val, quarter_turns: int) -> Val:
    """sin(x + quarter_turns * pi/2), where ``wide`` is x in float64."""
    short = x.dtype == "float32"
    n, r = _reduced(c, x, wide)
    n = c.op("add", n, c.like(quarter_turns, n))
    sine, cosine = _sine(c, r, short=short), _cosine(c, r, short=short)
    value = total(c, _choose(c, _bit(c, n, 1), cosine, sine))
    return c.select(_bit(c, n, 2), negative(c, value), value)


def sin(c: Code, x: Val) -> Val:
    """The sine."""
    result = through_double(c, lambda c, wide: _wave(c, x, wide, 0), x)
    return c.select(equals(c, x, 0.0), x, result)  # -0.0 stays


def cos(c: Code, x: Val) -> Val:
    """The cosine."""
    return through_double(c, lambda c, wide: _wave(c, x, wide, 1), x)


def tan(c: Code, x: Val) -> Val:
    """The tangent: sine over cosine, or the negative of its reciprocal."""
    short = x.dtype == "float32"

    def double(c: Code, wide: Val) -> Val:
        n, r = _reduced(c, x, wide)
        sine, cosine = (two_sum(c, *fn(c, r, short=short)) for fn in (_sine, _cosine))
        odd = _bit(c, n, 1)
        flipped = negative(c, cosine[0]), negative(c, cosine[1])
        return total(c, divide(c, _choose(c, odd, flipped, sine), _choose(c, odd, sine, cosine)))

    result = through_double(c, double, x)
    return c.select(equals(c, x, 0.0), x, result)
