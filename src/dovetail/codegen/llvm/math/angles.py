"""The quarter turns in angles of any size, modulo 4.

They are the product of the angle and 2/pi, from a table of 2/pi times powers of two, or from the
bits of 2/pi for float32. That is seldom needed, and long: a function of the module does it, one
angle after the other.
"""

from __future__ import annotations

import functools
import math

from dovetail.codegen.llvm.emit import TYPES, Code, Val
from dovetail.codegen.llvm.math.arithmetic import (
    Pair,
    fast_two_sum,
    two_product,
    two_product_with,
    two_sum,
)
from dovetail.codegen.llvm.math.coefficients import HALF_PI
from dovetail.codegen.llvm.math.number import Number, copysign, fma, select

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


def _lookup(table: str, kind: str, place: Number, load: str, dtype: str) -> Number:
    """What a table holds at a place."""
    c = place.c
    pointer = c.new(f"getelementptr {kind}, ptr @{table}, i64 {place.val.text}", "ptr", 1)
    return Number(c, c.new(load.format(f"ptr {pointer.text}"), dtype, 1))


def _in_table(x: Number) -> tuple[Number, list[Number]]:
    """X as m 2**e, where e is one of the table's: m, and the numbers of that row."""
    bits = x.convert("bitcast", "int64")
    exponent = bits.op("lshr", 52) & 0x7FF
    e = exponent - (1023 + 52 - _FIRST)
    row = e >> 4
    row = select(row < 0, 0, row)
    part = e - (row << 4)
    raised = (part + (1023 + 52)) << 52
    mantissa = bits & ((1 << 52) - 1)
    m = (mantissa | raised).convert("bitcast", "float64")
    name, table = "two_over_pi", _reduction_table()
    items = ", ".join(f"double {x.c.const(v, 'float64').text}" for v in table)
    x.c.globals[name] = f"@{name} = internal constant [{len(table)} x double] [{items}]"
    row = row << 2
    places = (row + n for n in range(_WORDS))
    words = [_lookup(name, "double", place, "load double, {}", "float64") for place in places]
    return copysign(m, x), words


def _modulo_four(x: Number) -> Number:
    return fma((x * 0.25).intrinsic("roundeven"), -4.0, x)


def _reduce_long(x: Number) -> tuple[Number, Number, Number]:
    """A float64: the sum of its products with four numbers, and of what their rounding loses."""
    m, words = _in_table(x)
    first, second, third = (two_product(m, word) for word in words[:3])
    terms = [_modulo_four(v) for v in (first[0], first[1], second[0])]
    terms += [second[1], third[0]]
    rest = fma(m, words[3], third[1])
    lead, errors = terms[0], []
    for term in terms[1:]:
        lead, error = two_sum(lead, term)
        errors.append(error)
    n = lead.intrinsic("roundeven")
    lead = lead - n
    for error in errors:
        lead, lost = two_sum(lead, error)
        rest = rest + lost
    return _quarter_turns(x, n, fast_two_sum(lead, rest))


def reduce_large(x: Number) -> list[Number]:
    """X as n pi/2 + r by a call for all lanes: the integer n, and both parts of r."""
    name = f"math.large_angles.{'short' if x.dtype == 'float32' else 'long'}"
    c, kinds = x.c, (x.dtype, _INTEGERS[x.dtype], x.dtype, x.dtype)
    given = (Val("%count", "int64"), *(Val(f"%p{n}", "ptr") for n in range(len(kinds))))

    def write(inside: Code) -> str:
        _each_angle(inside, given[0], [place.text for place in given[1:]], x.dtype)
        return "void"

    c.outline(name, "void", given, write)
    slots = [c.slot(kind, x.lanes) for kind in kinds]
    c.put(slots[0], x.val)
    c.line(f"call void @{name}(i64 {x.lanes}, {', '.join(f'ptr {s}' for s in slots)})")
    found = list(zip(slots, kinds, strict=True))[1:]
    return [Number(c, c.get(slot, kind, x.lanes)) for slot, kind in found]


def _each_angle(c: Code, count: Val, places: list[str], dtype: str) -> None:
    """Reduce angles in memory, one after the other: their turns, and both parts of the rest."""
    counter = c.slot("int64", 1)
    c.put(counter, c.const(0, "int64"))
    again, done = c.label("angle"), c.label("done")
    c.block(again)
    i = c.get(counter, "int64", 1)
    kind = TYPES[_INTEGERS[dtype]]
    here = [c.new(f"getelementptr {kind}, ptr {p}, i64 {i.text}", "ptr", 1).text for p in places]
    angle = Number(c, c.get(here[0], dtype, 1))
    reduced = (_reduce_short if dtype == "float32" else _reduce_long)(angle)
    for place, value in zip(here[1:], reduced, strict=True):
        c.put(place, value.val)
    following = c.op("add", i, c.const(1, "int64"))
    c.put(counter, following)
    more = c.compare("icmp slt", following, count)
    c.line(f"br i1 {more.text}, label %{again}, label %{done}")
    c.start(done)


def _reduce_short(x: Number) -> tuple[Number, Number, Number]:
    """A float32 beyond 2**17: the quarter turns as an integer of 64 bits, 62 of them a fraction."""
    bits = x.convert("bitcast", "int32").convert("zext", "int64")
    e = bits.op("lshr", 23) - _LEAST
    e = select(e < 0, 0, e)
    m = ((bits & 0x7FFFFF) | 0x800000) << (e & 7)
    low, middle, high = (m * word for word in _words(e))
    turns = low.op("lshr", 32) + middle + (high << 32)
    n = (turns + (1 << 61)) >> 62
    rest = (turns - (n << 62)).convert("sitofp", "float64")
    angle = rest * math.ldexp(HALF_PI[0], -62)
    first = angle.convert("fptrunc", "float32")
    second = (angle - first.convert("fpext", "float64")).convert("fptrunc", "float32")
    nothing = x - x  # but for infinity
    return n.convert("trunc", "int32"), first + nothing, second


def _words(e: Number) -> list[Number]:
    """2/pi * 2**(e - 8 - e % 8) modulo 4 as three integers of 32 bits, the least first."""
    bits = (2 << (_BITS + 400)) // _pi(400)
    name = "bits_of_two_over_pi"
    e.c.globals[name] = f"@{name} = internal constant i256 {bits}"
    place = 14 - e.op("lshr", 3)
    words = (
        _lookup(name, "i8", place + n, "load i32, {}, align 1", "int32") for n in range(0, 12, 4)
    )
    return [word.convert("zext", "int64") for word in words]


def _quarter_turns(x: Number, n: Number, part: Pair) -> tuple[Number, Number, Number]:
    """Whole quarter turns as an integer, and a part of one as an angle; NaN for infinities."""
    angle = two_product_with(part[0], HALF_PI)
    finite = abs(x) < math.inf
    reduced = select(finite, angle[0], math.nan)
    turns = select(finite, n, 0.0)
    integer = turns.convert("fptosi", "int64")
    return integer, reduced, fma(part[1], HALF_PI[0], angle[1])
