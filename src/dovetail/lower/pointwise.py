"""Elementwise operations of ATen."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dovetail.ir.affine import Affine
from dovetail.ir.call import Attr, OpCall, Ref
from dovetail.ir.kernel import FLOATS
from dovetail.ir.size import Size
from dovetail.lower.rules import (
    Lower,
    Refused,
    argument,
    compute,
    is_float,
    number,
    rule,
    tensor,
)
from dovetail.lower.values import Builder, Indices, Pointwise, Value, broadcast_index

# An element's expression: builder, computing type, operands (already in that type).
Element = Callable[..., str]
_ORDER = (
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
)


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
            groups[2].append("bool" if kind is bool else "float32" if kind is float else "int64")
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


def operand(lower: Lower, arg: Any) -> Value | float | int | bool | Size:
    """A tensor operand's value, or a number."""
    if isinstance(arg, Ref):
        return lower.value(arg)
    if isinstance(arg, Size) or number(arg):
        return arg  # type: ignore[no-any-return]
    raise Refused(f"an operand {arg!r}")


def element(b: Builder, given: Any, index: Indices, dtype: str) -> str:
    """An operand's element in a computing type."""
    if isinstance(given, Value):
        return b.cast(b.read(given, broadcast_index(index, given.shape)), dtype)
    if isinstance(given, Size):
        return b.cast(b.position(Affine(given)), dtype)
    return b.const(given, dtype)


def lower_elements(
    lower: Lower, call: OpCall, args: tuple[Any, ...], dtype: str, fn: Element, cost: float = 1.0
) -> Pointwise:
    """A pointwise value that applies ``fn`` to its operands in ``dtype``."""
    operands = [operand(lower, a) for a in args]
    result = compute(tensor(call.output).dtype)

    def body(b: Builder, index: Indices) -> str:
        values = [element(b, o, index, dtype) for o in operands]
        return b.cast(fn(b, dtype, *values), result)

    reads = tuple(o for o in operands if isinstance(o, Value))
    return lower.pointwise(call, body, reads, cost)


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


def erfc(b: Builder, dtype: str, x: str) -> str:
    """1 - erf(x): only good where the caller checks its range."""
    return b.apply("sub", dtype, one(b, dtype), b.apply("erf", dtype, x))


def silu(b: Builder, dtype: str, x: str) -> str:
    """X / (1 + exp(-x)), as ATen computes it."""
    e = b.apply("exp_normal", dtype, b.apply("neg", dtype, x))
    return b.apply("div", dtype, x, b.apply("add", dtype, one(b, dtype), e))


def frac(b: Builder, dtype: str, x: str) -> str:
    """X - trunc(x)."""
    return b.apply("sub", dtype, x, b.apply("trunc", dtype, x))


def reciprocal(b: Builder, dtype: str, x: str) -> str:
    """1 / x."""
    return b.apply("div", dtype, one(b, dtype), x)


def rsqrt(b: Builder, dtype: str, x: str) -> str:
    """1 / sqrt(x)."""
    return reciprocal(b, dtype, b.apply("sqrt", dtype, x))


# Exact in any floating type.
_FLOAT: dict[str, tuple[Element, float]] = {
    "sqrt.default": (simple("sqrt"), 4),
    "rsqrt.default": (rsqrt, 6),
    "reciprocal.default": (reciprocal, 4),
    "exp.default": (simple("exp"), 12),
    "log.default": (simple("log"), 16),
}
# float32 (and narrower) only.
_FLOAT32: dict[str, tuple[Element, float]] = {
    "tanh.default": (simple("tanh"), 20),
    "sigmoid.default": (simple("sigmoid"), 14),
    "erf.default": (simple("erf"), 24),
    "sin.default": (simple("sin"), 30),
    "cos.default": (simple("cos"), 30),
    "tan.default": (simple("tan"), 60),
    "log2.default": (simple("log2"), 16),
    "log10.default": (simple("log10"), 16),
    "log1p.default": (simple("log1p"), 20),
    "expm1.default": (simple("expm1"), 20),
    "exp2.default": (simple("exp2"), 16),
    "silu.default": (silu, 16),
}
_SAME: dict[str, Element] = {
    "neg.default": simple("neg"),
    "abs.default": simple("abs"),
    "relu.default": relu,
    "sign.default": simple("sign"),
}
# On integers these return their operand.
_ROUND: dict[str, Element] = {
    f"{name}.default": simple(name) for name in ("floor", "ceil", "trunc", "round")
}


