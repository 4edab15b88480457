"""Tiles: loads that are dense along another axis than the vectors, turned in registers.

The stores of an elementwise kernel decide which way its vectors run. A load from memory that lies
the other way (a transposed matrix, channels last) would gather its elements one by one, each from
a cache line of its own. So a unit of work is a tile of both axes there: such loads are read along
their own axis, turned, and kept in a buffer on the stack, which the rows of the tile are read from.
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

ROWS, COLUMNS = 64, 64  # elements of a tile along the loads' axis and along the vectors'
SHORTEST = 8  # an axis that is worth a tile
MOST = 4  # buffers, so that all stay in a near cache


@dataclass(frozen=True)
class Tile:
    """The axis that loads are dense along, the vectors' axis, and those loads."""

    across: Axis
    along: Axis
    loads: tuple[Load, ...]

    def units(self, kernel: Kernel) -> Dim:
        """How many tiles there are."""
        outer = product(a.extent for a in self.outer(kernel))
        return mul(outer, mul(_parts(self.across, ROWS), _parts(self.along, COLUMNS)))

    def outer(self, kernel: Kernel) -> list[Axis]:
        """The axes of the tiles themselves."""
        return [a for a in kernel.axes if a not in (self.across, self.along)]


def _parts(axis: Axis, length: int) -> Dim:
    return Size.binary("floordiv", Size.binary("add", axis.extent, length - 1), length)


def tile_of(kernel: Kernel, along: Axis | None) -> Tile | None:
    """The tile a kernel is best done in; None where its loads lie as its vectors do."""
    if along is None or along not in kernel.axes or any(loop.axes for loop in kernel.loops):
        return None
    others = {a.name: a for a in kernel.axes if a is not along}
    found: dict[str, list[Load]] = {}
    for i in kernel.instructions():
        if isinstance(i, Load) and i.mask is None and not i.index.values:
            if i.index.stride(along.name) not in (0, 1, -1):
                for name in (n for n, stride in i.index.axes if stride == 1 and n in others):
                    found.setdefault(name, []).append(i)
    if not found or _is_short(along):
        return None
    name = max(found, key=lambda n: len(found[n]))
    if _is_short(others[name]):
        return None
    return Tile(others[name], along, tuple(dict.fromkeys(found[name]))[:MOST])


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
    number, columns = _span(r, number, tile.along, COLUMNS)
    number, rows = _span(r, number, tile.across, ROWS)
    r.decode(number, tile.outer(r.kernel))
    for load in tile.loads:
        _bring(r, tile, load, rows, columns)
    extent = tile.along.extent
    exact = isinstance(extent, int) and extent % r.lanes == 0

    def row(i: Val) -> None:
        r.axes[tile.across.name] = i
        r.tile_row = c.op("sub", _row(r, i, rows), columns[0])
        r.along_vector(*columns, exact, lambda _: r.loops())

    r.each(*rows, 1, row)


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
    """Read a tile the way its memory lies, square by square, into its buffer."""
    c, dtype = r.c, _stored(r, load)
    length = side(c, dtype)
    step = r.size(load.index.stride(tile.along.name))

    def squares(i: Val) -> None:
        r.axes[tile.along.name] = i
        column = c.op("sub", i, columns[0])

        def square(j: Val) -> None:
            r.axes[tile.across.name] = j
            source = memory.base(r, load.buffer, load.index, "")
            place = c.op("add", _row(r, j, rows), column)
            to = memory.address(c, r.turned[load], place, dtype)
            left = c.op("sub", columns[1], i), c.op("sub", rows[1], j)
            turn(c, dtype, source, step, *left, to, COLUMNS)

        r.each(*rows, length, square)

    r.each(*columns, length, squares)
