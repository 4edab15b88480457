"""Tiles of accumulators that stay in registers: of matrix products and of convolutions, as data.

A schedule has one of these or none (``schedule.py``); each prints, and its text parses back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dovetail.ir.affine import count_points
from dovetail.ir.kernel import Axis, Kernel
from dovetail.ir.size import Dim, Size

# Bytes of a kernel's own copies on the stack. Threads of some systems have 128 KiB in all.
STACK_BYTES = 96 << 10
_HEIGHTS = r"by (\d+(?: or \d+)*)"


def count_parts(extent: Dim, length: int) -> Dim:
    """How many parts of a length there are, the last of which may be shorter."""
    return Size.binary("floordiv", Size.binary("add", extent, length - 1), length)


def heights_met(length: int, most: int) -> set[int]:
    """The heights of as few tiles as a length can be cut into; they differ by one at most."""
    count = -(-length // most)
    return {(n + 1) * length // count - n * length // count for n in range(count)}


def _points(kernel: Kernel, but: Iterable[str | None]) -> Dim:
    """The points of the parallel axes that are not among some."""
    return count_points(a.extent for a in kernel.axes if a.name not in but)


@dataclass(frozen=True, slots=True)
class ProductTile:
    """A sum of products in tiles of accumulators that stay in registers.

    A tile is some rows of the axis ``rows`` by ``vectors`` vectors of columns. A unit of work is
    ``block`` rows by the columns of one tile; it is cut into as few tiles as their heights allow,
    which differ by one row at most. What varies with the rows is broadcast, what varies with the
    columns is loaded in vectors: from where it lies, or, where it is ``packed``, from a copy on the
    stack in which the columns of a tile lie together. Neighbouring units have the same rows where
    they go ``by_rows``, else the same columns. What the kernel does with sums it does
    ``from_registers``, written out for each, else in a loop. Steps of bfloat16 are taken in
    ``pairs``: a lane of the copy holds those of two steps, which one instruction multiplies.
    """

    rows: str
    heights: tuple[int, ...]  # the rows that a tile may have, the most first
    vectors: int
    block: int
    unroll: int  # steps of the sum that are written out
    chunk: int  # products summed in registers before their sum enters the total; 0: all of them
    depth: int  # steps of the sum done for all rows of a unit before the next; 0: all of them
    packed: bool
    by_rows: bool = False
    ahead: int = 0  # steps between a step and the one whose columns it asks memory for; 0: none
    from_registers: bool = False
    pairs: bool = False

    def tiles(self, rows: int) -> set[int]:
        """The heights of the tiles that so many rows are cut into."""
        return heights_met(rows, self.heights[0])

    def outer(self, kernel: Kernel, along: str | None) -> list[Axis]:
        """The axes of units beside those of a tile."""
        return [a for a in kernel.axes if a.name not in (self.rows, along)]

    def columns(self, lanes: int) -> int:
        """Columns of a unit; 0: all."""
        return self.vectors * lanes

    def units(self, kernel: Kernel, along: str, lanes: int) -> Dim:
        """How many units there are, with vectors of ``lanes`` elements of the axis ``along``."""
        extents = {a.name: a.extent for a in kernel.axes}
        panels = count_parts(extents[along], self.columns(lanes))
        blocks = count_parts(extents[self.rows], self.block)
        return count_points((_points(kernel, (self.rows, along)), blocks, panels))

    def __str__(self) -> str:
        packed = " packed" if self.packed else ""
        packed += " by rows" if self.by_rows else ""
        packed += f" ahead {self.ahead}" if self.ahead else ""
        packed += " from registers" if self.from_registers else ""
        packed += " in pairs" if self.pairs else ""
        sums = f"unroll {self.unroll} chunk {self.chunk} depth {self.depth}{packed}"
        return f"{self.rows} {_tall(self.heights)} of {self.block}, {self.vectors} vectors, {sums}"

    @staticmethod
    def parse(text: str) -> ProductTile:
        """The tile that ``str`` wrote."""
        numbers = r"(\d+), (\d+) vectors, unroll (\d+) chunk (\d+) depth (\d+)"
        ways = r"( packed)?( by rows)?(?: ahead (\d+))?( from registers)?( in pairs)?"
        pattern = rf"(\w+) {_HEIGHTS} of {numbers}{ways}"
        rows, heights, *found, packed, order, ahead, finish, pairs = _match(pattern, text)
        block, vectors, unroll, chunk, depth = map(int, found)
        sums = (unroll, chunk, depth, packed is not None, order is not None, int(ahead or 0))
        ends = (finish is not None, pairs is not None)
        return ProductTile(rows, _heights(heights), vectors, block, *sums, *ends)


@dataclass(frozen=True, slots=True)
class DotTile:
    """A sum of products of few rows whose operands are both dense along the sum.

    A tile is some rows by ``together`` columns. Each of its sums has an accumulator whose lanes are
    neighbouring steps, added up at the end: columns are read once, in the order in which they lie.
    A unit of work is all rows by ``block`` columns, cut into tiles whose heights differ by one at
    most. Lanes hold ``pairs`` of steps of bfloat16, which one instruction multiplies, or one each.
    """

    rows: str
    heights: tuple[int, ...]  # the rows that a tile may have, the most first
    together: int  # columns of a tile, a power of two; the last of a unit are done one by one
    block: int  # columns of a unit
    chunk: int  # steps summed in registers before their sum enters the total; 0: all of them
    ahead: int = 0  # columns between one and that which it asks memory for meanwhile; 0: none
    pairs: bool = False

    def columns(self, lanes: int) -> int:  # noqa: ARG002  # as those of other tiles
        """Columns of a unit; 0: all."""
        return self.block

    def units(self, kernel: Kernel, along: str, lanes: int) -> Dim:  # noqa: ARG002
        """How many units there are."""
        columns = next(a.extent for a in kernel.axes if a.name == along)
        return count_points((_points(kernel, (self.rows, along)), count_parts(columns, self.block)))

    def __str__(self) -> str:
        sums = f"{self.together} together of {self.block}, chunk {self.chunk} ahead {self.ahead}"
        pairs = " in pairs" if self.pairs else ""
        return f"{self.rows} {_tall(self.heights)}, {sums}{pairs}"

    @staticmethod
    def parse(text: str) -> DotTile:
        """The tile that ``str`` wrote."""
        numbers = r"(\d+) together of (\d+), chunk (\d+) ahead (\d+)"
        pattern = rf"(\w+) {_HEIGHTS}, {numbers}( in pairs)?"
        rows, heights, *found, pairs = _match(pattern, text)
        together, block, chunk, ahead = map(int, found)
        sums = (together, block, chunk, ahead, pairs is not None)
        return DotTile(rows, _heights(heights), *sums)


@dataclass(frozen=True, slots=True)
class ConvolutionTile:
    """A convolution in tiles of accumulators that stay in registers.

    A tile is some pixels, counted through the axes ``pixels``, by ``vectors`` vectors of columns
    (channels of the result). A unit of work is ``block`` pixels by the columns of one tile; it is
    cut into as few tiles as their heights allow, which differ by one pixel at most. Neighbouring
    units have the same pixels where they go ``by_pixels``, else the same weights.
    """

    pixels: tuple[str, ...]
    heights: tuple[int, ...]  # the pixels that a tile may have, the most first
    vectors: int
    block: int
    unroll: int  # channels that are written out
    apart: int  # loops over taps, the outermost first, whose every step is summed apart
    chunk: int  # channels summed in registers before their sum enters the total; 0: all of them
    by_pixels: bool

    def held(self, sums: int) -> int:
        """Pixels whose totals are there at once: of a unit, where there are several ``sums``."""
        return self.heights[0] if sums == 1 else self.block

    def count(self, kernel: Kernel) -> Dim:
        """How many pixels there are."""
        return count_points(a.extent for a in kernel.axes if a.name in self.pixels)

    def tiles(self, pixels: int) -> set[int]:
        """The heights of the tiles that so many pixels are cut into."""
        return heights_met(pixels, self.heights[0])

    def outer(self, kernel: Kernel, along: str | None) -> list[Axis]:
        """The axes of units beside those of a tile."""
        return [a for a in kernel.axes if a.name not in (*self.pixels, along)]

    def columns(self, lanes: int) -> int:
        """Columns of a unit; 0: all."""
        return self.vectors * lanes

    def units(self, kernel: Kernel, along: str, lanes: int) -> Dim:
        """How many units there are, with vectors of ``lanes`` elements of the axis ``along``."""
        columns = next(a.extent for a in kernel.axes if a.name == along)
        panels = count_parts(columns, self.columns(lanes))
        blocks = count_parts(self.count(kernel), self.block)
        return count_points((_points(kernel, (*self.pixels, along)), blocks, panels))

    def __str__(self) -> str:
        order = " by pixels" if self.by_pixels else ""
        sums = f"unroll {self.unroll} apart {self.apart} chunk {self.chunk}{order}"
        where = f"{' '.join(self.pixels)} {_tall(self.heights)} of {self.block}"
        return f"{where}, {self.vectors} vectors, {sums}"

    @staticmethod
    def parse(text: str) -> ConvolutionTile:
        """The tile that ``str`` wrote."""
        numbers = r"(\d+), (\d+) vectors, unroll (\d+) apart (\d+) chunk (\d+)"
        pattern = rf"(\w+(?: \w+)*) {_HEIGHTS} of {numbers}( by pixels)?"
        pixels, heights, *found, order = _match(pattern, text)
        block, vectors, unroll, apart, chunk = map(int, found)
        axes, sums = tuple(pixels.split()), (unroll, apart, chunk, order is not None)
        return ConvolutionTile(axes, _heights(heights), vectors, block, *sums)


@dataclass(frozen=True, slots=True)
class DepthwiseTile:
    """A convolution of each channel by itself: some pixels of a row by vectors of channels.

    A unit of work is a row of the axis ``pixels`` with all channels; it is cut into as few tiles as
    their heights allow, which differ by one pixel at most.
    """

    pixels: str
    heights: tuple[int, ...]  # the pixels that a tile may have, the most first
    walked: int = 0  # axes of taps, the outermost first, that are loops; others are written out

    def columns(self, lanes: int) -> int:  # noqa: ARG002  # as those of other tiles
        """Columns of a unit; 0: all."""
        return 0

    def units(self, kernel: Kernel, along: str, lanes: int) -> Dim:  # noqa: ARG002
        """How many rows there are."""
        return _points(kernel, (self.pixels, along))

    def __str__(self) -> str:
        walked = f", {self.walked} walked" if self.walked else ""
        return f"{self.pixels} {_tall(self.heights)}{walked}"

    @staticmethod
    def parse(text: str) -> DepthwiseTile:
        """The tile that ``str`` wrote."""
        pixels, heights, walked = _match(rf"(\w+) {_HEIGHTS}(?:, (\d+) walked)?", text)
        return DepthwiseTile(pixels, _heights(heights), int(walked or 0))


RegisterTiles = ProductTile | DotTile | ConvolutionTile | DepthwiseTile
# By the word that stands before their text.
TILES: dict[str, type[RegisterTiles]] = {
    "product": ProductTile,
    "dots": DotTile,
    "convolution": ConvolutionTile,
    "depthwise": DepthwiseTile,
}


def _tall(heights: tuple[int, ...]) -> str:
    return f"by {' or '.join(map(str, heights))}"


def _heights(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(" or ")))


def _match(pattern: str, text: str) -> tuple[str, ...]:
    found = re.fullmatch(pattern, text)
    if found is None:
        raise ValueError(f"cannot read {text!r}")
    return found.groups()