def _float_rule(fn: Element, cost: float, *, double: bool) -> Callable[[Lower, OpCall], Pointwise]:
    def lowered(lower: Lower, call: OpCall) -> Pointwise:
        dtype = compute(tensor(call.output).dtype)
        if dtype == "float64" and not double:
            raise Refused("no float64 polynomial")
        if dtype not in FLOATS:
            raise Refused(f"a result of {dtype}")
        return lower_elements(lower, call, call.args[:1], dtype, fn, cost)

    return lowered


def _same_rule(fn: Element) -> Callable[[Lower, OpCall], Pointwise]:
    def lowered(lower: Lower, call: OpCall) -> Pointwise:
        dtype = compute(tensor(call.output).dtype)
        if dtype == "bool":
            raise Refused("not for bool")
        return lower_elements(lower, call, call.args[:1], dtype, fn)

    return lowered


def _round_rule(fn: Element) -> Callable[[Lower, OpCall], Pointwise]:
    def lowered(lower: Lower, call: OpCall) -> Pointwise:
        dtype = compute(tensor(call.output).dtype)
        body = fn if dtype in FLOATS else _identity
        return lower_elements(lower, call, call.args[:1], dtype, body)

    return lowered


def _identity(b: Builder, dtype: str, x: str) -> str:
    return x


for _name, (_fn, _cost) in _FLOAT.items():
    rule(_name)(_float_rule(_fn, _cost, double=True))
for _name, (_fn, _cost) in _FLOAT32.items():
    rule(_name)(_float_rule(_fn, _cost, double=False))
for _name, _element in _SAME.items():
    rule(_name)(_same_rule(_element))
for _name, _element in _ROUND.items():
    rule(_name)(_round_rule(_element))


@rule("frac.default")
def lower_frac(lower: Lower, call: OpCall) -> Pointwise:
    """X - trunc(x), floating point only."""
    return lower_elements(lower, call, call.args[:1], _float_type(call), frac)


def _float_type(call: OpCall) -> str:
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


# ---- two operands ------------------------------------------------------------------------------


@rule("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Scalar", "rsub.Tensor")
def lower_add(lower: Lower, call: OpCall) -> Pointwise:
    """Self ± alpha * other."""
    alpha = argument(call, 2, "alpha", 1)
    if not number(alpha):
        raise Refused("alpha is no constant")
    dtype = compute(tensor(call.output).dtype)
    op = call.op.split(".")[1]
    if dtype == "bool" and (op != "add" or (alpha is not True and alpha != 1)):
        raise Refused("not for bool")

    def body(b: Builder, dtype: str, x: str, y: str) -> str:
        if op == "rsub":
            x, y = y, x
        if alpha != 1:
            y = b.apply("mul", dtype, y, b.const(alpha, dtype))
        return b.apply("add" if op == "add" else "sub", dtype, x, y)

    if op == "rsub" and alpha != 1:
        raise Refused("alpha")
    return lower_elements(lower, call, call.args[:2], dtype, body)


@rule("mul.Tensor", "mul.Scalar")
def lower_mul(lower: Lower, call: OpCall) -> Pointwise:
    """Products, "and" for bool."""
    dtype = compute(tensor(call.output).dtype)
    return lower_elements(lower, call, call.args[:2], dtype, simple("mul"))


@rule("div.Tensor", "div.Scalar")
def lower_div(lower: Lower, call: OpCall) -> Pointwise:
    """True division: always of floating-point numbers."""
    return lower_elements(lower, call, call.args[:2], _float_type(call), simple("div"), 4)


@rule("div.Tensor_mode", "div.Scalar_mode", "floor_divide.default")
def lower_div_mode(lower: Lower, call: OpCall) -> Pointwise:
    """Rounded division of floating-point numbers; of integers by a constant."""
    mode = argument(call, 2, "rounding_mode") if "mode" in call.op else "floor"
    dtype = compute(tensor(call.output).dtype)
    if mode is None and dtype in FLOATS:
        return lower_elements(lower, call, call.args[:2], dtype, simple("div"), 4)
    if dtype in FLOATS and mode == "floor":
        raise Refused("floor division of floating-point numbers")
    if dtype in FLOATS:
        return lower_elements(lower, call, call.args[:2], dtype, _trunc_divide, 8)
    _nonzero_divisor(call, dtype)
    op = "floordiv" if mode == "floor" else "div_int"
    return lower_elements(lower, call, call.args[:2], dtype, simple(op), 8)


def _nonzero_divisor(call: OpCall, dtype: str) -> None:
    """Integer division by zero raises in eager, so only constants are taken."""
    divisor = call.args[1]
    if type(divisor) is not int or divisor in (0, -1) or dtype == "bool":
        raise Refused("an integer divisor that is no constant")


