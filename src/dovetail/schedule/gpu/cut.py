"""Where reductions are cut so that all multiprocessors have work: rows are few.

A long row of many stays whole: what a block reads of it once more is still in the second-level
cache, and its maximum and sum of powers are found in one pass.
"""

from __future__ import annotations

from dovetail.ir.ops import REDUCTIONS
from dovetail.ir.target import Target
from dovetail.lower.values import Reduction, Value
from dovetail.schedule.parts import Cut, cut_near, cut_symbolic, extents

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
    return cut_near(value, total, max(total * blocks // wanted, shortest))
