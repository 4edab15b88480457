"""Elementwise operations of ATen."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dovetail.ir.affine import Affine
from dovetail.ir.call import OpCall, Ref
from dovetail.ir.dtypes import DTYPES, FLOATS, INTEGERS, LIMITS, NUMBERS
from dovetail.ir.real import Real
from dovetail.ir.size import Dim, Size
from dovetail.lower.expression import Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.rules import (
    Lower,
    Refused,
    argument,
    compute,
    is_float,
    rule,
    scalar,
    tensor,
)
from dovetail.lower.values import Pointwise, Value, broadcast_index

# An element's expression: builder, computing type, operands (already in that type).
Element = Callable[..., str]
# What rounds a float32 to half precision.
ROUNDING = {name: row.rounding for name, row in DTYPES.items() if row.rounding}
_ORDER = tuple(DTYPES)  # of promotion


def category(dtype: str) -> int:
    """0 for bool, 1 for integers, 2 for floating point."""
    return 2 if is_float(dtype) else 0 if dtype == "bool" else 1


def promoted(operands: tuple[Any, ...]) -> str:
    """ATen's common type: tensors with dimensions, then without, then Python numbers."""
    groups: list[list[str]] = [[], [], []]
    for operand in operands:
        if isinstance(operand, Ref):
            desc = tensor(operand.desc)
            groups[0 if desc.shape else 1].append(desc.dtype)
        else:
            kind = type(operand)
            real = kind in (float, Real)
            groups[2].append("bool" if kind is bool else "float32" if real else "int64")
    result = ""
    for group in groups:
        for dtype in group:
            best = _join([d for d in group if category(d) == category(dtype)])
            if not result or category(best) > category(result):
                result = _join(group)
    return result


def _join(dtypes: list[str]) -> str:
    best = dtypes[0]
    for dtype in dtypes[1:]:
        if {best, dtype} == {"float16", "bfloat16"}:
            best = "float32"
        elif {best, dtype} in ({"uint8", "int8"},):
            best = "int16"
        elif _ORDER.index(dtype) > _ORDER.index(best):
            best = dtype
    return best


def operand(lower: Lower, arg: Any) -> Value | float | int | bool | Size | Real:
    """A tensor operand's value, or a number."""
    if isinstance(arg, Ref):
        return lower.value(arg)
    if scalar(arg):
        return arg  # type: ignore[no-any-return]
    raise Refused(f"an operand {arg!r}")


def element(b: Builder, given: Any, index: Indices, dtype: str, stored: str = "") -> str:
    """An operand's element in a computing type, converted to ``stored`` first where that is given.

    Conversion to half precision rounds; what is of that type already needs none.
    """
    if isinstance(given, Value):
        x = b.cast(b.read(given, broadcast_index(index, given.shape)), dtype)
    elif isinstance(given, Size):
        x = b.cast(b.position(Affine(given)), dtype)
    elif isinstance(given, Real):
        x = b.cast(b.apply("from_bits", "float64", b.position(Affine(given.bits))), dtype)
    else:
        x = b.const(given, dtype)
    own = given.dtype if isinstance(given, Value) else ""
    return x if own == stored else rounded(b, x, stored)


def rounded(b: Builder, x: str, stored: str) -> str:
    """An element as it is when it has been stored in a type and read back."""
    return b.apply(ROUNDING[stored], "float32", x) if stored in ROUNDING else x


def check_number(value: Any, dtype: str) -> None:
    """Refuse numbers that a type does not hold: eager raises, or wraps them."""
    if isinstance(value, Real) and dtype not in FLOATS and dtype not in ROUNDING:
        raise Refused(f"{value} may not fit {dtype}")
    if isinstance(value, bool) or not isinstance(value, int | float) or dtype == "bool":
        return
    if dtype in INTEGERS:
        low, high = LIMITS[dtype]
        if value != value // 1 or not low <= value <= high:
            raise Refused(f"{value} does not fit {dtype}")
    elif math.isfinite(value) and abs(value) > DTYPES[dtype].largest:
        raise Refused(f"{value} does not fit {dtype}")


def lower_elements(
    lower: Lower,
    call: OpCall,
    args: tuple[Any, ...],
    dtype: str,
    fn: Element,
    stored: str = "",
) -> Pointwise:
    """A pointwise value that applies ``fn`` to its operands in ``dtype``.

    ``stored`` is a type that they are converted to first, where that makes a difference.
    """
    operands = [operand(lower, a) for a in args]
    result = compute(tensor(call.output).dtype)
    for given in operands:
        if dtype in INTEGERS:
            check_number(given, dtype)

    def body(b: Builder, index: Indices) -> str:
        values = [element(b, o, index, dtype, stored) for o in operands]
        return b.cast(fn(b, dtype, *values), result)

    reads = tuple(o for o in operands if isinstance(o, Value))
    return lower.pointwise(call, body, reads, function=f"{call.op} {dtype}")


