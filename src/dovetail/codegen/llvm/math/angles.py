"""The quarter turns in angles of any size, modulo 4.

They are the product of the angle and 2/pi, from a table of 2/pi times powers of two, or from the
bits of 2/pi for float32. That is seldom needed, and long: a function of the module does it, one
angle after the other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from dovetail.codegen.llvm.emit import TYPES, Code, Val
from dovetail.codegen.llvm.math.arithmetic import (
    Pair,
    absolute,
    add,
    fast_two_sum,
    fma,
    sub,
    times,
    two_product,
    two_product_with,
    two_sum,
)
from dovetail.codegen.llvm.math.coefficients import HALF_PI

_STEP, _FIRST, _ROWS, _WORDS = 16, 32, 63, 4  # rows are for 2**(16 k - 32)
# For float32 the bits of 2/pi to 2**-198, the least first; products with 96 of them are found.
_BITS, _LEAST = 198, 127 + 23 - 8
_INTEGERS = {"float32": "int32", "float64": "int64"}


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
    pointer = c.new(f"getelementptr double, ptr @{name}, i64 {position.text}", "ptr", 1)
    return c.new(f"load double, ptr {pointer.text}", "float64", 1)


def _in_table(c: Code, x: Val) -> tuple[Val, list[Val]]:
    """X as m 2**e, where e is one of the table's: m, and the numbers of that row."""
    bits = c.convert("bitcast", x, "int64")
    exponent = c.op("and", c.op("lshr", bits, c.like(52, bits)), c.like(0x7FF, bits))
    e = c.op("sub", exponent, c.like(1023 + 52 - _FIRST, bits))
    row = c.op("ashr", e, c.like(4, e))
    row = c.select(c.compare("icmp slt", row, c.like(0, e)), c.like(0, e), row)
    part = c.op("sub", e, c.op("shl", row, c.like(4, e)))
    raised = c.op("shl", c.op("add", part, c.like(1023 + 52, e)), c.like(52, e))
    mantissa = c.op("and", bits, c.like((1 << 52) - 1, bits))
    m = c.convert("bitcast", c.op("or", mantissa, raised), "float64")
    _table(c, "two_over_pi", _reduction_table())
    row = c.op("shl", row, c.like(2, e))
    words = [_lookup(c, "two_over_pi", c.op("add", row, c.like(n, e))) for n in range(_WORDS)]
    return c.intrinsic("copysign", m, x), words


def _modulo_four(c: Code, x: Val) -> Val:
    whole = c.intrinsic("roundeven", times(c, x, 0.25))
    return fma(c, whole, c.like(-4.0, x), x)


def _reduce_long(c: Code, x: Val) -> tuple[Val, Val, Val]:
    """A float64: the sum of its products with four numbers, and of what their rounding loses."""
    m, words = _in_table(c, x)
    first, second, third = (two_product(c, m, word) for word in words[:3])
    terms = [_modulo_four(c, v) for v in (first[0], first[1], second[0])]
    terms += [second[1], third[0]]
    rest = fma(c, m, words[3], third[1])
    lead, errors = terms[0], []
    for term in terms[1:]:
        lead, error = two_sum(c, lead, term)
        errors.append(error)
    n = c.intrinsic("roundeven", lead)
    lead = sub(c, lead, n)
    for error in errors:
        lead, lost = two_sum(c, lead, error)
        rest = add(c, rest, lost)
    return _turned(c, x, n, fast_two_sum(c, lead, rest))


def reduce_large(c: Code, x: Val) -> list[Val]:
    """X as n pi/2 + r by a call for all lanes: the integer n, and both parts of r."""
    name = f"math.large_angles.{'short' if x.dtype == 'float32' else 'long'}"
    kinds = (x.dtype, _INTEGERS[x.dtype], x.dtype, x.dtype)
    given = (Val("%count", "int64"), *(Val(f"%p{n}", "ptr") for n in range(len(kinds))))

    def write(inside: Code) -> str:
        _each_angle(inside, given[0], [place.text for place in given[1:]], x.dtype)
        return "void"

    c.outline(name, "void", given, write)
    slots = [c.slot(kind, x.lanes) for kind in kinds]
    c.put(slots[0], x)
    c.line(f"call void @{name}(i64 {x.lanes}, {', '.join(f'ptr {s}' for s in slots)})")
    return [c.get(s, kind, x.lanes) for s, kind in list(zip(slots, kinds, strict=True))[1:]]


