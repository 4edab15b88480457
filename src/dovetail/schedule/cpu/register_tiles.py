"""Which kernels are done in tiles of registers, and how: products and convolutions of all kinds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dovetail.ir.kernel import Axis, Kernel
from dovetail.ir.kernel_convolution import size_of
from dovetail.ir.kernel_product import KernelProduct
from dovetail.ir.target import PAIRS_OF_BFLOAT16, TARGETS, WITHOUT_PAIRS, Target
from dovetail.schedule.cpu.convolution import convolution_cost, convolution_of, convolution_tile
from dovetail.schedule.cpu.cost import cost
from dovetail.schedule.cpu.depthwise import depthwise_of, depthwise_tile
from dovetail.schedule.cpu.dots import dot_tile, suits
from dovetail.schedule.cpu.product import in_pairs, lanes_of, product_cost, product_of, product_tile
from dovetail.schedule.tiles import DotTile, ProductTile, RegisterTiles


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
        each, lanes = product_cost(kernel, matrix, target), lanes_of(matrix, target)
        tile = _tile(kernel, matrix, target, lanes)
        yield Tiling(tile, matrix.columns, matrix.total.dtype, each)
    alone = depthwise_of(kernel, target)
    if alone is not None:
        row, every = depthwise_tile(alone, target), size_of(alone.channels)
        yield Tiling(row, alone.channels, alone.total.dtype, cost(kernel), every)


def _tile(
    kernel: Kernel, found: KernelProduct, target: Target, lanes: int
) -> DotTile | ProductTile:
    """The tile of a product, by its rows."""
    pairs = in_pairs(kernel, found, target)
    if suits(found, lanes, pairs=pairs):
        return dot_tile(found, target, lanes, pairs=pairs)
    return product_tile(kernel, found, target)


def least_target(kernels: Iterable[Kernel], target: Target) -> Target:
    """The smallest target whose code for some kernels is the same.

    Processors without an instruction that none of them uses run it too.
    """
    if PAIRS_OF_BFLOAT16 not in target.features:
        return target
    products = ((kernel, product_of(kernel, target)) for kernel in kernels)
    used = any(found and in_pairs(kernel, found, target) for kernel, found in products)
    return target if used else TARGETS[WITHOUT_PAIRS]
