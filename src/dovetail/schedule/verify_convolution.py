"""The verifier of tiles for convolutions: every pixel, column and product is met once."""

from __future__ import annotations

import math

from dovetail.errors import InvalidSchedule
from dovetail.ir.dtypes import item_bytes
from dovetail.ir.kernel import Axis, Kernel
from dovetail.ir.kernel_convolution import KernelConvolution, kernel_convolution
from dovetail.ir.kernel_depthwise import kernel_depthwise
from dovetail.ir.verify import requirement
from dovetail.schedule.schedule import STACK_BYTES, ConvolutionTile, Schedule

_MOST = 2048  # multiply-adds that a kernel's tiles write out: more is much code
_ZEROS = 1 << 16  # elements of zeros that stand for a place outside the image
_require = requirement(InvalidSchedule)


def verify_convolution(kernel: Kernel, schedule: Schedule) -> None:
    """Raise InvalidSchedule unless a kernel can be done in the tiles of its schedule."""
    found, tile = kernel_convolution(kernel), schedule.convolution
    alone = schedule.tile is None and schedule.product is None
    _require(found is not None and alone, "tiles of a kernel that is no convolution")
    assert found is not None
    assert tile is not None
    _require(tuple(a.name for a in found.pixels) == tile.pixels, f"pixels of {tile.pixels}")
    _require(found.columns.name == schedule.vector, f"vectors along {schedule.vector}")
    _numbers(tile, found)
    lengths = _lengths(tile, tile.count(kernel))
    met = {height for length in lengths for height in tile.tiles(length)}
    _require(met <= set(tile.heights), f"tiles of {sorted(met)} pixels")
    size = (
        len(found.totals)
        * tile.heights[0]
        * tile.vectors
        * schedule.lanes
        * item_bytes(found.total.dtype)
    )
    _require(size <= STACK_BYTES, f"{size} bytes on the stack")


def verify_depthwise(kernel: Kernel, schedule: Schedule) -> None:
    """Raise InvalidSchedule unless a kernel can be done in rows of such tiles."""
    found, tile = kernel_depthwise(kernel), schedule.depthwise
    others = schedule.tile, schedule.product, schedule.convolution
    _require(found is not None and others == (None,) * 3, "tiles of channels of another kernel")
    assert found is not None
    assert tile is not None
    _require(found.pixels.name == tile.pixels, f"tiles along {tile.pixels}")
    _require(found.channels.name == schedule.vector, f"vectors along {schedule.vector}")
    pixels, channels = _size(found.pixels), _size(found.channels)
    _require(min(pixels, channels, *tile.heights, len(tile.heights)) > 0, "an empty tile")
    _require(list(tile.heights) == sorted(set(tile.heights), reverse=True), "heights in disorder")
    _require(channels <= _ZEROS, "a long row of zeros")
    _require(schedule.block >= channels, "a unit that has some channels only")
    count = -(-pixels // tile.heights[0])
    met = {(n + 1) * pixels // count - n * pixels // count for n in range(count)}
    _require(met <= set(tile.heights), f"tiles of {sorted(met)} pixels")
    code = sum(tile.heights) * math.prod(map(_size, found.taps))
    _require(code <= _MOST, f"{code} multiply-adds written out")


def _numbers(tile: ConvolutionTile, found: KernelConvolution) -> None:
    least = min(tile.block, tile.vectors, tile.unroll, *tile.heights, len(tile.heights))
    _require(least > 0, "an empty tile")
    _require(list(tile.heights) == sorted(set(tile.heights), reverse=True), "heights in disorder")
    sizes = [_size(axis) for axis in (*found.pixels, found.columns, *found.sums)]
    _require(min(sizes) > 0, "a convolution of nothing")
    _require(_size(found.channels) <= _ZEROS, "a long row of zeros")
    _require(0 <= tile.apart <= len(found.taps), f"{tile.apart} loops over taps")
    _require(tile.chunk >= 0 and tile.chunk % tile.unroll == 0, f"chunks of {tile.chunk}")
    _require(not tile.chunk or tile.apart == len(found.taps), "chunks of several taps")
    code = sum(tile.heights) * tile.vectors * tile.unroll
    _require(code <= _MOST, f"{code} multiply-adds written out")


def _size(axis: Axis) -> int:
    _require(isinstance(axis.extent, int), f"{axis.name} of a size that is not known")
    assert isinstance(axis.extent, int)
    return axis.extent


def _lengths(tile: ConvolutionTile, pixels: object) -> set[int]:
    assert isinstance(pixels, int)
    return {min(tile.block, pixels), pixels % tile.block} - {0}
