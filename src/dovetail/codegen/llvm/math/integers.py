"""Division and powers of integers."""

from __future__ import annotations

from dovetail.codegen.llvm.emit import Code, Val


def _is_plain(divisor: Val) -> bool:
    """Whether a divisor is a constant with which nothing can go wrong."""
    number = divisor.text.rpartition(" ")[2].rstrip(")")
    return not divisor.text.startswith("%") and number not in ("0", "-1")


def _divided(c: Code, left: Val, right: Val) -> tuple[Val, Val]:
    """The quotient and what is left; by -1 it wraps, by 0 it is anything."""
    left, right = c.alike(left, right)
    unsigned = left.dtype == "uint8"
    names = ("udiv", "urem") if unsigned else ("sdiv", "srem")
    if _is_plain(right):
        return c.op(names[0], left, right), c.op(names[1], left, right)
    zero = c.like(0, right)
    none = c.compare("icmp eq", right, zero)
    back = c.compare("icmp eq", right, c.like(-1, right))
    risky = none if unsigned else c.op("or", none, back)
    safe = c.select(risky, c.like(1, right), right)
    quotient, rest = c.op(names[0], left, safe), c.op(names[1], left, safe)
    if unsigned:
        return quotient, rest
    return c.select(back, c.op("sub", zero, left), quotient), rest


def division(c: Code, left: Val, right: Val) -> Val:
    """Rounded towards zero."""
    return _divided(c, left, right)[0]


def floor_division(c: Code, left: Val, right: Val) -> Val:
    """Rounded towards minus infinity."""
    quotient, rest = _divided(c, left, right)
    if left.dtype == "uint8":
        return quotient
    less = c.op("sub", quotient, c.like(1, quotient))
    return c.select(_is_wrong(c, rest, right), less, quotient)


def floor_modulo(c: Code, left: Val, right: Val) -> Val:
    """What floor division leaves, with the divisor's sign."""
    _, rest = _divided(c, left, right)
    if left.dtype == "uint8":
        return rest
    return c.select(_is_wrong(c, rest, right), c.op("add", rest, right), rest)


def small_division(c: Code, op: str, left: Val, right: Val) -> Val:
    """A quotient or a rest of numbers known to be below 2**31, the divisor not zero.

    That is known of the axis's points. Lanes past its end hold other numbers, and are divided too.
    """
    left, right = c.alike(left, right)
    name = "urem" if op == "floormod" else "udiv"
    divisor = _narrow(c, right)
    if not _is_plain(divisor):
        divisor = c.intrinsic("umax", divisor, c.like(1, divisor))
    result = c.op(name, _narrow(c, left), divisor)
    return c.convert("zext", result, "int64")


def _narrow(c: Code, value: Val) -> Val:
    if value.text.startswith("%"):
        return c.convert("trunc", value, "int32")
    return Val(value.text.replace("i64", "i32"), "int32", value.lanes)


def _is_wrong(c: Code, rest: Val, right: Val) -> Val:
    """Whether a remainder is not zero and has another sign than the divisor."""
    some = c.compare("icmp ne", rest, c.like(0, rest))
    return c.op("and", some, c.compare("icmp slt", c.op("xor", rest, right), c.like(0, rest)))


def power(c: Code, base: Val, exponent: Val) -> Val:
    """By squaring; it wraps. With a negative exponent all but 1 and -1 give 0."""
    base, exponent = c.alike(base, exponent)
    one, zero = c.like(1, base), c.like(0, base)
    slots = [c.slot(base.dtype, base.lanes) for _ in range(3)]
    for slot, value in zip(slots, (one, base, exponent), strict=True):
        c.put(slot, value)
    again, body, done = c.label("again"), c.label("square"), c.label("power")
    c.block(again)
    left = c.get(slots[2], base.dtype, base.lanes)
    more = c.compare("icmp ugt", left, zero)
    some = more if base.lanes == 1 else c.intrinsic("vector.reduce.or", more)
    c.line(f"br i1 {some.text}, label %{body}, label %{done}")
    c.start(body)
    result, square = (c.get(slot, base.dtype, base.lanes) for slot in slots[:2])
    odd = c.compare("icmp ne", c.op("and", left, one), zero)
    c.put(slots[0], c.select(odd, c.op("mul", result, square), result))
    c.put(slots[1], c.op("mul", square, square))
    c.put(slots[2], c.op("lshr", left, one))
    c.line(f"br label %{again}")
    c.start(done)
    result = c.get(slots[0], base.dtype, base.lanes)
    if base.dtype == "uint8":
        return result
    # A negative exponent was taken as a large one, of the same parity: 1 and -1 do not mind.
    unit = c.op("or", c.compare("icmp eq", base, one), c.compare("icmp eq", base, c.like(-1, base)))
    lost = c.op("and", c.compare("icmp slt", exponent, zero), c.op("xor", unit, c.like(True, unit)))
    return c.select(lost, zero, result)
