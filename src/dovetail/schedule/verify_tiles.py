"""The verifier of tiles of registers: every row or pixel, column and product is met once."""

from __future__ import annotations

import math

from dovetail.errors import InvalidSchedule
from dovetail.ir.dtypes import item_bytes
from dovetail.ir.kernel import Axis, Kernel
from dovetail.ir.kernel_convolution import KernelConvolution, kernel_convolution
from dovetail.ir.kernel_depthwise import kernel_depthwise
from dovetail.ir.kernel_product import KernelProduct, are_pairs, kernel_product
from dovetail.ir.target import PAIRS_OF_BFLOAT16, TARGETS
from dovetail.ir.verify import requirement
from dovetail.schedule.schedule import Schedule
from dovetail.schedule.tiles import (
    STACK_BYTES,
    ConvolutionTile,
    DepthwiseTile,
    DotTile,
    ProductTile,
    heights_met,
)

_MOST = 2048  # multiply-adds that a kernel's tiles write out: more is much code
_ZEROS = 1 << 16  # elements of zeros that stand for a place outside the image
POINTER = 8  # bytes
_require = requirement(InvalidSchedule)


def verify_register_tiles(kernel: Kernel, schedule: Schedule) -> None:
    """Raise InvalidSchedule unless a kernel can be done in the tiles of its schedule."""
    tiles = schedule.register_tiles
    _require(schedule.tile is None, "tiles of registers in tiles of two axes")
    if isinstance(tiles, ProductTile):
        _product(kernel, schedule, tiles)
    elif isinstance(tiles, DotTile):
        _dots(kernel, schedule, tiles)
    elif isinstance(tiles, ConvolutionTile):
        _convolution(kernel, schedule, tiles)
    elif isinstance(tiles, DepthwiseTile):
        _depthwise(kernel, schedule, tiles)


# ---- convolutions ------------------------------------------------------------------------------


def _convolution(kernel: Kernel, schedule: Schedule, tile: ConvolutionTile) -> None:
    found = kernel_convolution(kernel)
    _require(found is not None, "tiles of a kernel that is no convolution")
    assert found is not None
    _require(tuple(a.name for a in found.pixels) == tile.pixels, f"pixels of {tile.pixels}")
    _require(found.columns.name == schedule.vector, f"vectors along {schedule.vector}")
    _convolution_numbers(tile, found)
    lengths = _lengths(tile, tile.count(kernel))
    met = {height for length in lengths for height in tile.tiles(length)}
    _require(met <= set(tile.heights), f"tiles of {sorted(met)} pixels")
    size = (
        len(found.totals)
        * tile.held(len(found.totals))
        * tile.vectors
        * schedule.lanes
        * item_bytes(found.total.dtype)
    )
    _require(size <= STACK_BYTES, f"{size} bytes on the stack")


def _depthwise(kernel: Kernel, schedule: Schedule, tile: DepthwiseTile) -> None:
    found = kernel_depthwise(kernel)
    _require(found is not None, "tiles of channels of another kernel")
    assert found is not None
    _require(found.pixels.name == tile.pixels, f"tiles along {tile.pixels}")
    _require(found.channels.name == schedule.vector, f"vectors along {schedule.vector}")
    pixels, channels = _size(found.pixels), _size(found.channels)
    _some(tile.heights, pixels, channels)
    _require(channels <= _ZEROS, "a long row of zeros")
    _require(schedule.block >= channels, "a unit that has some channels only")
    met = heights_met(pixels, tile.heights[0])
    _require(met <= set(tile.heights), f"tiles of {sorted(met)} pixels")
    _require(0 <= tile.walked < len(found.taps), f"{tile.walked} walked axes of taps")
    _written_out(sum(tile.heights) * math.prod(map(_size, found.taps[tile.walked :])))
    taps = math.prod(map(_size, found.taps)) if tile.walked else 0
    size = POINTER * taps * tile.heights[0]
    _require(size <= STACK_BYTES, f"{size} bytes on the stack")


def _convolution_numbers(tile: ConvolutionTile, found: KernelConvolution) -> None:
    _some(tile.heights, tile.block, tile.vectors, tile.unroll)
    sizes = [_size(axis) for axis in (*found.pixels, found.columns, *found.sums)]
    _require(min(sizes) > 0, "a convolution of nothing")
    _require(_size(found.channels) <= _ZEROS, "a long row of zeros")
    _require(0 <= tile.apart <= len(found.taps), f"{tile.apart} loops over taps")
    _require(tile.chunk >= 0 and tile.chunk % tile.unroll == 0, f"chunks of {tile.chunk}")
    _require(not tile.chunk or tile.apart == len(found.taps), "chunks of several taps")
    _written_out(sum(tile.heights) * tile.vectors * tile.unroll)


def _some(heights: tuple[int, ...], *others: int) -> None:
    """Whether there is something in tiles, and the most comes first."""
    _require(min(*others, *heights, len(heights)) > 0, "an empty tile")
    _require(list(heights) == sorted(set(heights), reverse=True), "heights in disorder")


