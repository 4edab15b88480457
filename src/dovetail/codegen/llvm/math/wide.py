"""Instructions of AVX-512 that do in one step what other processors need several for.

No other instruction set has vectors of sixteen floats. Results are the same, bit for bit.
"""

from __future__ import annotations

from dovetail.codegen.llvm.emit import Code, Val

_MANTISSA = 0b1011  # from 3/4 to 3/2, a NaN for negative numbers


def can_scale(c: Code, x: Val) -> bool:
    """Whether there are instructions for the exponents of these numbers."""
    return x.dtype == "float32" and x.lanes == c.lanes == 16


def scaled(c: Code, value: Val, n: Val) -> Val:
    """Value * 2**n for a whole number n, denormals and all."""
    return _call(c, "scalef", value, (n.type, n.text))


def get_exponent(c: Code, x: Val) -> Val:
    """The exponent as a number: minus infinity for zero, infinity for infinities."""
    return _call(c, "getexp", x)


def get_mantissa(c: Code, x: Val) -> Val:
    """What is left beside a power of two; 1 for infinity, 1 or -1 for a zero."""
    return _call(c, "getmant", x, ("i32", str(_MANTISSA)))


def _call(c: Code, operation: str, x: Val, *more: tuple[str, str]) -> Val:
    name = f"llvm.x86.avx512.mask.{operation}.ps.512"
    rest = [(x.type, "zeroinitializer"), ("i16", "-1"), ("i32", "4")]  # all lanes, rounded as ever
    given = [(x.type, x.text), *more, *rest]
    c.declare(name, x.type, [kind for kind, _ in given])
    text = ", ".join(f"{kind} {value}" for kind, value in given)
    return c.new(f"call {x.type} @{name}({text})", x.dtype, x.lanes)
