"""The verifier of tiles for products: every row, column and step of the sum is met once."""

from __future__ import annotations

from dovetail.errors import InvalidSchedule
from dovetail.ir.dtypes import item_bytes
from dovetail.ir.kernel import Kernel
from dovetail.ir.kernel_product import KernelProduct, kernel_product
from dovetail.schedule.schedule import STACK_BYTES, ProductTile, Schedule

_MOST = 2048  # multiply-adds that a kernel's tiles write out: more is much code


def verify_product(kernel: Kernel, schedule: Schedule) -> None:
    """Raise InvalidSchedule unless a kernel can be done in the tiles of its schedule."""
    found, tile = kernel_product(kernel), schedule.product
    _require(found is not None and schedule.tile is None, "tiles of a kernel that is no product")
    assert found is not None
    assert tile is not None
    _require(found.rows.name == tile.rows, f"tiles of rows of {tile.rows}")
    _require(found.columns.name == schedule.vector, f"vectors along {schedule.vector}")
    _numbers(tile)
    _heights(tile, found)
    _memory(kernel, tile, found, schedule.lanes)


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise InvalidSchedule(problem)


def _numbers(tile: ProductTile) -> None:
    least = min(tile.block, tile.vectors, tile.unroll, *tile.heights, len(tile.heights))
    _require(least > 0, "an empty tile")
    _require(list(tile.heights) == sorted(set(tile.heights), reverse=True), "heights in disorder")
    _require(tile.unroll & (tile.unroll - 1) == 0, f"{tile.unroll} steps written out")
    parts = [n for n in (tile.chunk, tile.depth) if n]
    whole = all(n > 0 and n % tile.unroll == 0 for n in parts)
    _require(whole, "parts of a sum that are no whole steps")
    code = sum(tile.heights) * tile.vectors * tile.unroll
    _require(code <= _MOST, f"{code} multiply-adds written out")


def _heights(tile: ProductTile, found: KernelProduct) -> None:
    """Whether there is code for each height of tiles that blocks of rows are cut into."""
    rows = found.rows.extent
    lengths = set(range(1, tile.block + 1))
    if isinstance(rows, int):
        lengths = {min(tile.block, rows), rows % tile.block} - {0}
    met = {height for length in lengths for height in tile.tiles(length)}
    _require(met <= set(tile.heights), f"tiles of {sorted(met)} rows")


def _memory(kernel: Kernel, tile: ProductTile, found: KernelProduct, lanes: int) -> None:
    """Whether columns can be read as vectors, and what is on the stack is known and little."""
    dense = found.right.index.stride(found.columns.name) == 1
    _require(tile.packed or dense, "columns that do not lie together are read packed")
    steps: object = tile.depth or found.sum.extent
    _require(not tile.packed or isinstance(steps, int), "a copy of no known size")
    rows = tile.block if tile.depth else tile.heights[0]
    size = rows * item_bytes(found.total.dtype)
    if tile.packed and isinstance(steps, int):
        (dtype,) = (b.dtype for b in kernel.buffers if b.name == found.right.buffer)
        size += steps * item_bytes(dtype)
    size *= tile.vectors * lanes
    _require(size <= STACK_BYTES, f"{size} bytes on the stack")
