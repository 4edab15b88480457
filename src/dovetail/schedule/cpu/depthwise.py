"""Tiles for convolutions of each channel by itself: neighbours that have most places in common."""

from __future__ import annotations

import math

from dovetail.ir.dtypes import item_bytes
from dovetail.ir.kernel import Kernel
from dovetail.ir.kernel_convolution import size_of
from dovetail.ir.kernel_depthwise import KernelDepthwise, kernel_depthwise
from dovetail.ir.target import Target
from dovetail.schedule.cpu.convolution import LONGEST, WIDE, clock
from dovetail.schedule.tiles import DepthwiseTile, heights_met

# Pixels of a tile, the best first: sums that wait for none of the others.
_HEIGHTS = (8, 7, 6, 5, 4)
_TALL = (
    14,
    13,
    12,
    11,
    10,
    9,
)  # where neighbours have many places in common; they fit 32 registers
_MANY_TAPS = 6  # in a row, from which on they have: 5 by 5 gain nothing
_FEW = 4  # where there are few registers: neighbours' places are more than they hold
_WRITTEN_OUT = 256  # multiply-adds of a tile: from more on rows of taps are a loop
# Cycles of a tap and of a result, for one vector of channels: a line, or half of one.
_WIDE, _NARROW = (0.55, 3.0), (0.95, 0.5)


def depthwise_of(kernel: Kernel, target: Target) -> KernelDepthwise | None:
    """The convolution to make tiles for; None where they do not suit kernel or target."""
    found = kernel_depthwise(kernel)
    if found is None or "fma" not in target.features:
        return None
    known = all(isinstance(a.extent, int) and a.extent > 0 for a in kernel.axes)
    many = known and target.vector_bytes // item_bytes(found.total.dtype) <= size_of(found.channels)
    return found if many and size_of(found.channels) <= LONGEST else None


def depthwise_tile(found: KernelDepthwise, target: Target) -> DepthwiseTile:
    """The tile: of one height, if the row has a divisor that will do."""
    pixels, narrow = size_of(found.pixels), target.vector_registers < 32
    tall = _TALL if size_of(found.taps[-1]) >= _MANY_TAPS else ()
    heights = [h for h in (*tall, *_HEIGHTS) if h <= _FEW or not narrow]
    height = next((h for h in heights if pixels % h == 0), min(heights[0], pixels))
    met = heights_met(pixels, height)
    return DepthwiseTile(
        found.pixels.name, tuple(sorted(met, reverse=True)), _walked(found, height)
    )


def _walked(found: KernelDepthwise, height: int) -> int:
    """Axes of taps that are loops, as few as leave little code."""
    sizes = [size_of(axis) for axis in found.taps]
    enough = (n for n in range(len(sizes)) if math.prod(sizes[n:]) * height <= _WRITTEN_OUT)
    return next(enough, len(sizes) - 1)


def depthwise_seconds(pixels: int, channels: int, taps: int, target: Target) -> float:
    """What generated code takes for such a convolution of float32 on one core."""
    vectors = -(-channels // target.lanes)
    tap, result = _WIDE if target.vector_bytes >= WIDE else _NARROW
    return pixels * vectors * (tap * taps + result) / clock(target)
