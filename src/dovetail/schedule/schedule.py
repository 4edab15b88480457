"""A schedule: how one kernel is done on one target, as data.

A strategy (``schedule/cpu/``, ``schedule/gpu/``) makes it from a kernel and a target; a renderer
writes what it says and decides nothing. Any schedule that ``verify_schedule.py`` accepts computes
the same, but for the rounding of sums, so that a tuner may propose another one.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.ir.affine import count_points
from dovetail.ir.kernel import Axis, Kernel
from dovetail.ir.size import Dim
from dovetail.schedule.tiles import RegisterTiles, count_parts

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
        outer = count_points(a.extent for a in self.outer(kernel))
        rows = count_parts(extents[self.across], self.rows)
        return count_points((outer, rows, count_parts(extents[self.along], self.columns)))


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
    register_tiles: RegisterTiles | None = None
    calls: tuple[tuple[str, str], ...] = ()  # functions of vectors, by type, that are called
    erf_plus_one: tuple[str, ...] = ()  # sums computed as one function, to their own accuracy
    cost: int = 0  # picoseconds of one point of the parallel axes, with its loops
    grain: int = 1  # picoseconds of work that are worth another thread

    @property
    def span(self) -> int:
        """Elements of a parallel vector axis that a unit has, at most."""
        if self.tile is not None:
            return self.tile.columns
        tiled = 0 if self.register_tiles is None else self.register_tiles.columns(self.lanes)
        return tiled or self.block

    def units(self, kernel: Kernel) -> Dim:
        """How many units of work a kernel has; none where it does nothing."""
        if not kernel.loops:
            return 0
        if self.tile is not None:
            return self.tile.units(kernel)
        if self.register_tiles is not None:
            return self.register_tiles.units(kernel, str(self.vector), self.lanes)
        outer = count_points(a.extent for a in kernel.axes if a.name != self.vector)
        along = next((a for a in kernel.axes if a.name == self.vector), None)
        if along is None:
            return outer
        return count_points((outer, count_parts(along.extent, self.block)))
