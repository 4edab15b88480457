"""Division and powers of integers."""

from __future__ import annotations

from dovetail.codegen.llvm.emit import Val
from dovetail.codegen.llvm.math.arithmetic import alike
from dovetail.codegen.llvm.math.number import Number, select, while_any


def _is_plain(divisor: Number) -> bool:
    """Whether a divisor is a constant with which nothing can go wrong."""
    text = divisor.val.text
    return not text.startswith("%") and text.rpartition(" ")[2].rstrip(")") not in ("0", "-1")


def _divided(left: Number, right: Number) -> tuple[Number, Number]:
    """The quotient and what is left; by -1 it wraps, by 0 it is anything."""
    left, right = alike(left, right)
    unsigned = left.dtype == "uint8"
    names = ("udiv", "urem") if unsigned else ("sdiv", "srem")
    if _is_plain(right):
        return left.op(names[0], right), left.op(names[1], right)
    none, back = right.compare("icmp eq", 0), right.compare("icmp eq", -1)
    safe = select(none if unsigned else none | back, 1, right)
    quotient, rest = left.op(names[0], safe), left.op(names[1], safe)
    if unsigned:
        return quotient, rest
    return select(back, 0 - left, quotient), rest


def division(left: Number, right: Number) -> Number:
    """Rounded towards zero."""
    return _divided(left, right)[0]


def floor_division(left: Number, right: Number) -> Number:
    """Rounded towards minus infinity."""
    quotient, rest = _divided(left, right)
    if left.dtype == "uint8":
        return quotient
    less = quotient - 1
    return select(_is_wrong(rest, right), less, quotient)


def floor_modulo(left: Number, right: Number) -> Number:
    """What floor division leaves, with the divisor's sign."""
    _, rest = _divided(left, right)
    if left.dtype == "uint8":
        return rest
    return select(_is_wrong(rest, right), rest + right, rest)


def small_division(op: str, left: Number, right: Number) -> Number:
    """A quotient or a rest of numbers known to be below 2**31, the divisor not zero.

    That is known of the axis's points. Lanes past its end hold other numbers, and are divided too.
    """
    left, right = alike(left, right)
    divisor = _narrow(right)
    if not _is_plain(divisor):
        divisor = divisor.intrinsic("umax", 1)
    result = _narrow(left).op("urem" if op == "floormod" else "udiv", divisor)
    return result.convert("zext", "int64")


def _narrow(value: Number) -> Number:
    text = value.val.text
    if text.startswith("%"):
        return value.convert("trunc", "int32")
    return Number(value.c, Val(text.replace("i64", "i32"), "int32", value.lanes))


def _is_wrong(rest: Number, right: Number) -> Number:
    """Whether a remainder is not zero and has another sign than the divisor."""
    return rest.compare("icmp ne", 0) & ((rest ^ right) < 0)


def power(base: Number, exponent: Number) -> Number:
    """By squaring; it wraps. With a negative exponent all but 1 and -1 give 0."""
    base, exponent = alike(base, exponent)

    def step(_: Number, result: Number, square: Number, left: Number) -> list[Number]:
        odd = (left & 1).compare("icmp ne", 0)
        return [select(odd, result * square, result), square * square, left.op("lshr", 1)]

    start = [base.like(1), base, exponent]
    result = while_any(start, lambda _, __, left: left.compare("icmp ugt", 0), step)
    if base.dtype == "uint8":
        return result
    # A negative exponent was taken as a large one, of the same parity: 1 and -1 do not mind.
    unit = base.compare("icmp eq", 1) | base.compare("icmp eq", -1)
    return select((exponent < 0) & (unit ^ True), 0, result)
