"""Our own vector math, by the names of kernel IR. Nothing here calls a library."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.codegen.llvm.emit import Code, Val
from dovetail.codegen.llvm.math import (
    circular,
    error_function,
    exponential,
    integers,
    inverse,
    logarithm,
    remainder,
)
from dovetail.codegen.llvm.math.number import Number
from dovetail.ir.dtypes import FLOATS

Function = Callable[..., Val]  # of the function that is being written, and values


def _of_values(fn: Callable[..., Number]) -> Function:
    def written(c: Code, *args: Val) -> Val:
        return fn(*(Number(c, each) for each in args)).val

    return written


def _power(x: Number, y: Number) -> Number:
    return (logarithm.power if x.dtype in FLOATS else integers.power)(x, y)


FUNCTIONS = {
    fn.__name__: _of_values(fn)
    for fn in (
        *(exponential.exp, exponential.exp_normal, exponential.exp2, exponential.expm1),
        *(exponential.sigmoid, exponential.tanh, exponential.sinh, exponential.cosh),
        *(logarithm.log, logarithm.log2, logarithm.log10, logarithm.log1p),
        *(logarithm.asinh, logarithm.acosh, logarithm.atanh),
        *(circular.sin, circular.cos, circular.tan),
        *(inverse.asin, inverse.acos, inverse.atan, inverse.atan2),
        *(error_function.erf, error_function.erfc, remainder.fmod, remainder.hypot),
    )
}
FUNCTIONS["pow"] = _of_values(_power)
DIVISIONS = {
    "floordiv": _of_values(integers.floor_division),
    "floormod": _of_values(integers.floor_modulo),
    "div_int": _of_values(integers.division),
}
erf_plus_one = _of_values(error_function.erf_plus_one)


def small_division(c: Code, op: str, left: Val, right: Val) -> Val:
    """A quotient or a rest of numbers known to be below 2**31, the divisor not zero."""
    return integers.small_division(op, Number(c, left), Number(c, right)).val
