"""Tiles of registers for kernels that sum products, from the target's registers and caches.

A step of the sum loads the vectors of a tile once and one element for each of its rows. So tiles
are as high and as wide as registers allow, for as little as possible of them beyond the matrix.
The steps of a panel of columns stay in the second cache while all rows of a unit go over them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dovetail.ir.dtypes import item_bytes
from dovetail.ir.kernel import Kernel
from dovetail.ir.kernel_product import KernelProduct, are_pairs, kernel_product
from dovetail.ir.size import Dim
from dovetail.ir.target import PAIRS_OF_BFLOAT16, Target
from dovetail.schedule.cpu.cost import cost
from dovetail.schedule.cpu.volume import divides
from dovetail.schedule.tiles import STACK_BYTES, ProductTile

# Products that one accumulator sums up: with more of them the error of a sum grows as they do, with
# 256 it is that of the libraries (measured for K from 576 to 4608), for 2 % of the time at most.
CHUNK = 256
UNROLL = 4  # steps of a sum that hide the loop's own instructions
MOST_VECTORS, MOST_ROWS = 6, 14
LATENCY = 4  # cycles of a multiply-add: independent ones fill them
PER_CYCLE = 2  # multiply-adds, and loads, that start in one cycle
SECOND_HEIGHT = 1.02  # what one height is worth: half the code, and half the time it takes LLVM
# Cycles that a step waits for each cache line of columns, which comes from the second cache (240 by
# 256 times 256 by 768, AVX2: tiles of 4 rows by 3 vectors, whose columns are two lines, run at 48
# G/s, of 6 by 2 at 55).
WAIT = 0.35
# Independent sums below which a step takes longer, and by how many cycles for each that is missing:
# latency alone asks for half of them, if nothing comes late (256 by 256 times 256 by 256, AVX2:
# tiles of 4 rows by 2 vectors run at 46 G/s, of 5 by 2 at 51, of 6 by 2 at 54).
ENOUGH_SUMS, MISSING_SUM = 2 * LATENCY * PER_CYCLE, 0.08
# Cycles for which columns are asked for before they are needed, about what main memory takes: the
# processor foresees too little of them (12 layers of 197 by 384 by 1152 and so on: 4 % of the time
# with vectors of 64 bytes from 300 to 900 cycles, 5 % with 32 at 380; 64 by 768 by 3072: 6 %), and
# the share of the first cache that they may take meanwhile.
AHEAD, AHEAD_SHARE = 450, 4
# Sets of a first cache, and lines that each holds: rows of which more fall into one set push each
# other out (256 by 1024 times 1024 by 256, AVX-512: tiles of 14 rows run at 47 G/s, of 8 at 56).
SETS, WAYS = 64, 8
SHORT = 128  # products of a sum beside which its way through a buffer counts
_WRITTEN_OUT = 600  # instructions that follow sums, of all heights of tiles
FINISH = 6  # cycles that a vector of results takes beside its sum
# Picoseconds of a multiply-add for one element: two vectors of eight in a cycle, at 3.3 GHz.
MULTIPLY_ADD = 19
# Tiles of one unit from which on a copy of its columns pays: each reads them again.
WORTH_PACKING = 3
NEAR = 4  # widths of a panel from one step of it to the next for which a copy gains nothing
PANEL_BYTES = STACK_BYTES * 3 // 4  # of a copy of columns; the rest is for totals
LEAST_TILES = 4  # of a block of rows: what a unit does once, it does for so many
PACKED_ROWS = 96  # of a unit that packs columns which other units pack, too: 3 % of its time
# Rows, columns and steps that tiles are chosen for where their number is known only when the kernel
# runs: from a few tiles on their shape hardly depends on it, and more rows are more blocks.
UNKNOWN = 256


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a tile is chosen for."""

    rows: int
    columns: int
    sum: int  # steps, each a pair of products where they are taken so
    outer: int


def product_of(kernel: Kernel, target: Target) -> KernelProduct | None:
    """The product to make tiles for; None where they do not suit kernel or target."""
    found = kernel_product(kernel)
    if found is None or "fma" not in target.features:
        return None
    return found if all(a.extent != 0 for a in (*kernel.axes, found.sum)) else None


def lanes_of(found: KernelProduct, target: Target) -> int:
    """Elements of a vector of accumulators."""
    return target.vector_bytes // item_bytes(found.total.dtype)


def in_pairs(kernel: Kernel, found: KernelProduct, target: Target) -> bool:
    """Whether an instruction takes two steps of a sum at once."""
    return PAIRS_OF_BFLOAT16 in target.features and are_pairs(kernel, found)


def known(extent: Dim, otherwise: int = 1) -> int:
    """A size, or what is taken for one that is not known."""
    return extent if isinstance(extent, int) else otherwise


