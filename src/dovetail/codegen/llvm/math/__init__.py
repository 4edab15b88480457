"""Our own vector math, by the names of kernel IR. Nothing here calls a library."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.codegen.llvm.emit import Code, Val
from dovetail.codegen.llvm.math import (
    circular,
    error_function,
    exponential,
    inverse,
    logarithm,
    remainder,
)

FUNCTIONS: dict[str, Callable[[Code, Val], Val]] = {
    "exp": exponential.exp,
    "exp_normal": exponential.exp_normal,
    "exp2": exponential.exp2,
    "expm1": exponential.expm1,
    "sigmoid": exponential.sigmoid,
    "tanh": exponential.tanh,
    "sinh": exponential.sinh,
    "cosh": exponential.cosh,
    "log": logarithm.log,
    "log2": logarithm.log2,
    "log10": logarithm.log10,
    "log1p": logarithm.log1p,
    "asinh": logarithm.asinh,
    "acosh": logarithm.acosh,
    "atanh": logarithm.atanh,
    "sin": circular.sin,
    "cos": circular.cos,
    "tan": circular.tan,
    "asin": inverse.asin,
    "acos": inverse.acos,
    "atan": inverse.atan,
    "erf": error_function.erf,
    "erfc": error_function.erfc,
}
# Those of an angle.
CIRCULAR = ("sin", "cos", "tan")
# Of two operands.
BINARY: dict[str, Callable[[Code, Val, Val], Val]] = {
    "pow": logarithm.power,
    "atan2": inverse.atan2,
    "fmod": remainder.fmod,
    "hypot": remainder.hypot,
}
