"""How much work a kernel is, to decide how many threads it is worth."""

from __future__ import annotations

from dovetail.ir.affine import product
from dovetail.ir.kernel import Apply, Kernel, Load, Scan, Store
from dovetail.ir.ops import LOAD_COST, OPERATIONS
from dovetail.ir.target import Target

# Picoseconds, as in the table of operations.
_GATHER, _SCAN = 4 * LOAD_COST, 12 * LOAD_COST
_UNKNOWN = 256  # points of a loop whose extent is not known


def cost(kernel: Kernel) -> int:
    """Picoseconds that one point of the parallel axes takes, its loops included."""
    total = 0
    for loop in kernel.loops:
        points = product(axis.extent for axis in loop.axes)
        each = 0
        for i in loop.body:
            if isinstance(i, Apply):
                each += OPERATIONS[i.op].cost[i.dtype == "float64"]
            elif isinstance(i, Scan):
                each += _SCAN
            elif isinstance(i, Load | Store):
                each += _GATHER if i.index.values else LOAD_COST
        total += each * (points if isinstance(points, int) else _UNKNOWN)
    return total


def grain(target: Target) -> int:
    """Picoseconds of work that are worth another thread."""
    return round(target.thread_seconds * 1e12)
