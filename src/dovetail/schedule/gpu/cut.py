"""Where reductions are cut so that all multiprocessors have work: rows are few, or long.

A row that registers do not hold is cut too: a part is read once for all that is found of it, such
as its maximum and its sum of powers.
"""

from __future__ import annotations

from dovetail.ir.affine import product
from dovetail.ir.ops import REDUCTIONS
from dovetail.ir.target import Target
from dovetail.lower.values import Reduction, Value
from dovetail.schedule.parts import Cut, cut_near, cut_symbolic

BLOCKS = 4  # for each multiprocessor keep its memory accesses in flight
LONGEST = 1 << 15  # elements of a row that one block keeps in its registers
SHORTEST = 1 << 12  # elements of a part of a row: less is not worth a second kernel
COLUMN_PART = 1 << 7  # the same down columns
COLUMNS = 1 << 6  # columns beside each other that a block takes
PART = 1 << 14  # elements of a part where sizes are not known


def place_to_cut(value: Value, target: Target) -> Cut | None:
    """A dimension to cut and the length of its parts; None: the value is done in one step."""
    if not isinstance(value, Reduction) or REDUCTIONS[value.op].finds_position:
        return None
    shape = value.source_shape
    kept = [d for d, size in enumerate(shape) if d not in value.dims and size != 1]
    results = product(shape[d] for d in kept)
    total = product(shape[d] for d in value.dims)
    if results == 0 or total == 0:
        return None
    long = [d for d in value.dims if shape[d] != 1]
    is_column = bool(kept) and (not long or kept[-1] > long[-1])
    if not isinstance(results, int):
        return None
    if not isinstance(total, int):
        few = results < target.cores * (COLUMNS if is_column else 1)
        return cut_symbolic(value, COLUMN_PART if is_column else PART) if few else None
    if is_column:
        blocks, shortest = -(-results // COLUMNS), COLUMN_PART
    else:
        blocks, shortest = results, SHORTEST
        if total > LONGEST and blocks >= target.cores:
            return cut_near(value, total, PART)
    wanted = BLOCKS * target.cores
    if blocks >= target.cores or total < 2 * shortest:
        return None
    return cut_near(value, total, max(total * blocks // wanted, shortest))
