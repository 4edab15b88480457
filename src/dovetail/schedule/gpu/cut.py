"""Where reductions are cut so that all multiprocessors have work: rows are few.

A long row of many stays whole: what a block reads of it once more is still in the second-level
cache, and its maximum and sum of powers are found in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.ir.affine import product
from dovetail.ir.ops import REDUCTIONS
from dovetail.ir.target import Target
from dovetail.lower.contraction import Contraction
from dovetail.lower.expression import Read
from dovetail.lower.index_map import numbered
from dovetail.lower.values import Reduction, Value
from dovetail.schedule.parts import Cut, DimensionCut, cut_near, cut_symbolic, extents

BLOCKS = 4  # for each multiprocessor keep its memory accesses in flight
SHORTEST = 1 << 12  # elements of a part of a row: less is not worth a second kernel
COLUMN_PART = 1 << 7  # the same down columns
COLUMNS = 1 << 6  # columns beside each other that a block takes
PART = 1 << 14  # elements of a part where sizes are not known


def place_to_cut(value: Value, target: Target) -> Cut | None:
    """A dimension to cut and the length of its parts; None: the value is done in one step."""
    if not isinstance(value, Reduction) or REDUCTIONS[value.op].finds_position:
        return None
    results, total, is_column = extents(value)
    steps = None if isinstance(value, Contraction) else memory_steps(value)
    if steps is not None:
        is_column = not any(steps[d] == 1 and value.source_shape[d] != 1 for d in value.dims)
    if results == 0 or total == 0 or not isinstance(results, int):
        return None
    if not isinstance(total, int):
        few = results < target.cores * (COLUMNS if is_column else 1)
        return cut_symbolic(value, COLUMN_PART if is_column else PART) if few else None
    if is_column:
        blocks, shortest = -(-results // COLUMNS), COLUMN_PART
    else:
        blocks, shortest = results, SHORTEST
    wanted = BLOCKS * target.cores
    if blocks >= target.cores or total < 2 * shortest:
        return None
    length = max(total * blocks // wanted, shortest)
    if is_column and steps is not None and value.op == "sum":
        return cut_in_memory(value, steps, length)
    return cut_near(value, total, length)


def memory_steps(whole: Reduction) -> list[int] | None:
    """How far apart in memory the elements along each dimension lie, where most is read from.

    A sum of each channel goes down columns of an image that is channels-last, and along rows of
    one that is row-major. None: that is not known, or nothing read is dense along a dimension.
    """
    found: dict[int, list[int]] = {}
    for read in whole.expression.reads:
        steps = _steps(whole, read)
        if steps is None or 1 not in steps:
            continue
        pairs = zip(whole.source_shape, steps, strict=True)
        size = product(extent for extent, step in pairs if step)
        assert isinstance(size, int)
        found.setdefault(size, steps)
    return found[max(found)] if found else None


def _steps(whole: Reduction, read: Read) -> list[int] | None:
    strides, places = whole.reads[read.operand].strides, read.index.results
    if not all(isinstance(s, int) for s in (*strides, *whole.source_shape)):
        return None
    if any(place.values for place in places):
        return None
    steps = [0] * len(whole.source_shape)
    for stride, place in zip(strides, places, strict=True):
        for d, factor in numbered(place):
            if not isinstance(factor, int):
                return None
            steps[d] += factor * int(stride)  # type: ignore[arg-type]
    return steps


def cut_in_memory(whole: Reduction, steps: Sequence[int], wanted: int) -> DimensionCut | None:
    """Parts whose elements follow each other in memory, about as many as wanted, all alike."""
    sizes = {d: int(whole.source_shape[d]) for d in whole.dims if whole.source_shape[d] != 1}  # type: ignore[arg-type]
    order = sorted(sizes, key=lambda d: -steps[d])
    inner = 1
    for n in range(len(order) - 1, -1, -1):
        size = sizes[order[n]]
        if inner * size > wanted:
            most = max(wanted // inner, 1)
            length = next(count for count in range(most, 0, -1) if size % count == 0)
            if length > most // 2 or n > 0:
                return DimensionCut(order[n], length, tuple(order[:n]), lead=True)
            return DimensionCut(order[n], most, lead=True)
        inner *= size
    return None
