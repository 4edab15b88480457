"""Tiles: units of work that span two axes, the vectors' and another.

The stores of an elementwise kernel decide which way its vectors run. A load from memory that lies
the other way (a transposed matrix, channels last) would gather its elements one by one, each from
a cache line of its own. So such loads are read along their own axis, turned, and kept in a buffer
on the stack, which the rows of the tile are read from.

Where the vectors' axis is short, a tile spares most of the divisions that find a unit's place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail.codegen.llvm import memory
from dovetail.codegen.llvm.emit import TYPES, Val
from dovetail.codegen.llvm.turn import side, turn
from dovetail.ir.affine import mul, product
from dovetail.ir.kernel import Axis, Kernel, Load
from dovetail.ir.size import Dim, Size

if TYPE_CHECKING:
    from dovetail.codegen.llvm.render import Renderer

Span = tuple[Val, Val]  # from, and up to

ROWS, COLUMNS = 32, 64  # elements of a tile along the loads' axis and along the vectors'
SHORTEST = 8  # an axis that is worth a tile
ENOUGH = 16  # rows that are worth a unit of work, where they are short
MOST = 4  # buffers, so that all stay in a near cache


@dataclass(frozen=True)
class Tile:
    """Some points of an axis by some of the vectors' axis, and the loads that lie across."""

    across: Axis
    along: Axis
    rows: int
    columns: int
    loads: tuple[Load, ...] = ()

    def units(self, kernel: Kernel) -> Dim:
        """How many tiles there are."""
        outer = product(a.extent for a in self.outer(kernel))
        return mul(outer, mul(_parts(self.across, self.rows), _parts(self.along, self.columns)))

    def outer(self, kernel: Kernel) -> list[Axis]:
        """The axes of the tiles themselves."""
        return [a for a in kernel.axes if a not in (self.across, self.along)]


def _parts(axis: Axis, length: int) -> Dim:
    return Size.binary("floordiv", Size.binary("add", axis.extent, length - 1), length)


def tile_of(kernel: Kernel, along: Axis | None, block: int) -> Tile | None:
    """The tile a kernel is best done in; None where one axis is enough for a unit of work.

    ``block`` is how many points of the vectors' axis a unit has otherwise.
    """
    others = [a for a in kernel.axes if a is not along]
    if along is None or along not in kernel.axes or not others:
        return None
    if not any(loop.axes for loop in kernel.loops) and not _is_short(along):
        found = {a: _across(kernel, a, along) for a in others if not _is_short(a)}
        axis = max(found, key=lambda a: len(found[a]), default=along)
        if found.get(axis):
            return Tile(axis, along, ROWS, COLUMNS, found[axis][:MOST])
    if not isinstance(along.extent, int) or not 0 < 2 * along.extent <= block:
        return None
    return Tile(_many(others), along, block // along.extent, block)


def _many(axes: list[Axis]) -> Axis:
    """The innermost axis with many points, or the one with most."""
    points = [ENOUGH if isinstance(a.extent, Size) else min(a.extent, ENOUGH) for a in axes]
    return axes[max(range(len(axes)), key=lambda n: (points[n], n))]


def _across(kernel: Kernel, axis: Axis, along: Axis) -> tuple[Load, ...]:
    """The loads that are dense along ``axis``, and are not along the vectors' axis.

    They come before all else, so what the kernel itself writes is not among them.
    """
    only_read = {b.name for b in kernel.buffers if b.role == "in"}
    return tuple(
        dict.fromkeys(
            i
            for i in kernel.instructions()
            if isinstance(i, Load) and i.mask is None and not i.index.values
            if i.buffer in only_read
            if i.index.stride(along.name) not in (0, 1, -1) and i.index.stride(axis.name) == 1
        )
    )


def _is_short(axis: Axis) -> bool:
    return isinstance(axis.extent, int) and axis.extent < SHORTEST


def buffers(r: Renderer, tile: Tile) -> dict[Load, Val]:
    """Memory on the stack for what the tile's loads bring."""
    found = {}
    for number, load in enumerate(tile.loads):
        name, kind = f"%turned{number}", TYPES[_stored(r, load)]
        r.c.slots.append(f"  {name} = alloca [{ROWS * COLUMNS} x {kind}], align 64")
        found[load] = Val(name, "ptr")
    return found


def _stored(r: Renderer, load: Load) -> str:
    dtype = r.dtypes[load.buffer]
    return memory.STORED.get(dtype, dtype)


def unit(r: Renderer, tile: Tile, number: Val) -> None:
    """One tile: bring what lies across, then run the kernel row by row."""
    c = r.c
    number, columns = _span(r, number, tile.along, tile.columns)
    number, rows = _span(r, number, tile.across, tile.rows)
    r.decode(number, tile.outer(r.kernel))
    for load in tile.loads:
        _bring(r, tile, load, rows, columns)

    def row(i: Val) -> None:
        r.axes[tile.across.name] = i
        r.tile_row = c.op("sub", _row(r, i, rows), columns[0])
        r.row(*columns)

    c.each(*rows, 1, row)


def _span(r: Renderer, number: Val, axis: Axis, length: int) -> tuple[Val, Span]:
    """A unit's number without this axis, and the part of the axis that it is at."""
    c, extent = r.c, r.size(axis.extent)
    if isinstance(axis.extent, int) and axis.extent <= length:
        return number, (c.const(0, "int64"), extent)
    more = c.op("add", extent, c.const(length - 1, "int64"))
    count = c.op("udiv", more, c.const(length, "int64"))
    low = c.op("mul", c.op("urem", number, count), c.const(length, "int64"))
    high = c.op("add", low, c.const(length, "int64"))
    high = c.select(c.compare("icmp slt", extent, high), extent, high)
    return c.op("udiv", number, count), (low, high)


def _row(r: Renderer, i: Val, rows: Span) -> Val:
    """Where a row starts in a buffer."""
    return r.c.op("mul", r.c.op("sub", i, rows[0]), r.c.const(COLUMNS, "int64"))


def _bring(r: Renderer, tile: Tile, load: Load, rows: Span, columns: Span) -> None:
    """Read a tile the way its memory lies, band by band, into its buffer."""
    c, dtype = r.c, _stored(r, load)
    step = r.size(load.index.stride(tile.along.name))
    r.axes[tile.across.name] = rows[0]
    count = c.op("sub", rows[1], rows[0])

    def band(i: Val) -> None:
        r.axes[tile.along.name] = i
        source = memory.base(r, load.buffer, load.index, "")
        to = memory.address(c, r.turned[load], c.op("sub", i, columns[0]), dtype)
        turn(c, dtype, source, step, c.op("sub", columns[1], i), count, to, COLUMNS)

    c.each(*columns, side(c, dtype), band)
