"""How much work a kernel is, to decide how many threads it is worth."""

from __future__ import annotations

from dovetail.ir.affine import product
from dovetail.ir.kernel import Apply, Kernel, Load, Scan, Store

# The unit is a load that hits the cache, about 0.03 ns an element with vectors of sixteen; the
# rest was measured beside it. A second thread costs a few microseconds to start.
GRAIN = 98304
_ORDINARY, _GATHER, _SCAN, _UNKNOWN = 0.5, 4.0, 12.0, 256
_OPERATIONS = {
    **dict.fromkeys(("exp", "exp_normal", "exp2"), 3.0),
    **dict.fromkeys(("sigmoid", "expm1", "log", "div_int", "floordiv", "floormod"), 5.0),
    **dict.fromkeys(("div", "sqrt"), 1.5),
    **dict.fromkeys(("log2", "log10", "log1p", "sin", "cos", "asin", "acos", "atan"), 8.0),
    **dict.fromkeys(("sinh", "cosh"), 9.0),
    **dict.fromkeys(("tanh", "erf", "tan", "atan2", "hypot", "fmod"), 14.0),
    **dict.fromkeys(("asinh", "acosh", "atanh"), 18.0),
    **dict.fromkeys(("pow", "erfc"), 50.0),
}
# Functions of float64 take more than twice the time: pairs, longer polynomials.
_DOUBLE = {
    **dict.fromkeys(("exp", "exp_normal", "exp2", "expm1", "sigmoid", "hypot"), 30.0),
    **dict.fromkeys(("log", "log2", "log10", "asin", "acos", "atan", "sinh", "cosh"), 40.0),
    **dict.fromkeys(("log1p", "sin", "cos", "tanh", "atan2", "atanh"), 60.0),
    **dict.fromkeys(("tan", "erf", "erfc", "asinh", "acosh", "pow"), 100.0),
}


def cost(kernel: Kernel) -> float:
    """Units of work at one point of the parallel axes, its loops included."""
    total = 0.0
    for loop in kernel.loops:
        points = product(axis.extent for axis in loop.axes)
        each = 0.0
        for i in loop.body:
            if isinstance(i, Apply):
                each += _work(i)
            elif isinstance(i, Scan):
                each += _SCAN
            elif isinstance(i, Load | Store):
                each += _GATHER if i.index.values else 1.0
        total += each * (points if isinstance(points, int) else _UNKNOWN)
    return total


def _work(i: Apply) -> float:
    known = _OPERATIONS.get(i.op, _ORDINARY)
    return _DOUBLE.get(i.op, known) if i.dtype == "float64" else known
