"""Tiles of registers for convolutions, from the target's registers and caches.

A step loads the vectors of a tile's weights once and one element for each of its pixels. Weights
are read again for each tile, so they stay in the second cache: all of them while pixels go by, or
one panel of columns while all pixels go over it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dovetail.ir.dtypes import item_bytes
from dovetail.ir.kernel import Kernel
from dovetail.ir.kernel_convolution import KernelConvolution, kernel_convolution, size_of
from dovetail.ir.target import Target
from dovetail.schedule.cpu.cost import cost
from dovetail.schedule.cpu.product import CHUNK, LATENCY, MULTIPLY_ADD, PER_CYCLE, SHORT
from dovetail.schedule.tiles import STACK_BYTES, ConvolutionTile

WIDE = 64  # bytes of a vector that is a line
UNROLL = 4  # channels that hide the loop's own instructions
MOST_VECTORS = 4
MOST_PIXELS = 12  # of a tile: the pointer to each is a register
L2_BYTES = 32  # that the second cache hands over in a cycle
WAIT = 0.25  # of the time that takes, beside the multiply-adds that go on
LOAD = 0.05  # cycles that a load delays all others, where it does not set the pace
LOOK_UP = 3  # cycles to find a pixel's place at a tap
FINISH = 6  # cycles that a vector of results takes beside its sum
# The same where sums are used from registers: 15 pointwise convolutions from 8 to 116 channels,
# with vectors of 32 and of 64 bytes, took 0.78 to 1.26 of the time that is modelled so, but for two
# whose columns fill no whole vectors of 32 bytes (1.75 and 2.0).
SHORT_FINISH = 2
SECOND_HEIGHT = 1.02  # what one height is worth: half the code, and half the time it takes LLVM
BLOCK = 64  # pixels of a unit of work, about
# Cycles a second, as the rest counts them: of vectors of 64 bytes a processor whose units have half
# of that starts one multiply-add a cycle, not two (dense ones of benchmarks/autotune.py run at 55
# GMAC/s with either, and so does the library with which they are compared).
CLOCK, NARROW_CLOCK = 2.15e9, 4.15e9
# Bytes of weights that a core reads from beyond its second cache in a second, beside what it
# computes meanwhile; with vectors of half a line in panels, and by rows that are far apart.
STREAM, NARROW_STREAM, NARROW_ROWS = 3e10, 1.5e10, 1e10
# Cycles that Winograd's transformations of a tile take for a vector of channels, there and back.
MIXED_CHUNK = 64  # products summed in registers where sums are mixed later, which adds their errors
TRANSFORM = {2: (50, 36), 4: (215, 180)}
LONGEST = 1 << 14  # channels: so many zeros stand for a place outside the image


@dataclass(frozen=True, slots=True)
class TileWork:
    """What a tile is chosen for."""

    pixels: int
    columns: int
    terms: int  # of a sum
    taps: int  # places of the image that a sum's terms come from

    def cycles(self, height: int, vectors: int, lanes: int) -> float:
        """Cycles that all tiles of a size take, roughly."""
        count = -(-self.pixels // height)
        each, more = divmod(self.pixels, count)
        total, line = 0.0, WAIT * lanes * 4 / L2_BYTES
        for rows, times in ((each, count - more), (each + 1, more)):
            loads = rows + vectors
            step = max(rows * vectors / PER_CYCLE, loads / PER_CYCLE, LATENCY) + vectors * line
            outside = rows * self.outside(vectors)
            total += times * (self.terms * (step + LOAD * loads) + outside)
        panels = -(-self.columns // (vectors * lanes))
        return panels * total * (SECOND_HEIGHT if more else 1.0)

    def outside(self, vectors: int) -> float:
        """Cycles of a pixel beside its sum."""
        return LOOK_UP * self.taps + FINISH * vectors


def best_shape(
    work: TileWork, lanes: int, target: Target, most: int = MOST_PIXELS * MOST_VECTORS
) -> tuple[float, int, int]:
    """Cycles, pixels and vectors of the best tile of no more than ``most`` accumulators."""
    shapes = [s for s in _shapes(target.vector_registers) if math.prod(s) <= most]
    cycles, _, height, vectors = min(
        (work.cycles(*shape, lanes), -math.prod(shape), *shape) for shape in shapes
    )
    return cycles, -(-work.pixels // -(-work.pixels // height)), vectors


def own_seconds(pixels: int, columns: int, terms: int, taps: int, target: Target) -> float:
    """What generated code takes for a convolution of float32 on one core.

    ``taps``: places of the image that are looked up for a pixel.
    """
    work = TileWork(pixels, columns, terms, taps)
    cycles, _, vectors = best_shape(work, target.lanes, target)
    tiled = -(-columns // (vectors * target.lanes)) * pixels
    seconds = max(cycles - tiled * work.outside(vectors), 0.0) / clock(target)
    finish = SHORT_FINISH if taps == 1 and terms <= SHORT else FINISH
    seconds += tiled * (LOOK_UP * taps + finish * vectors) / NARROW_CLOCK
    return seconds + _streamed(columns * terms, target, NARROW_STREAM)


def clock(target: Target) -> float:
    """Cycles of multiply-adds a second."""
    return CLOCK if target.vector_bytes >= WIDE else NARROW_CLOCK


def _streamed(weights: int, target: Target, narrow: float) -> float:
    """Seconds to read weights that the second cache does not keep."""
    rate = STREAM if target.vector_bytes >= WIDE else narrow
    return 0.0 if 4 * weights <= target.l2_bytes else 4 * weights / rate


def winograd_seconds(size: int, tiles: int, outputs: int, inputs: int, target: Target) -> float:
    """What generated code takes by Winograd's algorithm, in tiles of a size, on one core."""
    work = TileWork(tiles, outputs, inputs, 1)
    cycles, _, _ = best_shape(work, target.lanes, target)
    there, back = TRANSFORM[size]
    vectors = (inputs * there + outputs * back) / target.lanes
    every = (size + 2) ** 2
    seconds = (every * cycles + tiles * vectors) / clock(target)
    return seconds + _streamed(every * inputs * outputs, target, NARROW_ROWS)


