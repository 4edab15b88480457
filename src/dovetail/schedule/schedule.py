"""A schedule: how one kernel is done on one target, as data.

A strategy (``schedule/cpu/``, ``schedule/gpu/``) makes it from a kernel and a target; a renderer
writes what it says and decides nothing. Any schedule that ``verify_schedule.py`` accepts computes
the same, but for the rounding of sums, so that a tuner may propose another one.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.ir.affine import mul, product
from dovetail.ir.kernel import Axis, Kernel
from dovetail.ir.size import Dim, Size

LOOPS = "*"  # in place of a vector axis: the last axis of every loop


@dataclass(frozen=True, slots=True)
class Steps:
    """How vectors go along an axis: loop after loop, each so many of them at a time.

    ``masked`` says where lanes are left out: in the ``rest`` behind the whole vectors, in ``all``
    vectors (one loop, written once), or ``none``.
    """

    counts: tuple[int, ...] = (1,)
    masked: str = "rest"

    @property
    def most(self) -> int:
        """Vectors in one step: so many accumulators are independent."""
        return max(self.counts, default=1)


@dataclass(frozen=True, slots=True)
class LoopSchedule:
    """One loop of a kernel. ``steps`` is None where its last axis goes element by element."""

    steps: Steps | None = None
    chunk: int = 0  # elements reduced to one before that enters the total; 0: all of them
    exact: bool = False  # sums of float32: totals are float64
    multiply_adds: tuple[str, ...] = ()  # products that become one operation with their sum
    scans: tuple[tuple[str, int], ...] = ()  # points of a scan along the lanes done at a time
    interleaved: tuple[tuple[int, ...], ...] = ()  # accesses, by place, done as dense ones together


@dataclass(frozen=True, slots=True)
class Tile:
    """A unit of work of two axes: rows of ``across``, columns of ``along``, the vector axis.

    ``transposed`` are loads that are dense along ``across``: so many columns at a time they are
    read the way they lie, and kept transposed on the stack.
    """

    across: str
    along: str
    rows: int
    columns: int
    transposed: tuple[tuple[str, int], ...] = ()

    def outer(self, kernel: Kernel) -> list[Axis]:
        """The axes of the tiles themselves."""
        return [a for a in kernel.axes if a.name not in (self.across, self.along)]

    def units(self, kernel: Kernel) -> Dim:
        """How many tiles there are."""
        extents = {a.name: a.extent for a in kernel.axes}
        outer = product(a.extent for a in self.outer(kernel))
        rows = _parts(extents[self.across], self.rows)
        return mul(outer, mul(rows, _parts(extents[self.along], self.columns)))


# Bytes of a kernel's own copies on the stack. Threads of some systems have 128 KiB in all.
STACK_BYTES = 96 << 10


@dataclass(frozen=True, slots=True)
class ProductTile:
    """A sum of products in tiles of accumulators that stay in registers.

    A tile is some rows of the axis ``rows`` by ``vectors`` vectors of columns. A unit of work is
    ``block`` rows by the columns of one tile; it is cut into as few tiles as their heights allow,
    which differ by one row at most. What varies with the rows is broadcast, what varies with the
    columns is loaded in vectors: from where it lies, or, where it is ``packed``, from a copy on the
    stack in which the columns of a tile lie together.
    """

    rows: str
    heights: tuple[int, ...]  # the rows that a tile may have, the most first
    vectors: int
    block: int
    unroll: int  # steps of the sum that are written out
    chunk: int  # products summed in registers before their sum enters the total; 0: all of them
    depth: int  # steps of the sum done for all rows of a unit before the next; 0: all of them
    packed: bool

    def tiles(self, rows: int) -> set[int]:
        """The heights of the tiles that so many rows are cut into."""
        count = -(-rows // self.heights[0])
        return {(n + 1) * rows // count - n * rows // count for n in range(count)}

    def outer(self, kernel: Kernel, along: str | None) -> list[Axis]:
        """The axes of units beside those of a tile."""
        return [a for a in kernel.axes if a.name not in (self.rows, along)]


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

    def count(self, kernel: Kernel) -> Dim:
        """How many pixels there are."""
        return product(a.extent for a in kernel.axes if a.name in self.pixels)

    def tiles(self, pixels: int) -> set[int]:
        """The heights of the tiles that so many pixels are cut into."""
        count = -(-pixels // self.heights[0])
        return {(n + 1) * pixels // count - n * pixels // count for n in range(count)}

    def outer(self, kernel: Kernel, along: str | None) -> list[Axis]:
        """The axes of units beside those of a tile."""
        return [a for a in kernel.axes if a.name not in (*self.pixels, along)]

    def units(self, kernel: Kernel, along: str, width: int) -> Dim:
        """How many units there are; ``width``: columns of a tile."""
        columns = next(a.extent for a in kernel.axes if a.name == along)
        blocks = mul(_parts(self.count(kernel), self.block), _parts(columns, width))
        return mul(product(a.extent for a in self.outer(kernel, along)), blocks)


@dataclass(frozen=True, slots=True)
class DepthwiseTile:
    """A convolution of each channel by itself: some pixels of a row by vectors of channels.

    A unit of work is a row of the axis ``pixels`` with all channels; it is cut into as few tiles as
    their heights allow, which differ by one pixel at most.
    """

    pixels: str
    heights: tuple[int, ...]  # the pixels that a tile may have, the most first

    def units(self, kernel: Kernel, along: str) -> Dim:
        """How many rows there are."""
        return product(a.extent for a in kernel.axes if a.name not in (self.pixels, along))


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a kernel is done. ``target`` is the name of the one it was made for."""

    target: str
    vector: str | None  # the axis of vectors: one of the kernel's, LOOPS, or none
    lanes: int  # elements of a vector; it may take several registers side by side
    loops: tuple[LoopSchedule, ...]
    block: int = 0  # elements of a parallel vector axis in a unit of work
    steps: Steps | None = None  # along a parallel vector axis, inside a unit
    tile: Tile | None = None
    product: ProductTile | None = None
    convolution: ConvolutionTile | None = None
    depthwise: DepthwiseTile | None = None
    calls: tuple[tuple[str, str], ...] = ()  # functions of vectors, by type, that are called
    erf_plus_one: tuple[str, ...] = ()  # sums computed as one function, to their own accuracy
    cost: int = 0  # picoseconds of one point of the parallel axes, with its loops
    grain: int = 1  # picoseconds of work that are worth another thread

    def units(self, kernel: Kernel) -> Dim:
        """How many units of work a kernel has; none where it does nothing."""
        if not kernel.loops:
            return 0
        if self.tile is not None:
            return self.tile.units(kernel)
        if self.product is not None:
            p, extents = self.product, {a.name: a.extent for a in kernel.axes}
            outer = product(a.extent for a in p.outer(kernel, self.vector))
            rows = _parts(extents[p.rows], p.block)
            return mul(outer, mul(rows, _parts(extents[str(self.vector)], p.vectors * self.lanes)))
        if self.convolution is not None:
            width = self.convolution.vectors * self.lanes
            return self.convolution.units(kernel, str(self.vector), width)
        if self.depthwise is not None:
            return self.depthwise.units(kernel, str(self.vector))
        outer = product(a.extent for a in kernel.axes if a.name != self.vector)
        along = next((a for a in kernel.axes if a.name == self.vector), None)
        return outer if along is None else mul(outer, _parts(along.extent, self.block))


