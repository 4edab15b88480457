"""Arithmetic, comparisons and logic of two operands."""

from __future__ import annotations

from typing import Any

from dovetail.ir.call import OpCall, Ref
from dovetail.ir.dtypes import FLOATS
from dovetail.ir.real import Real
from dovetail.lower.expression import Builder
from dovetail.lower.pointwise import (
    Element,
    check_number,
    element,
    float_type,
    lower_elements,
    one,
    promoted,
    simple,
)
from dovetail.lower.rules import (
    Lower,
    Refused,
    argument,
    compute,
    is_float,
    number,
    rule,
    scalar,
    tensor,
)
from dovetail.lower.values import Pointwise


@rule("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Scalar", "rsub.Tensor")
def lower_add(lower: Lower, call: OpCall) -> Pointwise:
    """Self ± alpha * other."""
    alpha = argument(call, 2, "alpha", 1)
    if not scalar(alpha):
        raise Refused("alpha is no number")
    dtype = compute(tensor(call.output).dtype)
    op = call.op.split(".")[1]
    if dtype == "bool" and (op != "add" or (alpha is not True and alpha != 1)):
        raise Refused("not for bool")
    check_number(alpha, dtype)

    def body(b: Builder, dtype: str, x: str, y: str) -> str:
        if op == "rsub":
            x, y = y, x
        if alpha != 1:
            y = b.apply("mul", dtype, y, element(b, alpha, (), dtype))
        return b.apply("add" if op == "add" else "sub", dtype, x, y)

    if op == "rsub" and alpha != 1:
        raise Refused("alpha")
    return lower_elements(lower, call, call.args[:2], dtype, body)


@rule("mul.Tensor", "mul.Scalar")
def lower_mul(lower: Lower, call: OpCall) -> Pointwise:
    """Products, "and" for bool."""
    dtype = compute(tensor(call.output).dtype)
    return lower_elements(lower, call, call.args[:2], dtype, simple("mul"))


@rule("div.Tensor", "div.Scalar", "true_divide.Tensor")
def lower_div(lower: Lower, call: OpCall) -> Pointwise:
    """True division: always of floating-point numbers."""
    return lower_elements(lower, call, call.args[:2], float_type(call), simple("div"))


@rule("div.Tensor_mode", "div.Scalar_mode", "floor_divide.default")
def lower_div_mode(lower: Lower, call: OpCall) -> Pointwise:
    """Division, rounded."""
    mode = argument(call, 2, "rounding_mode") if "mode" in call.op else "floor"
    dtype = compute(tensor(call.output).dtype)
    if dtype in FLOATS:
        fn = {None: simple("div"), "trunc": _trunc_divide, "floor": _floor_divide}[mode]
        return lower_elements(lower, call, call.args[:2], dtype, fn)
    fn = _checked(call, dtype, simple("floordiv" if mode == "floor" else "div_int"))
    return lower_elements(lower, call, call.args[:2], dtype, fn)


def _checked(call: OpCall, dtype: str, fn: Element) -> Element:
    """Integer division, which by zero raises as in eager."""
    divisor = call.args[1]
    if dtype == "bool" or (number(divisor) and divisor == 0):
        raise Refused("not for bool, nor by zero")
    if number(divisor):
        return fn

    def checked(b: Builder, dtype: str, x: str, y: str) -> str:
        wide = b.cast(y, "int64")
        wide = b.apply("check_divisor", "int64", wide, b.const(1, "int64"), b.mask_or_true())
        return fn(b, dtype, x, b.cast(wide, dtype))

    return checked


def _trunc_divide(b: Builder, dtype: str, x: str, y: str) -> str:
    return b.apply("trunc", dtype, b.apply("div", dtype, x, y))