def _trunc_divide(b: Builder, dtype: str, x: str, y: str) -> str:
    return b.apply("trunc", dtype, b.apply("div", dtype, x, y))


@rule("maximum.default", "minimum.default")
def lower_extreme(lower: Lower, call: OpCall) -> Pointwise:
    """The larger or smaller; a NaN wins."""
    dtype = compute(tensor(call.output).dtype)
    op = "max" if "maximum" in call.op else "min"
    return lower_elements(lower, call, call.args[:2], dtype, simple(op))


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
        if type(arg) in (int, float) and not is_float(stored):
            _check_range(arg, stored)
    dtype = compute(stored)
    op = call.op.split(".")[1]
    rounds = stored in ("bfloat16", "float16")

    def body(b: Builder, dtype: str, x: str, y: str) -> str:
        return b.apply(op, "bool", x, y)

    args = call.args[:2]
    if rounds and number(args[1]):
        raise Refused("a number compared in half precision")
    return lower_elements(lower, call, args, dtype, body)


_RANGE = {"int64": 63, "int32": 31, "int16": 15, "int8": 7, "uint8": 8, "bool": 1}


def _check_range(value: Any, dtype: str) -> None:
    limit = 1 << _RANGE[dtype]
    low = 0 if dtype in ("uint8", "bool") else -limit
    if isinstance(value, float) or not low <= value < limit:
        raise Refused(f"{value} does not fit {dtype}")


@rule(
    *(f"bitwise_{op}.{kind}" for op in ("and", "or", "xor") for kind in ("Tensor", "Scalar")),
    *(f"logical_{op}.default" for op in ("and", "or", "xor")),
)
def lower_bits(lower: Lower, call: OpCall) -> Pointwise:
    """Bits of integers, or truth values."""
    op = call.op.split(".")[1].split("_")[1]
    dtype = "bool" if "logical" in call.op else compute(tensor(call.output).dtype)
    return lower_elements(lower, call, call.args[:2], dtype, simple(op))


@rule("pow.Tensor_Scalar")
def lower_pow_scalar(lower: Lower, call: OpCall) -> Pointwise:
    """Powers with a constant exponent; those ATen treats specially are treated so here."""
    exponent = call.args[1]
    dtype = compute(tensor(call.output).dtype)
    if not number(exponent) or isinstance(exponent, bool):
        raise Refused("an exponent that is no number")
    if dtype not in FLOATS:
        if exponent not in (2, 3) or dtype == "bool":
            raise Refused("an integer power")
    elif dtype == "float64" and exponent not in (2, 3, 0.5, -0.5, -1, -2, 1):
        raise Refused("no float64 polynomial")
    return lower_elements(
        lower, call, call.args[:1], dtype, lambda b, t, x: _power(b, t, x, exponent), 8
    )


def _power(b: Builder, dtype: str, x: str, exponent: float) -> str:
    if exponent == 1:
        return x
    if exponent in (0.5, -0.5):
        return (rsqrt if exponent < 0 else simple("sqrt"))(b, dtype, x)
    if exponent in (2, 3, -2):
        square = b.apply("mul", dtype, x, x)
        if exponent == 3:
            return b.apply("mul", dtype, square, x)
        return square if exponent == 2 else reciprocal(b, dtype, square)
    if exponent == -1:
        return reciprocal(b, dtype, x)
    return b.apply("pow", dtype, x, b.const(exponent, dtype))


@rule("pow.Tensor_Tensor", "pow.Scalar")
def lower_pow(lower: Lower, call: OpCall) -> Pointwise:
    """Powers of float32."""
    if compute(tensor(call.output).dtype) != "float32":
        raise Refused("only float32 powers")
    return lower_elements(lower, call, call.args[:2], "float32", simple("pow"), 60)


@rule("fmod.Tensor", "fmod.Scalar", "remainder.Tensor", "remainder.Scalar")
def lower_remainder(lower: Lower, call: OpCall) -> Pointwise:
    """Integer remainders by a constant; floating-point ones are ATen's."""
    dtype = compute(tensor(call.output).dtype)
    if dtype in FLOATS or "fmod" in call.op:
        raise Refused("a remainder of floating-point numbers")
    _nonzero_divisor(call, dtype)
    return lower_elements(lower, call, call.args[:2], dtype, simple("floormod"), 8)


# ---- choosing, clamping, converting ------------------------------------------------------------