@dataclass(frozen=True, slots=True)
class BlockSchedule:
    """How a kernel is done by blocks of threads of a GPU.

    A block has ``rows`` points of the parallel axes and, at a time, ``columns`` points of a loop's
    axes, or of the parallel axes ``along``. A ``persistent`` block reads a row once, and every loop
    finds it in registers; where a loop has more columns, they are written out step by step.
    """

    target: str
    rows: int
    columns: int = 0  # 0: no second dimension
    warps: int = 4
    persistent: bool = False
    along: tuple[str, ...] = ()
    wide: bool = False  # places in memory are 64-bit numbers
    online: bool = False  # a maximum and the sum of powers relative to it are found in one loop
    short: bool = False  # what is computed is rounded to 16 bits, and functions need no more
    cost: int = 0  # picoseconds of the kernel; a size that is not known counts as UNKNOWN_SIZE

    def units(self, kernel: Kernel) -> Dim:
        """How many blocks a kernel has; none where it does nothing."""
        if not kernel.loops:
            return 0
        rows = product(a.extent for a in kernel.axes if a.name not in self.along)
        columns = product(a.extent for a in kernel.axes if a.name in self.along)
        return mul(_parts(rows, self.rows), _parts(columns, self.columns) if self.along else 1)


def _parts(extent: Dim, length: int) -> Dim:
    return Size.binary("floordiv", Size.binary("add", extent, length - 1), length)
