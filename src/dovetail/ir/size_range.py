"""What values a size can have: its least, its greatest, and what it is a multiple of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product

from dovetail.ir.size import INT64_MAX, INT64_MIN, Dim

Range = tuple[int, int]
ANY: Range = (0, INT64_MAX)  # of a symbol of which nothing is known: it is a size


def size_range(dim: Dim, symbols: Mapping[str, Range]) -> Range:
    """The least and the greatest value, both included; INT64_MAX: there may be greater ones."""
    if isinstance(dim, int):
        return dim, dim
    if dim.is_symbol:
        return symbols.get(dim.args[0], ANY)
    if dim.op not in _COMBINED:  # computed in floating point: nothing is known
        return INT64_MIN, INT64_MAX
    left, right = (size_range(arg, symbols) for arg in dim.args)
    return _COMBINED[dim.op](left, right)


def multiple_of(dim: Dim) -> int:
    """The greatest number known to divide every value of a size; 0 divides only 0."""
    if isinstance(dim, int):
        return abs(dim)
    if dim.is_symbol or dim.op not in _COMBINED:
        return 1
    left, right = (multiple_of(arg) for arg in dim.args)
    if dim.op in ("add", "sub", "max", "min"):
        return math.gcd(left, right)
    if dim.op == "mul":
        return left * right
    if dim.op == "floordiv" and isinstance(dim.args[1], int) and dim.args[1] > 0:
        whole = left % dim.args[1] == 0
        return left // dim.args[1] if whole else 1
    return 1


def _clamped(value: int) -> int:
    return min(max(value, INT64_MIN), INT64_MAX)


def _times(a: int, b: int) -> int:
    """A product of ends of ranges, of which INT64_MAX is no number but the lack of one."""
    return _clamped(a * b)


def _add(left: Range, right: Range) -> Range:
    return _clamped(left[0] + right[0]), _clamped(left[1] + right[1])


def _sub(left: Range, right: Range) -> Range:
    most = INT64_MAX if left[1] == INT64_MAX else _clamped(left[1] - right[0])
    return _clamped(left[0] - right[1]), most


def _mul(left: Range, right: Range) -> Range:
    ends = [_times(a, b) for a, b in product(left, right)]
    return min(ends), max(ends)


def _floordiv(left: Range, right: Range) -> Range:
    if right[0] <= 0:
        return INT64_MIN, INT64_MAX
    ends = [a // b for a, b in product(left, right)]
    return min(ends), INT64_MAX if left[1] == INT64_MAX else max(ends)


def _mod(left: Range, right: Range) -> Range:  # noqa: ARG001  # like the others
    return (0, right[1] - 1) if right[0] > 0 else (INT64_MIN, INT64_MAX)


def _max(left: Range, right: Range) -> Range:
    return max(left[0], right[0]), max(left[1], right[1])


def _min(left: Range, right: Range) -> Range:
    return min(left[0], right[0]), min(left[1], right[1])


_COMBINED = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "floordiv": _floordiv,
    "mod": _mod,
    "max": _max,
    "min": _min,
}