@rule("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def lower_where(lower: Lower, call: OpCall) -> Pointwise:
    """Lane by lane, one of two."""
    dtype = compute(tensor(call.output).dtype)
    mask, yes, no = (operand(lower, a) for a in call.args[:3])
    if not isinstance(mask, Value) or mask.dtype != "bool":
        raise Refused("a mask that is not bool")

    def body(b: Builder, index: Indices) -> str:
        chosen = element(b, mask, index, "bool")
        return b.apply(
            "where", dtype, chosen, element(b, yes, index, dtype), element(b, no, index, dtype)
        )

    reads = tuple(v for v in (mask, yes, no) if isinstance(v, Value))
    return lower.pointwise(call, body, reads)


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def lower_masked_fill(lower: Lower, call: OpCall) -> Pointwise:
    """A number where the mask holds."""
    dtype = compute(tensor(call.output).dtype)
    source, mask, fill = (operand(lower, a) for a in call.args[:3])

    def body(b: Builder, index: Indices) -> str:
        values = element(b, fill, index, dtype), element(b, source, index, dtype)
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
    if any(bound is not None and not number(bound) for bound in (low, high)):
        raise Refused("a bound that is no number")
    dtype = compute(tensor(call.output).dtype)
    if dtype == "bool":
        raise Refused("not for bool")

    def body(b: Builder, dtype: str, x: str) -> str:
        if low is not None:
            x = b.apply("max", dtype, x, b.const(low, dtype))
        return x if high is None else b.apply("min", dtype, x, b.const(high, dtype))

    return lower_elements(lower, call, call.args[:1], dtype, body)


@rule(
    "_to_copy.default", "clone.default", "contiguous.default", "prims.convert_element_type.default"
)
def lower_copy(lower: Lower, call: OpCall) -> Pointwise:
    """A copy, in another type or layout; conversion to half precision rounds."""
    device = call.kwargs.get("device")
    if isinstance(device, Attr) and device.value != "cpu":
        raise Refused("a copy to another device")
    result = tensor(call.output).dtype
    rounding = {"bfloat16": "round_brain", "float16": "round_half"}.get(result)
    if lower.value(call.args[0]).dtype == result:
        rounding = None

    def body(b: Builder, dtype: str, x: str) -> str:
        return x if rounding is None else b.apply(rounding, "float32", x)

    return lower_elements(lower, call, call.args[:1], compute(result), body)


@rule("gelu.default")
def lower_gelu(lower: Lower, call: OpCall) -> Pointwise:
    """Both forms of GELU."""
    dtype = _float_type(call)
    if dtype == "float64":
        raise Refused("no float64 polynomial")
    tanh = argument(call, 1, "approximate", "none") == "tanh"
    return lower_elements(lower, call, call.args[:1], dtype, _gelu_tanh if tanh else _gelu, 26)


def _gelu(b: Builder, dtype: str, x: str) -> str:
    scaled = b.apply("mul", dtype, x, b.const(math.sqrt(0.5), dtype))
    half = b.apply("mul", dtype, x, b.const(0.5, dtype))
    grown = b.apply("add", dtype, one(b, dtype), b.apply("erf", dtype, scaled))
    return b.apply("mul", dtype, half, grown)


def _gelu_tanh(b: Builder, dtype: str, x: str) -> str:
    """Half of x (1 + tanh(u)) as x / (1 + exp(-2u)): cheaper, and exact for negative x too."""
    cube = b.apply("mul", dtype, b.apply("mul", dtype, x, x), x)
    inner = b.apply("add", dtype, x, b.apply("mul", dtype, cube, b.const(0.044715, dtype)))
    scaled = b.apply("mul", dtype, inner, b.const(-2 * math.sqrt(2 / math.pi), dtype))
    e = b.apply("exp_normal", dtype, scaled)
    return b.apply("div", dtype, x, b.apply("add", dtype, one(b, dtype), e))


# ---- made from nothing -------------------------------------------------------------------------


@rule("full.default", "full_like.default", "scalar_tensor.default")
def lower_full(lower: Lower, call: OpCall) -> Pointwise:
    """One number everywhere."""
    fill = call.args[0] if "scalar_tensor" in call.op else call.args[1]
    if not number(fill) and not isinstance(fill, Size):
        raise Refused("a fill value that is no number")
    dtype = compute(tensor(call.output).dtype)
    return lower.pointwise(call, lambda b, index: element(b, fill, index, dtype), (), 0)


@rule("arange.start_step", "iota.default")
def lower_arange(lower: Lower, call: OpCall) -> Pointwise:
    """Integers in steps."""
    start, step = call.args[0], argument(call, 2, "step", 1)
    if tensor(call.output).dtype != "int64" or "iota" in call.op:
        raise Refused("only integers")
    if not all(isinstance(v, int | Size) and not isinstance(v, bool) for v in (start, step)):
        raise Refused("only integers")
    return lower.pointwise(
        call, lambda b, index: b.position(index[0].scale(step).shift(start)), (), 0
    )