def _written_out(multiply_adds: int) -> None:
    _require(multiply_adds <= _MOST, f"{multiply_adds} multiply-adds written out")


def _size(axis: Axis) -> int:
    _require(isinstance(axis.extent, int), f"{axis.name} of a size that is not known")
    assert isinstance(axis.extent, int)
    return axis.extent


def _lengths(tile: ConvolutionTile, pixels: object) -> set[int]:
    assert isinstance(pixels, int)
    return {min(tile.block, pixels), pixels % tile.block} - {0}


# ---- products of matrices ----------------------------------------------------------------------


def _product(kernel: Kernel, schedule: Schedule, tile: ProductTile) -> None:
    found = _found(kernel, schedule, tile.rows)
    _product_numbers(tile)
    if tile.from_registers:
        _from_registers(kernel, tile, found, schedule.lanes)
    if tile.pairs:
        _pairs(kernel, schedule, found)
        _require(tile.packed and tile.unroll % 2 == 0, "half a pair of steps")
    _heights(tile, found)
    _memory(kernel, tile, found, schedule.lanes)


def _found(kernel: Kernel, schedule: Schedule, rows: str) -> KernelProduct:
    """The product that a kernel is, of these rows and of columns along the vectors."""
    found = kernel_product(kernel)
    _require(found is not None, "tiles of a kernel that is no product")
    assert found is not None
    _require(found.rows.name == rows, f"tiles of rows of {rows}")
    _require(found.columns.name == schedule.vector, f"vectors along {schedule.vector}")
    return found


def _dots(kernel: Kernel, schedule: Schedule, tile: DotTile) -> None:
    found, lanes = _found(kernel, schedule, tile.rows), schedule.lanes
    rows = _size(found.rows)
    _some(tile.heights, rows, tile.block, tile.together)
    met = heights_met(rows, tile.heights[0])
    _require(met <= set(tile.heights), f"tiles of {sorted(met)} rows")
    _require(tile.together & (tile.together - 1) == 0, f"{tile.together} columns together")
    _require(tile.together <= lanes, f"sums of {tile.together} columns in {lanes} lanes")
    _require(tile.block % lanes == 0, "units of no whole number of vectors")
    step = lanes * (1 + tile.pairs)
    _require(tile.chunk >= 0 and tile.chunk % step == 0, f"chunks of {tile.chunk}")
    _require(tile.ahead >= 0, f"{tile.ahead} columns ahead")
    if tile.pairs:
        _pairs(kernel, schedule, found)
    _written_out(2 * rows * (tile.together + 1))
    dense = [i.index.stride(found.sum.name) == 1 for i in (found.left, found.right)]
    _require(all(dense), "operands that are not dense along the sum")
    _require(not found.sums_to_row and not found.used_to_row, "sums that end with their row")
    size = rows * tile.block * item_bytes(found.total.dtype)
    _require(size <= STACK_BYTES, f"{size} bytes on the stack")


def _from_registers(kernel: Kernel, tile: ProductTile, found: KernelProduct, lanes: int) -> None:
    """Whether whole sums are in registers, with lanes that are known and elements for a mask."""
    whole = not (tile.chunk or tile.depth or found.used_to_row or found.sums_to_row)
    _require(whole, "parts of sums that are not in registers together")
    columns, width = found.columns.extent, tile.columns(lanes)
    some = isinstance(columns, int) and (columns % width == 0 or columns < width)
    _require(some, f"the last of {columns} columns from registers")
    wide = all(item_bytes(b.dtype) >= item_bytes("float32") for b in kernel.buffers)
    _require(wide, "elements of less than four bytes from registers")


def _pairs(kernel: Kernel, schedule: Schedule, found: KernelProduct) -> None:
    """Whether an instruction multiplies neighbouring steps, which lie together."""
    features = TARGETS[schedule.target].features
    _require(PAIRS_OF_BFLOAT16 in features, f"pairs of steps on {schedule.target}")
    _require(are_pairs(kernel, found), "pairs of steps that do not lie together, or of other types")


def _product_numbers(tile: ProductTile) -> None:
    _some(tile.heights, tile.block, tile.vectors, tile.unroll)
    _require(tile.unroll & (tile.unroll - 1) == 0, f"{tile.unroll} steps written out")
    parts = [n for n in (tile.chunk, tile.depth) if n]
    whole = all(n > 0 and n % tile.unroll == 0 for n in parts)
    _require(whole, "parts of a sum that are no whole steps")
    _require(tile.ahead >= 0, f"{tile.ahead} steps ahead")
    _written_out(sum(tile.heights) * tile.vectors * tile.unroll)


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
        size += (steps + steps % 2 * tile.pairs) * item_bytes(dtype)
    size *= tile.vectors * lanes
    _require(size <= STACK_BYTES, f"{size} bytes on the stack")
