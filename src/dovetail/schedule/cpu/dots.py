"""Products of few rows whose operands are both dense along the sum: vectors of steps.

Weights that are not packed lie so (``nn.Linear`` has them transposed), and the keys of attention.
Bringing columns together costs as much as several rows of products (``cpu/product.py``); reading
them where they lie, once, leaves memory to set the pace.
"""

from __future__ import annotations

from dovetail.ir.dtypes import item_bytes
from dovetail.ir.kernel_product import KernelProduct
from dovetail.ir.size import Dim
from dovetail.ir.target import Target
from dovetail.schedule.tiles import DotTile, heights_met

# Rows up to which this takes less time than columns that are brought together (3072 columns of 768
# steps: 0.94 of the time at 16 rows, 0.46 at 8, one thread with vectors of 64 bytes).
MOST_ROWS = 16
# The same in pairs, which weights are copied into more slowly (24 rows: 0.80 of the time, 33: 0.94;
# of 256 steps, whose lanes are added up more often, 64 rows: 1.17), and of long sums (33 by 3072 by
# 768, packed before: 0.81, 64 rows: 0.99).
MOST_ROWS_IN_PAIRS, MOST_ROWS_OF_LONG_PAIRS = 32, 48
LONG_PAIRS = 768  # steps
TOGETHER = 4  # columns: as many neighbouring streams as processors foresee
MOST_HEIGHT = 6  # rows of a tile: each, as each column, takes a register for its address
VECTORS = 4  # of columns, in a unit of work: what a kernel does with a sum is done in vectors
CHUNK = 256  # products that a lane sums up before their sum enters the total, as in other products


def suits(found: KernelProduct, lanes: int, *, pairs: bool) -> bool:
    """Whether a product had better be summed in vectors of steps."""
    rows, steps = found.rows.extent, found.sum.extent
    along = [i.index.stride(found.sum.name) == 1 for i in (found.left, found.right)]
    if not all(along) or found.right.index.stride(found.columns.name) == 1:
        return False
    if found.sums_to_row or found.used_to_row:
        return False
    known = isinstance(rows, int) and rows <= (most_rows_in_pairs(steps) if pairs else MOST_ROWS)
    return known and (not isinstance(steps, int) or steps >= lanes)


def most_rows_in_pairs(steps: Dim) -> int:
    """Rows up to which pairs of steps are read where they lie."""
    long = isinstance(steps, int) and steps >= LONG_PAIRS
    return MOST_ROWS_OF_LONG_PAIRS if long else MOST_ROWS_IN_PAIRS


def dot_tile(found: KernelProduct, target: Target, lanes: int, *, pairs: bool) -> DotTile:
    """The tile of a product that suits: as many rows as registers hold the sums of."""
    rows, steps = found.rows.extent, found.sum.extent
    assert isinstance(rows, int)
    most = max(
        h for h in range(1, MOST_HEIGHT + 1) if (h + 1) * TOGETHER + 1 <= target.vector_registers
    )
    count = -(-rows // most)
    heights = sorted(heights_met(rows, -(-rows // count)), reverse=True)
    long = not isinstance(steps, int) or steps > CHUNK * lanes
    together = min(TOGETHER, lanes)
    return DotTile(
        rows=found.rows.name,
        heights=tuple(heights),
        together=together,
        block=VECTORS * lanes,
        chunk=CHUNK * lanes * long,
        ahead=together if _is_near(found, target) else 0,
        pairs=pairs,
    )


def _is_near(found: KernelProduct, target: Target) -> bool:
    """Whether the nearest cache holds the next columns beside these.

    Each column is a stream that ends before a processor foresees much of it.
    """
    stride = found.right.index.stride(found.columns.name)
    size = TOGETHER * item_bytes(found.total.dtype)
    return isinstance(stride, int) and stride * size <= target.l1_bytes
