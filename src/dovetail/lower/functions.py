"""Functions of floating-point numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from dovetail.ir.call import OpCall
from dovetail.ir.dtypes import FLOATS
from dovetail.ir.ops import OPERATIONS
from dovetail.lower.expression import Builder
from dovetail.lower.pointwise import (
    Element,
    check_number,
    float_type,
    lower_elements,
    one,
    simple,
)
from dovetail.lower.rules import Lower, Refused, argument, compute, number, rule, tensor
from dovetail.lower.values import Pointwise


def silu(b: Builder, dtype: str, x: str) -> str:
    """X / (1 + exp(-x)), as ATen computes it."""
    e = b.apply("exp_normal", dtype, b.apply("neg", dtype, x))
    return b.apply("div", dtype, x, b.apply("add", dtype, one(b, dtype), e))


def reciprocal(b: Builder, dtype: str, x: str) -> str:
    """1 / x."""
    return b.apply("div", dtype, one(b, dtype), x)


def rsqrt(b: Builder, dtype: str, x: str) -> str:
    """1 / sqrt(x)."""
    return reciprocal(b, dtype, b.apply("sqrt", dtype, x))


def logaddexp(b: Builder, dtype: str, x: str, y: str) -> str:
    """log(exp(x) + exp(y)) as ATen computes it: the larger, and a logarithm of 1 and a bit."""
    most = b.apply("max", dtype, x, y)
    apart = b.apply("abs", dtype, b.apply("sub", dtype, x, y))
    e = b.apply("exp", dtype, b.apply("neg", dtype, apart))
    value = b.apply("add", dtype, most, b.apply("log1p", dtype, e))
    endless = b.apply("eq", "bool", b.apply("abs", dtype, x), b.const(math.inf, dtype))
    same = b.apply("and", "bool", endless, b.apply("eq", "bool", x, y))
    return b.apply("where", dtype, same, x, value)


# Functions of one operand and of two; most are operations of kernel IR.
_ONE: dict[str, Element] = {"rsqrt": rsqrt, "reciprocal": reciprocal, "silu": silu}
_TWO: dict[str, Element] = {"logaddexp": logaddexp}
for _name in (
    *("sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sigmoid"),
    *("erf", "erfc", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh"),
    *("asinh", "acosh", "atanh", "atan2", "hypot"),
):
    (_ONE if OPERATIONS[_name].arity == 1 else _TWO)[_name] = simple(_name)


def _float_rule(fn: Element, count: int) -> Callable[[Lower, OpCall], Pointwise]:
    return lambda lower, call: lower_elements(lower, call, call.args[:count], float_type(call), fn)


for _count, _functions in enumerate((_ONE, _TWO), 1):
    for _name, _fn in _functions.items():
        rule(f"{_name}.default")(_float_rule(_fn, _count))


@rule("gelu.default")
def lower_gelu(lower: Lower, call: OpCall) -> Pointwise:
    """Both forms of GELU."""
    dtype = float_type(call)
    tanh = argument(call, 1, "approximate", "none") == "tanh"
    return lower_elements(lower, call, call.args[:1], dtype, _gelu_tanh if tanh else _gelu)


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


# ---- powers ------------------------------------------------------------------------------------


@rule("pow.Tensor_Scalar")
def lower_pow_scalar(lower: Lower, call: OpCall) -> Pointwise:
    """Powers with a constant exponent; those ATen treats specially are treated so here."""
    exponent = call.args[1]
    dtype = compute(tensor(call.output).dtype)
    if not number(exponent) or isinstance(exponent, bool):
        raise Refused("an exponent that is no number")
    if dtype not in FLOATS:
        if type(exponent) is not int or exponent < 0 or dtype == "bool":
            raise Refused("an integer power")  # of a negative one eager raises
        check_number(exponent, dtype)
    body = functools.partial(_power, exponent=exponent)
    return lower_elements(lower, call, call.args[:1], dtype, body)


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
    """Powers of numbers."""
    dtype = compute(tensor(call.output).dtype)
    if dtype == "bool":
        raise Refused("not for bool")
    return lower_elements(lower, call, call.args[:2], dtype, simple("pow"))
