"""Kernel IR's operations, one LLVM sequence each; the same code for scalars and vectors."""

from __future__ import annotations

import functools
from collections.abc import Callable

from dovetail.codegen.llvm import math
from dovetail.codegen.llvm.emit import Code, Val
from dovetail.ir.dtypes import DTYPES, FLOATS, UNSIGNED
from dovetail.ir.ops import CHECKS, COMPARISONS

_FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "rem": "frem"}
_INT_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_ROUNDINGS = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven"}
_NANS = ("0x7FF8", "0xFFF8")  # how their bits begin in a literal


def apply(c: Code, op: str, dtype: str, args: tuple[Val, ...]) -> Val:
    """The LLVM for one operation."""
    if op == "cast":
        return cast(c, args[0], dtype)
    if op in math.FUNCTIONS:
        return math.FUNCTIONS[op](c, *args)
    rule = _RULES.get(op)
    if rule is not None:
        return rule(c, *args)
    if op in COMPARISONS:
        return _compare(c, op, *args)
    return _binary(c, op, *args)


@functools.cache
def has(op: str) -> bool:
    """Whether there is LLVM for an operation; others are expanded."""
    known = (_RULES, math.FUNCTIONS, _FLOAT_BINARY, _INT_BINARY, COMPARISONS, CHECKS, ("cast",))
    return any(op in names for names in known)


def _bits(dtype: str) -> int:
    """How wide a value is."""
    return 1 if dtype == "bool" else DTYPES[dtype].bits


def is_float(value: Val) -> bool:
    """Whether a value is a floating-point number."""
    return value.dtype in FLOATS


def _binary(c: Code, op: str, left: Val, right: Val) -> Val:
    if is_float(left):
        return c.op(_FLOAT_BINARY[op], left, right)
    if left.dtype == "bool" and op in ("add", "mul"):
        return c.op("or" if op == "add" else "and", left, right)
    return c.op(_INT_BINARY[op], left, right)


def _compare(c: Code, op: str, left: Val, right: Val) -> Val:
    if is_float(left):
        return c.compare(f"fcmp {'une' if op == 'ne' else f'o{op}'}", left, right)
    signed = "u" if left.dtype in UNSIGNED else "s"
    return c.compare(f"icmp {op if op in ('eq', 'ne') else signed + op}", left, right)


def cast(c: Code, value: Val, dtype: str) -> Val:
    """A conversion with C's rules, as ATen does it."""
    if value.dtype == dtype:
        return value
    if dtype == "bool":
        kind = "fcmp une" if is_float(value) else "icmp ne"
        return c.compare(kind, value, c.like(0, value))
    if is_float(value):
        return _from_float(c, value, dtype)
    unsigned = value.dtype in UNSIGNED
    if dtype in FLOATS:
        return c.convert("uitofp" if unsigned else "sitofp", value, dtype)
    have, want = _bits(value.dtype), _bits(dtype)
    if have == want:
        return Val(value.text, dtype, value.lanes)
    return c.convert(("zext" if unsigned else "sext") if want > have else "trunc", value, dtype)


def _from_float(c: Code, value: Val, dtype: str) -> Val:
    if dtype in FLOATS:
        return c.convert("fpext" if dtype == "float64" else "fptrunc", value, dtype)
    # Out of range is undefined in C; the machine's own conversion is what eager shows then.
    wide = "int64" if dtype == "int64" else "int32"
    number = c.freeze(c.convert("fptosi", value, wide))
    return number if dtype == wide else c.convert("trunc", number, dtype)


def _negative(c: Code, x: Val) -> Val:
    if is_float(x):
        return c.new(f"fneg {x.type} {x.text}", x.dtype, x.lanes)
    return c.op("sub", c.like(0, x), x)


def _absolute(c: Code, x: Val) -> Val:
    if is_float(x):
        return c.intrinsic("fabs", x)
    if x.dtype == "uint8":
        return x
    return c.select(c.compare("icmp slt", x, c.like(0, x)), _negative(c, x), x)


def _inverse(c: Code, x: Val) -> Val:
    return c.op("xor", x, c.like(True if x.dtype == "bool" else -1, x))


