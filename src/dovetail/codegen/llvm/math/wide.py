"""Instructions of AVX-512 that do in one step what other processors need several for.

No other instruction set has vectors of sixteen floats. Results are the same, bit for bit.
"""

from __future__ import annotations

from dovetail.codegen.llvm.math.number import Number

_MANTISSA = 0b1011  # from 3/4 to 3/2, a NaN for negative numbers


def can_scale(x: Number) -> bool:
    """Whether there are instructions for the exponents of these numbers."""
    return x.dtype == "float32" and x.lanes == x.c.lanes == 16


def scaled(value: Number, n: Number) -> Number:
    """Value * 2**n for a whole number n, denormals and all."""
    return _call("scalef", value, (n.val.type, n.val.text))


def get_exponent(x: Number) -> Number:
    """The exponent as a number: minus infinity for zero, infinity for infinities."""
    return _call("getexp", x)


def get_mantissa(x: Number) -> Number:
    """What is left beside a power of two; 1 for infinity, 1 or -1 for a zero."""
    return _call("getmant", x, ("i32", str(_MANTISSA)))


def _call(operation: str, x: Number, *more: tuple[str, str]) -> Number:
    name, kind = f"llvm.x86.avx512.mask.{operation}.ps.512", x.val.type
    rest = [(kind, "zeroinitializer"), ("i16", "-1"), ("i32", "4")]  # all lanes, rounded as ever
    return Number(x.c, x.c.call(name, x.dtype, x.lanes, x.val, *more, *rest))