def _floor_divide(b: Builder, dtype: str, x: str, y: str) -> str:
    """Python's way, as ATen: from the remainder, so that rounding never skips an integer."""
    zero = b.const(0, dtype)
    plain, rest = b.apply("div", dtype, x, y), b.apply("fmod", dtype, x, y)
    whole = b.apply("div", dtype, b.apply("sub", dtype, x, rest), y)
    less = b.apply("sub", dtype, whole, one(b, dtype))
    whole = b.apply("where", dtype, _wrong_side(b, dtype, rest, y), less, whole)
    floor = b.apply("floor", dtype, whole)
    above = b.apply("gt", "bool", b.apply("sub", dtype, whole, floor), b.const(0.5, dtype))
    floor = b.apply("where", dtype, above, b.apply("add", dtype, floor, one(b, dtype)), floor)
    signed = b.apply("copysign", dtype, zero, plain)
    floor = b.apply("where", dtype, b.apply("eq", "bool", whole, zero), signed, floor)
    return b.apply("where", dtype, b.apply("eq", "bool", y, zero), plain, floor)


def _wrong_side(b: Builder, dtype: str, rest: str, y: str) -> str:
    """Whether a remainder is not zero and has another sign than the divisor."""
    zero = b.const(0, dtype)
    signs = b.apply("lt", "bool", y, zero), b.apply("lt", "bool", rest, zero)
    some = b.apply("ne", "bool", rest, zero)
    return b.apply("and", "bool", some, b.apply("xor", "bool", *signs))


@rule("fmod.Tensor", "fmod.Scalar", "remainder.Tensor", "remainder.Scalar")
def lower_remainder(lower: Lower, call: OpCall) -> Pointwise:
    """What division leaves: with the sign of the dividend (fmod) or the divisor (remainder)."""
    dtype = compute(tensor(call.output).dtype)
    truncated = "fmod" in call.op
    if dtype in FLOATS:
        fn = simple("fmod") if truncated else _remainder
        stored = tensor(call.output).dtype
        return lower_elements(lower, call, call.args[:2], dtype, fn, stored)
    fn = _checked(call, dtype, _integer_rest if truncated else simple("floormod"))
    return lower_elements(lower, call, call.args[:2], dtype, fn)


def _remainder(b: Builder, dtype: str, x: str, y: str) -> str:
    rest = b.apply("fmod", dtype, x, y)
    moved = b.apply("add", dtype, rest, y)
    return b.apply("where", dtype, _wrong_side(b, dtype, rest, y), moved, rest)


def _integer_rest(b: Builder, dtype: str, x: str, y: str) -> str:
    whole = b.apply("mul", dtype, b.apply("div_int", dtype, x, y), y)
    return b.apply("sub", dtype, x, whole)


@rule("maximum.default", "minimum.default")
def lower_extreme(lower: Lower, call: OpCall) -> Pointwise:
    """The larger or smaller; a NaN wins."""
    stored = tensor(call.output).dtype
    op = "max" if "maximum" in call.op else "min"
    return lower_elements(lower, call, call.args[:2], compute(stored), simple(op), stored=stored)


@rule(
    *(
        f"{op}.{kind}"
        for op in ("eq", "ne", "lt", "le", "gt", "ge")
        for kind in ("Tensor", "Scalar")
    )
)
def lower_compare(lower: Lower, call: OpCall) -> Pointwise:
    """Comparisons in the operands' common type."""
    stored = promoted(call.args[:2])
    for arg in call.args[:2]:
        if not is_float(stored):
            check_number(arg, stored)
        elif isinstance(arg, float | Real) and not is_float(promoted(_tensors(call))):
            raise Refused("a type that depends on PyTorch's default")
    op = simple(call.op.split(".")[1])

    def body(b: Builder, dtype: str, x: str, y: str) -> str:
        return op(b, "bool", x, y)

    return lower_elements(lower, call, call.args[:2], compute(stored), body, stored=stored)


def _tensors(call: OpCall) -> tuple[Any, ...]:
    return tuple(arg for arg in call.args[:2] if isinstance(arg, Ref))


@rule(
    *(f"bitwise_{op}.{kind}" for op in ("and", "or", "xor") for kind in ("Tensor", "Scalar")),
    *(f"logical_{op}.default" for op in ("and", "or", "xor")),
)
def lower_bits(lower: Lower, call: OpCall) -> Pointwise:
    """Bits of integers, or truth values."""
    op = call.op.split(".")[1].split("_")[1]
    dtype = "bool" if "logical" in call.op else compute(tensor(call.output).dtype)
    return lower_elements(lower, call, call.args[:2], dtype, simple(op))
