"""What generated code has to say when the data are not as they must be.

A kernel goes on to its end; a flag of its call collects, a bit for each kind, what went wrong on
the way, and the status that it returns is that of the first kind in the list.
"""

from __future__ import annotations

from dovetail.codegen.llvm.emit import Code, Val
from dovetail.ir.ops import CHECKS

OUTSIDE, DIVIDE = "outside", "divide"
# Statuses in dovetail.h, in the order in which the interpreter of kernel IR tells them.
STATUSES = {
    "check": 9,
    "check_index": 9,
    "check_bounds": 12,
    "check_divisor": 13,
    DIVIDE: 3,
    OUTSIDE: 1,
}
assert set(CHECKS) < set(STATUSES)
_BITS = {kind: 1 << n for n, kind in enumerate(STATUSES)}


def report(c: Code, wrong: Val, flag: Val, kind: str) -> None:
    """Note it where any lane is wrong."""
    some = wrong if wrong.lanes == 1 else c.intrinsic("vector.reduce.or", wrong)
    note = f"atomicrmw or ptr {flag.text}, i64 {_BITS[kind]} monotonic, align 8"
    c.when(some, lambda: c.line(note), seldom=True)


def status(c: Code, flag: Val) -> Val:
    """The status for what a flag holds."""
    found = c.const(0, "int32")
    for kind in reversed(STATUSES):
        bit = c.op("and", flag, c.const(_BITS[kind], "int64"))
        told = c.compare("icmp ne", bit, c.const(0, "int64"))
        found = c.select(told, c.const(STATUSES[kind], "int32"), found)
    return found