# ---- one operand -------------------------------------------------------------------------------


def simple(op: str) -> Element:
    """The operation of kernel IR with that name."""
    return lambda b, dtype, *args: b.apply(op, dtype, *args)


def one(b: Builder, dtype: str) -> str:
    """1 in a type."""
    return b.const(1, dtype)


def relu(b: Builder, dtype: str, x: str) -> str:
    """max(x, 0); a NaN stays."""
    return b.apply("max", dtype, x, b.const(0, dtype))


# Of integers those that round return their operand; of bool, where eager has them, all do.
_OF_NUMBERS = {"relu": relu, **{name: simple(name) for name in ("neg", "abs", "sign")}}
_OF_FLOATS = {name: simple(name) for name in ("floor", "ceil", "trunc", "round")}


@rule(*(f"{name}.default" for name in (*_OF_NUMBERS, *_OF_FLOATS)))
def lower_in_own_type(lower: Lower, call: OpCall) -> Pointwise:
    """A function whose result has its operand's type."""
    name, dtype = call.op.split(".")[1], compute(tensor(call.output).dtype)
    given = _OF_FLOATS if dtype in FLOATS else {}
    functions = given if dtype == "bool" else {**given, **_OF_NUMBERS}
    return lower_elements(lower, call, call.args[:1], dtype, functions.get(name, _identity))


def _identity(b: Builder, dtype: str, x: str) -> str:
    return x


@rule("frac.default")
def lower_frac(lower: Lower, call: OpCall) -> Pointwise:
    """X - trunc(x), floating point only."""

    def frac(b: Builder, dtype: str, x: str) -> str:
        return b.apply("sub", dtype, x, b.apply("trunc", dtype, x))

    return lower_elements(lower, call, call.args[:1], float_type(call), frac)


def float_type(call: OpCall) -> str:
    """The computing type of a result that must be floating point."""
    dtype = compute(tensor(call.output).dtype)
    if dtype not in FLOATS:
        raise Refused(f"a result of {dtype}")
    return dtype


@rule("bitwise_not.default", "logical_not.default")
def lower_not(lower: Lower, call: OpCall) -> Pointwise:
    """Bits of integers, or truth."""
    dtype = compute(tensor(call.output).dtype)
    return lower_elements(lower, call, call.args[:1], dtype, simple("not"))


@rule("isnan.default", "isinf.default", "isfinite.default")
def lower_is(lower: Lower, call: OpCall) -> Pointwise:
    """Tests of floating-point numbers; integers are always finite."""
    source = lower.value(call.args[0]).dtype
    kind = call.op.split(".")[1]

    def body(b: Builder, dtype: str, x: str) -> str:
        if dtype not in FLOATS:
            return b.const(kind == "isfinite", "bool")
        if kind == "isnan":
            return b.apply("isnan", "bool", x)
        size, limit = b.apply("abs", dtype, x), b.const(math.inf, dtype)
        return b.apply("eq" if kind == "isinf" else "lt", "bool", size, limit)

    return lower_elements(lower, call, call.args[:1], compute(source), body)


# ---- choosing, clamping, converting ------------------------------------------------------------


