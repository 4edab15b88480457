"""How much work a kernel is, to decide how many threads it is worth."""

from __future__ import annotations

from dovetail.ir.affine import product
from dovetail.ir.kernel import Apply, Kernel, Load, Scan, Store

# The unit is a load that hits the cache, about 0.03 ns an element with vectors of sixteen; the
# rest was measured beside it. A second thread costs a few microseconds to start.
GRAIN = 98304
_ORDINARY, _GATHER, _SCAN, _UNKNOWN = 0.5, 4.0, 12.0, 256
_OPERATIONS = {
    **dict.fromkeys(("exp", "exp_normal"), 4.0),
    **dict.fromkeys(("sigmoid", "div_int", "floordiv", "floormod"), 6.0),
    **dict.fromkeys(("tanh", "erf"), 12.0),
    **dict.fromkeys(("div", "sqrt"), 1.5),
    **dict.fromkeys(("log", "log2", "log10", "log1p", "expm1", "exp2", "sin", "cos"), 30.0),
    **dict.fromkeys(("asin", "acos", "atan", "sinh", "cosh", "hypot"), 40.0),
    **dict.fromkeys(("tan", "pow", "erfc", "atan2", "asinh", "acosh", "atanh", "fmod"), 60.0),
}


def cost(kernel: Kernel) -> float:
    """Units of work at one point of the parallel axes, its loops included."""
    total = 0.0
    for loop in kernel.loops:
        points = product(axis.extent for axis in loop.axes)
        each = 0.0
        for i in loop.body:
            if isinstance(i, Apply):
                each += _OPERATIONS.get(i.op, _ORDINARY)
            elif isinstance(i, Scan):
                each += _SCAN
            elif isinstance(i, Load | Store):
                each += _GATHER if i.index.values else 1.0
        total += each * (points if isinstance(points, int) else _UNKNOWN)
    return total