def product_tile(kernel: Kernel, found: KernelProduct, target: Target) -> ProductTile:
    """The tile for a product."""
    pairs = in_pairs(kernel, found, target)
    sizes, lanes = _sizes(kernel, found, pairs), lanes_of(found, target)
    size = {b.name: item_bytes(b.dtype) for b in kernel.buffers}[found.right.buffer]
    shapes = best_shapes(sizes, lanes, target, _most_rows(kernel, found, target))
    rows, vectors = next((s for s in shapes if s == kernel.tile), shapes[0])
    width = vectors * lanes
    block = _block(sizes, rows, width, target)
    dense = found.right.index.stride(found.columns.name) == 1
    few = -(-min(block, sizes.rows) // rows) < WORTH_PACKING
    near = found.right.index.stride(found.sum.name) in range(1, NEAR * width + 1)
    masks = divides(found.columns.extent, width) or target.mask_bytes > 0
    packed = pairs or not (dense and (few or near) and masks)
    panel = min(target.l2_bytes // 2, PANEL_BYTES if packed else target.l2_bytes)
    unroll = UNROLL * (1 + pairs)
    most = panel // (width * size)
    depth = _depth(found.sum.extent, most - most % 2 if pairs else most, unroll)
    if depth:
        totals = min(target.l2_bytes // 8, STACK_BYTES - (PANEL_BYTES if packed else 0))
        block = min(block, totals // (width * item_bytes(found.total.dtype)))
    chunk = CHUNK if (depth or known(found.sum.extent, UNKNOWN)) > CHUNK else 0
    tile = ProductTile(
        rows=found.rows.name,
        heights=(rows,),
        vectors=vectors,
        block=block,
        unroll=unroll,
        chunk=chunk,
        depth=depth,
        packed=packed,
        by_rows=not depth and _goes_by_rows(kernel, found, size, target),
        ahead=_ahead(found, rows, vectors, target.l1_bytes // (width * size)),
        pairs=pairs,
    )
    tile = _with_heights(_in_order(tile, sizes, size, target), found.rows.extent)
    return replace(tile, from_registers=_finishes_in_registers(tile, kernel, found, width))


def _finishes_in_registers(
    tile: ProductTile, kernel: Kernel, found: KernelProduct, width: int
) -> bool:
    """Whether sums are used from registers: they are short, and little follows them.

    A vector of results takes some cycles more on its way through a buffer. Elements of few bytes
    go that way for what LLVM makes of masks of one lane (codegen/llvm/render.py).
    """
    steps, columns = found.sum.extent, found.columns.extent
    if not isinstance(steps, int) or not isinstance(columns, int) or steps > SHORT:
        return False
    if tile.chunk or tile.depth or found.used_to_row or found.sums_to_row:
        return False
    rest = sum(len(loop.body) for loop in kernel.loops if not loop.axes)
    wide = all(item_bytes(b.dtype) >= item_bytes("float32") for b in kernel.buffers)
    whole = columns % width == 0 or columns < width  # no masks in panels that need none
    return wide and whole and sum(tile.heights) * tile.vectors * rest <= _WRITTEN_OUT


def best_shapes(
    sizes: Sizes, lanes: int, target: Target, most_rows: int = MOST_ROWS
) -> list[tuple[int, int]]:
    """Rows and vectors of tiles, by the cycles that they take."""
    shapes, lines = _shapes(target.vector_registers, most_rows), _lines(target)
    return sorted(shapes, key=lambda s: (_cycles(sizes, lanes, lines, *s), -s[0] * s[1]))


def _lines(target: Target) -> float:
    """Cache lines of a vector."""
    return target.vector_bytes / target.line_bytes


def _in_order(tile: ProductTile, sizes: Sizes, size: int, target: Target) -> ProductTile:
    """The tile with units that suit their order: rows that stay in cache while columns go by."""
    if not tile.by_rows:
        return tile
    least = PACKED_ROWS if tile.packed else LEAST_TILES * tile.heights[0]
    if min(tile.block, sizes.rows) < least:
        return replace(tile, by_rows=False)
    kept = (
        target.l2_bytes
        // 4
        // ((sizes.columns * sizes.outer + sizes.sum * (1 + tile.pairs)) * size)
    )
    units = max(-(-sizes.rows // tile.block), sizes.rows // max(least, kept))
    return replace(tile, block=-(-sizes.rows // units), by_rows=units > 1)


def _goes_by_rows(kernel: Kernel, found: KernelProduct, size: int, target: Target) -> bool:
    """Whether a thread had better take all columns of some rows than some columns of all.

    What other kernels made of these rows and will read of them is in its caches then, not in
    another core's; but it reads all columns, which its second cache has to hold.
    """
    outer = [a for a in kernel.axes if a not in (found.rows, found.columns)]
    if any(found.left.index.stride(a.name) != 0 for a in outer):
        return False
    columns = [*outer, found.columns, found.sum]
    elements = [known(a.extent, UNKNOWN) for a in columns if found.right.index.stride(a.name) != 0]
    return math.prod(elements) * size <= target.l2_bytes // 2


def product_cost(kernel: Kernel, found: KernelProduct, target: Target) -> int:
    """Picoseconds of one element of the result, with what follows its sum."""
    rest = replace(kernel, loops=tuple(loop for loop in kernel.loops if not loop.axes))
    steps = known(found.sum.extent, UNKNOWN) // (1 + in_pairs(kernel, found, target))
    return MULTIPLY_ADD * steps + cost(rest)


def _sizes(kernel: Kernel, found: KernelProduct, pairs: bool) -> Sizes:
    outer = 1
    for axis in kernel.axes:
        if axis not in (found.rows, found.columns):
            outer *= known(axis.extent)
    rows, columns, steps = (
        known(a.extent, UNKNOWN) for a in (found.rows, found.columns, found.sum)
    )
    return Sizes(rows, columns, -(-steps // 2) if pairs else steps, outer)


def _most_rows(kernel: Kernel, found: KernelProduct, target: Target) -> int:
    """Rows whose elements of one step the first cache holds at once."""
    stride = found.left.index.stride(found.rows.name)
    size = {b.name: item_bytes(b.dtype) for b in kernel.buffers}[found.left.buffer]
    if not isinstance(stride, int) or stride * size % target.line_bytes or not stride:
        return MOST_ROWS
    return min(MOST_ROWS, SETS // math.gcd(stride * size // target.line_bytes, SETS) * WAYS)


def _shapes(registers: int, most_rows: int) -> list[tuple[int, int]]:
    """Rows and vectors of tiles whose accumulators, vectors and one more value fit registers."""
    return [
        (rows, vectors)
        for vectors in range(1, MOST_VECTORS + 1)
        for rows in range(1, most_rows + 1)
        if rows * vectors + vectors + 1 <= registers
    ]


def _cycles(sizes: Sizes, lanes: int, lines: float, rows: int, vectors: int) -> float:
    """Cycles that all tiles of a matrix take, roughly; ``lines``: cache lines of a vector."""
    panels = -(-sizes.columns // (vectors * lanes))
    count = -(-sizes.rows // rows)
    each, more = divmod(sizes.rows, count)
    total = 0.0
    for height, times in ((each, count - more), (each + 1, more)):
        step = _step_cycles(height, vectors, lines)
        total += times * (sizes.sum * step + FINISH * height * vectors)
    return panels * total * (1.0 if not more else SECOND_HEIGHT)


def _step_cycles(rows: int, vectors: int, vector_lines: float) -> float:
    """Cycles of one step of the sum, for a tile, which asks for each of its lines once."""
    sums, lines = rows * vectors, math.ceil(vectors * vector_lines)
    work = max(sums, rows + vectors + lines) / PER_CYCLE
    return max(work, LATENCY) + WAIT * lines + MISSING_SUM * max(0, ENOUGH_SUMS - sums)


def _ahead(found: KernelProduct, rows: int, vectors: int, held: int) -> int:
    """Steps ahead of which columns are asked for; ``held``: those that the first cache holds."""
    if not isinstance(found.right.index.stride(found.sum.name), int):
        return 0
    return min(round(AHEAD / _step_cycles(rows, vectors, 0)), held // AHEAD_SHARE)


def _depth(steps: Dim, most: int, unroll: int) -> int:
    """Steps of a sum done at a time, as many as ``most`` allows in parts alike; 0: all of them."""
    unit = CHUNK if most >= CHUNK else unroll
    if not isinstance(steps, int):
        return most // unit * unit
    if steps <= most:
        return 0
    units = -(-steps // unit)
    parts = -(-units // (most // unit))
    return -(-units // parts) * unit


def _block(sizes: Sizes, rows: int, width: int, target: Target) -> int:
    """Rows of a unit: all of them, unless threads would find too little to share."""
    units = sizes.outer * -(-sizes.columns // width)
    wanted = -(-target.cores // units)
    blocks = max(1, min(wanted, sizes.rows // (LEAST_TILES * rows)))
    return -(-sizes.rows // blocks)


def _with_heights(tile: ProductTile, rows: Dim) -> ProductTile:
    """The tile with the heights that occur: all up to the most, where rows are not known."""
    most = tile.heights[0]
    if not isinstance(rows, int):
        block = max(most, tile.block // most * most)
        return replace(tile, heights=tuple(range(most, 0, -1)), block=block)
    lengths = {min(tile.block, rows), rows % tile.block} - {0}
    heights = tuple(sorted(set().union(*map(tile.tiles, lengths)), reverse=True))
    return replace(tile, heights=heights)