def _sign(c: Code, x: Val) -> Val:
    """-1, 0 or 1; zero for a NaN, as ATen's sign."""
    greater, less = _compare(c, "gt", x, c.like(0, x)), _compare(c, "lt", x, c.like(0, x))
    value = c.select(greater, c.like(1, x), c.like(0, x))
    return c.select(less, c.like(-1, x), value)


def minimum(c: Code, left: Val, right: Val) -> Val:
    """The smaller; a NaN wins."""
    return _extreme(c, "lt", left, right)


def maximum(c: Code, left: Val, right: Val) -> Val:
    """The larger; a NaN wins."""
    return _extreme(c, "gt", left, right)


def _extreme(c: Code, op: str, left: Val, right: Val) -> Val:
    if not is_float(left):
        return c.select(_compare(c, op, left, right), left, right)
    if is_number(left):
        left, right = right, left
    # Where one side is a NaN the comparison is false: that leaves the second, x86's own choice.
    better = c.select(_compare(c, op, right, left), right, left)
    if is_number(right):
        return better
    return c.select(_is_nan(c, right), right, better)


def is_number(value: Val) -> bool:
    """Whether a value is a constant, and no NaN."""
    return not value.text.startswith("%") and not any(n in value.text for n in _NANS)


def _where(c: Code, mask: Val, yes: Val, no: Val) -> Val:
    return c.select(mask, yes, no)


def _copysign(c: Code, size: Val, sign: Val) -> Val:
    return c.intrinsic("copysign", size, sign)


def _shift(name: str) -> Callable[[Code, Val, Val], Val]:
    def rule(c: Code, x: Val, amount: Val) -> Val:
        """Shift; by the width or more (or a negative number), as ATen defines it."""
        bits = _bits(x.dtype)
        kind = "shl" if name == "shl" else ("lshr" if x.dtype == "uint8" else "ashr")
        inside = c.compare("icmp ult", amount, c.like(bits, amount))
        safe = c.select(inside, amount, c.like(0, amount))
        shifted = c.op(kind, x, safe)
        beyond = c.like(0, x) if kind != "ashr" else c.op("ashr", x, c.like(bits - 1, x))
        return c.select(inside, shifted, beyond)

    return rule


def round_bfloat16(c: Code, x: Val) -> Val:
    """A float32 rounded to bfloat16's precision: to nearest even, a NaN stays one."""
    bits = c.convert("bitcast", x, "int32")
    odd = c.op("and", c.op("lshr", bits, c.like(16, bits)), c.like(1, bits))
    rounded = c.op("add", bits, c.op("add", odd, c.like(0x7FFF, bits)))
    rounded = c.op("and", rounded, c.like(-0x10000, bits))
    value = c.convert("bitcast", rounded, "float32")
    broken = c.compare("fcmp uno", x, c.like(0.0, x))
    return c.select(broken, c.like(float("nan"), x), value)


def _round_half(c: Code, x: Val) -> Val:
    return c.convert("fpext", c.convert("fptrunc", x, "float16"), "float32")


def _is_nan(c: Code, x: Val) -> Val:
    return c.compare("fcmp uno", x, c.like(0.0, x))


def _rounding(name: str) -> Callable[[Code, Val], Val]:
    return lambda c, x: c.intrinsic(_ROUNDINGS[name], x)


_RULES: dict[str, Callable[..., Val]] = {
    **{name: _rounding(name) for name in _ROUNDINGS},
    "neg": _negative,
    "abs": _absolute,
    "not": _inverse,
    "sign": _sign,
    "sqrt": lambda c, x: c.intrinsic("sqrt", x),
    "isnan": _is_nan,
    "min": minimum,
    "max": maximum,
    "where": _where,
    **math.DIVISIONS,
    "fma": lambda c, a, b, d: c.intrinsic("fma", a, b, d),
    "copysign": _copysign,
    "shl": _shift("shl"),
    "shr": _shift("shr"),
    "round_bfloat16": round_bfloat16,
    "round_half": _round_half,
    "from_bits": lambda c, x: c.convert("bitcast", x, "float64"),
}