def convolution_of(kernel: Kernel, target: Target) -> KernelConvolution | None:
    """The convolution to make tiles for; None where they do not suit kernel or target."""
    found = kernel_convolution(kernel)
    if found is None or "fma" not in target.features:
        return None
    axes = (*kernel.axes, *found.sums)
    known = all(isinstance(a.extent, int) and a.extent > 0 for a in axes)
    return found if known and size_of(found.channels) <= LONGEST else None


def convolution_tile(kernel: Kernel, found: KernelConvolution, target: Target) -> ConvolutionTile:
    """The tile for a convolution."""
    lanes = target.vector_bytes // item_bytes(found.total.dtype)
    pixels = math.prod(map(size_of, found.pixels))
    columns, terms = size_of(found.columns), math.prod(map(size_of, found.sums))
    work = TileWork(pixels, columns, terms, math.prod(map(size_of, found.taps)))
    size = len(found.totals) * item_bytes(found.total.dtype) * lanes
    _, height, vectors = best_shape(work, lanes, target, STACK_BYTES // size)
    tile = ConvolutionTile(
        pixels=tuple(a.name for a in found.pixels),
        heights=(height,),
        vectors=vectors,
        block=_block(pixels, height, STACK_BYTES // (size * vectors)),
        unroll=UNROLL,
        apart=0,
        chunk=0,
        by_pixels=_goes_by_pixels(kernel, found, target),
    )
    return _with_heights(_with_parts(tile, found), pixels)


def _goes_by_pixels(kernel: Kernel, found: KernelConvolution, target: Target) -> bool:
    """Whether a thread had better take all columns of some pixels than some columns of all.

    It reads all weights then, from its second cache or instead of a larger image; and what other
    kernels made of these pixels and will read of them it has in its caches, not another core.
    """
    outer = [a for a in kernel.axes if a not in found.pixels]
    panels = math.prod(size_of(a) for a in outer if found.weight.index.stride(a.name) != 0)
    sums, size = len(found.totals), item_bytes(found.total.dtype)
    weights = sums * panels * math.prod(map(size_of, found.sums)) * size
    image = sums * math.prod(map(size_of, found.pixels)) * size_of(found.channels) * size
    return weights <= max(target.l2_bytes // 2, image)


def convolution_cost(kernel: Kernel, found: KernelConvolution) -> int:
    """Picoseconds of one element of the result, with what follows its sum."""
    rest = replace(kernel, loops=tuple(loop for loop in kernel.loops if not loop.axes))
    products = len(found.totals) * math.prod(map(size_of, found.sums))
    return MULTIPLY_ADD * products + cost(rest)


def _shapes(registers: int) -> list[tuple[int, int]]:
    """Pixels and vectors of tiles whose accumulators, vectors and one more value fit registers."""
    return [
        (pixels, vectors)
        for vectors in range(1, MOST_VECTORS + 1)
        for pixels in range(1, MOST_PIXELS + 1)
        if pixels * vectors + vectors + 1 <= registers
    ]


def _block(pixels: int, height: int, most: int) -> int:
    """Pixels of a unit, not many more than BLOCK or ``most``: whole tiles, alike blocks."""
    tiles = -(-pixels // height)
    blocks = -(-tiles // max(1, min(BLOCK, most) // height))
    return -(-tiles // blocks) * height


def _with_parts(tile: ConvolutionTile, found: KernelConvolution) -> ConvolutionTile:
    """The tile with sums that leave the registers after CHUNK products at most."""
    sizes, most = [*map(size_of, found.sums)], MIXED_CHUNK if found.more else CHUNK
    for apart in range(len(sizes)):
        if math.prod(sizes[apart:]) <= most:
            return replace(tile, apart=apart)
    return replace(tile, apart=len(sizes) - 1, chunk=most)


def _with_heights(tile: ConvolutionTile, pixels: int) -> ConvolutionTile:
    """The tile with the heights that occur."""
    lengths = {min(tile.block, pixels), pixels % tile.block} - {0}
    heights = tuple(sorted(set().union(*map(tile.tiles, lengths)), reverse=True))
    return replace(tile, heights=heights, unroll=UNROLL if len(heights) == 1 else UNROLL // 2)