def _each_angle(c: Code, count: Val, places: list[str], dtype: str) -> None:
    """Reduce angles in memory, one after the other: their turns, and both parts of the rest."""
    counter = c.slot("int64", 1)
    c.put(counter, c.const(0, "int64"))
    again, done = c.label("angle"), c.label("done")
    c.block(again)
    i = c.get(counter, "int64", 1)
    kind = TYPES[_INTEGERS[dtype]]
    here = [c.new(f"getelementptr {kind}, ptr {p}, i64 {i.text}", "ptr", 1).text for p in places]
    reduced = (_reduce_short if dtype == "float32" else _reduce_long)(c, c.get(here[0], dtype, 1))
    for place, value in zip(here[1:], reduced, strict=True):
        c.put(place, value)
    following = c.op("add", i, c.const(1, "int64"))
    c.put(counter, following)
    more = c.compare("icmp slt", following, count)
    c.line(f"br i1 {more.text}, label %{again}, label %{done}")
    c.start(done)


def _reduce_short(c: Code, x: Val) -> tuple[Val, Val, Val]:
    """A float32 beyond 2**17: the quarter turns as an integer of 64 bits, 62 of them a fraction."""
    bits = c.convert("zext", c.convert("bitcast", x, "int32"), "int64")
    e = c.op("sub", c.op("lshr", bits, c.like(23, bits)), c.like(_LEAST, bits))
    e = c.select(c.compare("icmp slt", e, c.like(0, e)), c.like(0, e), e)
    m = c.op("or", c.op("and", bits, c.like(0x7FFFFF, bits)), c.like(0x800000, bits))
    m = c.op("shl", m, c.op("and", e, c.like(7, e)))
    low, middle, high = (c.op("mul", m, word) for word in _words(c, e))
    turns = c.op("add", c.op("lshr", low, c.like(32, low)), middle)
    turns = c.op("add", turns, c.op("shl", high, c.like(32, high)))
    n = c.op("ashr", c.op("add", turns, c.like(1 << 61, turns)), c.like(62, turns))
    rest = c.convert("sitofp", c.op("sub", turns, c.op("shl", n, c.like(62, n))), "float64")
    angle = times(c, rest, math.ldexp(HALF_PI[0], -62))
    first = c.convert("fptrunc", angle, "float32")
    second = c.convert("fptrunc", sub(c, angle, c.convert("fpext", first, "float64")), "float32")
    nothing = sub(c, x, x)  # but for infinity
    return c.convert("trunc", n, "int32"), add(c, first, nothing), second


def _words(c: Code, e: Val) -> list[Val]:
    """2/pi * 2**(e - 8 - e % 8) modulo 4 as three integers of 32 bits, the least first."""
    bits = (2 << (_BITS + 400)) // _pi(400)
    c.globals["bits_of_two_over_pi"] = f"@bits_of_two_over_pi = internal constant i256 {bits}"
    place = c.op("sub", c.like(14, e), c.op("lshr", e, c.like(3, e)))
    words = []
    for n in range(0, 12, 4):
        here = c.op("add", place, c.like(n, e))
        p = c.new(f"getelementptr i8, ptr @bits_of_two_over_pi, i64 {here.text}", "ptr", 1)
        word = c.new(f"load i32, ptr {p.text}, align 1", "int32", 1)
        words.append(c.convert("zext", word, "int64"))
    return words


def _turned(c: Code, x: Val, n: Val, part: Pair) -> tuple[Val, Val, Val]:
    """Whole quarter turns as an integer, and a part of one as an angle; NaN for infinities."""
    angle = two_product_with(c, part[0], HALF_PI)
    finite = c.compare("fcmp olt", absolute(c, x), c.like(math.inf, x))
    reduced = c.select(finite, angle[0], c.like(math.nan, x))
    turns = c.select(finite, n, c.like(0.0, n))
    integer = c.convert("fptosi", turns, "int64")
    return integer, reduced, fma(c, part[1], c.like(HALF_PI[0], x), angle[1])