@rule("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def lower_where(lower: Lower, call: OpCall) -> Pointwise:
    """Lane by lane, one of two."""
    stored = tensor(call.output).dtype
    dtype = compute(stored)
    mask, yes, no = (operand(lower, a) for a in call.args[:3])
    if not isinstance(mask, Value) or mask.dtype != "bool":
        raise Refused("a mask that is not bool")
    for given in (yes, no):
        check_number(given, stored)

    def body(b: Builder, index: Indices) -> str:
        values = (element(b, v, index, dtype, stored) for v in (yes, no))
        return b.apply("where", dtype, element(b, mask, index, "bool"), *values)

    reads = tuple(v for v in (mask, yes, no) if isinstance(v, Value))
    return lower.pointwise(call, body, reads)


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def lower_masked_fill(lower: Lower, call: OpCall) -> Pointwise:
    """A number where the mask holds."""
    stored = tensor(call.output).dtype
    dtype = compute(stored)
    source, mask, fill = (operand(lower, a) for a in call.args[:3])
    check_number(fill, stored)

    def body(b: Builder, index: Indices) -> str:
        values = element(b, fill, index, dtype, stored), element(b, source, index, dtype)
        return b.apply("where", dtype, element(b, mask, index, "bool"), *values)

    reads = tuple(v for v in (source, mask, fill) if isinstance(v, Value))
    return lower.pointwise(call, body, reads)


@rule("clamp.default", "clamp_min.default", "clamp_max.default", "hardtanh.default")
def lower_clamp(lower: Lower, call: OpCall) -> Pointwise:
    """Bounds; a NaN stays."""
    kind = call.op.split(".")[1]
    low, high = argument(call, 1, "min"), argument(call, 2, "max")
    if kind == "clamp_min":
        low, high = call.args[1], None
    elif kind == "clamp_max":
        low, high = None, call.args[1]
    elif kind == "hardtanh":
        low, high = argument(call, 1, "min_val", -1.0), argument(call, 2, "max_val", 1.0)
    if any(bound is not None and not scalar(bound) for bound in (low, high)):
        raise Refused("a bound that is no number")
    stored = tensor(call.output).dtype
    dtype = compute(stored)
    if dtype == "bool":
        raise Refused("not for bool")
    for bound in (low, high):
        check_number(bound, stored)

    def body(b: Builder, dtype: str, x: str) -> str:
        if low is not None:
            x = b.apply("max", dtype, x, element(b, low, (), dtype, stored))
        return x if high is None else b.apply("min", dtype, x, element(b, high, (), dtype, stored))

    return lower_elements(lower, call, call.args[:1], dtype, body)


@rule("clamp.Tensor")
def lower_clamp_tensor(lower: Lower, call: OpCall) -> Pointwise:
    """Bounds that are tensors; a NaN anywhere stays."""
    low, high = argument(call, 1, "min"), argument(call, 2, "max")
    given = [a for a in (low, high) if a is not None]
    dtype = compute(tensor(call.output).dtype)
    if dtype == "bool":
        raise Refused("not for bool")

    def body(b: Builder, dtype: str, x: str, *bounds: str) -> str:
        rest = list(bounds)
        if low is not None:
            x = b.apply("max", dtype, x, rest.pop(0))
        return b.apply("min", dtype, x, rest.pop(0)) if rest else x

    return lower_elements(lower, call, (call.args[0], *given), dtype, body)


@rule("_to_copy.default", "clone.default", "contiguous.default")
@rule("prims.convert_element_type.default")
def lower_copy(lower: Lower, call: OpCall) -> Pointwise:
    """A copy, in another type or layout; conversion to half precision rounds."""
    stored = tensor(call.output).dtype
    return lower_elements(lower, call, call.args[:1], compute(stored), _identity, stored)


# ---- made from nothing -------------------------------------------------------------------------


@rule("full.default", "full_like.default", "scalar_tensor.default")
def lower_full(lower: Lower, call: OpCall) -> Pointwise:
    """One number everywhere."""
    fill = call.args[0] if "scalar_tensor" in call.op else call.args[1]
    if not scalar(fill):
        raise Refused("a fill value that is no number")
    stored = tensor(call.output).dtype
    dtype = compute(stored)
    check_number(fill, stored)
    return lower.pointwise(call, lambda b, index: element(b, fill, index, dtype, stored), (), 0)


@rule("arange.start_step", "iota.default")
def lower_arange(lower: Lower, call: OpCall) -> Pointwise:
    """Integers in steps, or whole floating-point numbers that are exact.

    Where their count varies, more than are exact are rounded once, as in float64.
    """
    start, step = call.args[0], argument(call, 2, "step", 1)
    desc = tensor(call.output)
    if "iota" in call.op or desc.dtype not in NUMBERS:
        raise Refused("only integers")
    if desc.dtype not in INTEGERS or isinstance(start, float) or isinstance(step, float):
        start, step = _whole(start), _whole(step)
        known = [n for n in (start, step, desc.numel) if isinstance(n, int)]
        last = known[0] + known[1] * known[2] if len(known) == 3 else 0
        if max(map(abs, (*known, last))) >= _EXACT:
            raise Refused("only numbers that are exact")
    if not all(isinstance(v, int | Size) and not isinstance(v, bool) for v in (start, step)):
        raise Refused("only integers")

    def body(b: Builder, index: Indices) -> str:
        return b.cast(b.position(index[0].scale(step).shift(start)), compute(desc.dtype))

    return lower.pointwise(call, body, (), 0)


_EXACT = 2**24


def _whole(value: Any) -> Dim:
    if isinstance(value, Size):
        return value
    if type(value) not in (int, float) or value != int(value):
        raise Refused("only integers")
    return int(value)
