"""Which kernels are done in tiles of registers, and how: products and convolutions of all kinds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dovetail.ir.kernel import Axis, Kernel
from dovetail.ir.kernel_convolution import size_of
from dovetail.ir.target import Target
from dovetail.schedule.cpu.convolution import convolution_cost, convolution_of, convolution_tile
from dovetail.schedule.cpu.cost import cost
from dovetail.schedule.cpu.depthwise import depthwise_of, depthwise_tile
from dovetail.schedule.cpu.dots import dot_tile, suits
from dovetail.schedule.cpu.product import lanes_of, product_cost, product_of, product_tile
from dovetail.schedule.tiles import RegisterTiles


class Tiling(NamedTuple):
    """The tiles of a kernel, and what follows from them."""

    tiles: RegisterTiles
    axis: Axis  # of vectors
    dtype: str  # of sums
    cost: int  # picoseconds of a point
    block: int = 0  # elements of the axis in a unit; 0: the columns of a tile


def tiling_of(kernel: Kernel, target: Target) -> Tiling | None:
    """The tiles to do a kernel in; None: it has no sum for which they are worth it."""
    return next(_tilings(kernel, target), None)


def _tilings(kernel: Kernel, target: Target) -> Iterator[Tiling]:
    image = convolution_of(kernel, target)
    if image is not None:
        tiles, each = convolution_tile(kernel, image, target), convolution_cost(kernel, image)
        yield Tiling(tiles, image.columns, image.total.dtype, each)
    matrix = product_of(kernel, target)
    if matrix is not None:
        each, lanes = product_cost(kernel, matrix), lanes_of(matrix, target)
        few = suits(matrix, lanes)
        tile = dot_tile(matrix, target, lanes) if few else product_tile(kernel, matrix, target)
        yield Tiling(tile, matrix.columns, matrix.total.dtype, each)
    alone = depthwise_of(kernel, target)
    if alone is not None:
        row, every = depthwise_tile(alone, target), size_of(alone.channels)
        yield Tiling(row, alone.channels, alone.total.dtype, cost(kernel), every)
