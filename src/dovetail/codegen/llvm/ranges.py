"""What integers computed from positions can be, as far as sizes tell: which divisions are small.

No processor divides vectors of 64-bit numbers; half as wide, and not negative, a division by a
constant is a product and a shift.
"""

from __future__ import annotations

from collections.abc import Callable

from dovetail.ir.kernel import Apply, Axis, Const, Index, Instruction, Kernel, Position
from dovetail.ir.ops import DIVISIONS

Range = tuple[int, int]
_LIMIT, _WHOLE = 2**31, 2**63


def small_divisions(kernel: Kernel) -> frozenset[str]:
    """Divisions of int64 whose operands fit in 31 bits, the divisor being at least one."""
    if not any(isinstance(i, Apply) and i.op in DIVISIONS for i in kernel.instructions()):
        return frozenset()
    small, known = set(), dict[str, Range]()
    extents = {a.name: a.extent for a in _axes(kernel) if isinstance(a.extent, int)}
    for i in kernel.instructions():
        found = _range(i, known, extents)
        if found is not None:
            known[i.name] = found
        if isinstance(i, Apply) and i.op in DIVISIONS and i.dtype == "int64":
            left, right = (known.get(name) for name in i.args)
            if left and right and _fits(left, 0) and _fits(right, 1):
                small.add(i.name)
    return frozenset(small)


def _axes(kernel: Kernel) -> list[Axis]:
    return [*kernel.axes, *(axis for loop in kernel.loops for axis in loop.axes)]


def _fits(given: Range, least: int) -> bool:
    return given[0] >= least and given[1] < _LIMIT


def _range(i: Instruction, known: dict[str, Range], extents: dict[str, int]) -> Range | None:
    """The least and the greatest an instruction gives; None where that is not known."""
    found = _exact(i, known, extents)
    wraps = found is not None and not (found[0] >= -_WHOLE and found[1] < _WHOLE)
    return None if wraps else found


def _exact(i: Instruction, known: dict[str, Range], extents: dict[str, int]) -> Range | None:
    """The same in numbers of any size."""
    if isinstance(i, Const) and i.dtype == "int64":
        return int(i.value), int(i.value)
    if isinstance(i, Position):
        return _position(i.index, extents)
    if isinstance(i, Apply) and i.dtype == "int64" and i.op in _OPERATIONS:
        given = [known.get(name) for name in i.args]
        if None not in given:
            return _OPERATIONS[i.op](*given)
    return None


def _position(index: Index, extents: dict[str, int]) -> Range | None:
    if not isinstance(index.offset, int) or index.values:
        return None
    low = high = index.offset
    for axis, stride in index.axes:
        if axis not in extents or not isinstance(stride, int):
            return None
        far = stride * max(extents[axis] - 1, 0)
        low, high = low + min(far, 0), high + max(far, 0)
    return low, high


def _corners(fn: Callable[[int, int], int]) -> Callable[[Range, Range], Range]:
    """The range of a function that takes its extremes at the ends of its operands' ranges."""

    def over(a: Range, b: Range) -> Range:
        ends = [fn(x, y) for x in a for y in b]
        return min(ends), max(ends)

    return over


def _quotient(a: Range, b: Range) -> Range | None:
    return _corners(lambda x, y: x // y)(a, b) if b[0] > 0 else None


def _rest(_: Range, b: Range) -> Range | None:
    return (0, b[1] - 1) if b[0] > 0 else None


_OPERATIONS: dict[str, Callable[..., Range | None]] = {
    "add": _corners(lambda x, y: x + y),
    "sub": _corners(lambda x, y: x - y),
    "mul": _corners(lambda x, y: x * y),
    "min": _corners(min),
    "max": _corners(max),
    "floordiv": _quotient,
    "floormod": _rest,
}
