"""Tiles: units of work that span two axes, and the loads that are brought transposed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.codegen.llvm import memory
from dovetail.codegen.llvm.emit import TYPES, Val
from dovetail.codegen.llvm.transpose import transpose
from dovetail.ir.kernel import Axis, Load
from dovetail.schedule.schedule import Tile

if TYPE_CHECKING:
    from dovetail.codegen.llvm.render import Renderer

Span = tuple[Val, Val]  # from, and up to


def buffers(r: Renderer, tile: Tile) -> dict[Load, Val]:
    """Memory on the stack for what the tile's loads bring."""
    found = {}
    for number, (load, _) in enumerate(_loads(r, tile)):
        name, kind = f"%transposed{number}", TYPES[_stored(r, load)]
        r.c.slots.append(f"  {name} = alloca [{tile.rows * tile.columns} x {kind}], align 64")
        found[load] = Val(name, "ptr")
    return found


def _loads(r: Renderer, tile: Tile) -> list[tuple[Load, int]]:
    """The loads that are brought, in the order of the tile, and the columns of a band of each."""
    named = {i.name: i for i in r.kernel.instructions() if isinstance(i, Load)}
    return [(named[name], band) for name, band in tile.transposed]


def _axis(r: Renderer, name: str) -> Axis:
    return next(a for a in r.kernel.axes if a.name == name)


def _stored(r: Renderer, load: Load) -> str:
    dtype = r.dtypes[load.buffer]
    return memory.STORED.get(dtype, dtype)


def unit(r: Renderer, tile: Tile, number: Val) -> None:
    """One tile: bring what lies across, then run the kernel row by row."""
    c = r.c
    number, columns = span(r, number, _axis(r, tile.along), tile.columns)
    number, rows = span(r, number, _axis(r, tile.across), tile.rows)
    r.decode(number, tile.outer(r.kernel))
    for load, band in _loads(r, tile):
        _bring(r, tile, load, band, rows, columns)

    def row(i: Val) -> None:
        r.axes[tile.across] = i
        if tile.transposed:
            start = c.op("mul", c.op("sub", i, rows[0]), c.const(tile.columns, "int64"))
            r.tile_row = c.op("sub", start, columns[0])
        r.row(*columns)

    c.each(*rows, 1, row)


def span(r: Renderer, number: Val, axis: Axis, length: int) -> tuple[Val, Span]:
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


def _bring(r: Renderer, tile: Tile, load: Load, band: int, rows: Span, columns: Span) -> None:
    """Read a tile the way its memory lies, band by band, into its buffer."""
    c, dtype = r.c, _stored(r, load)
    step = r.size(load.index.stride(tile.along))
    r.axes[tile.across] = rows[0]
    count = c.op("sub", rows[1], rows[0])

    def bring(i: Val) -> None:
        r.axes[tile.along] = i
        source = memory.base(r, load.buffer, load.index, "")
        to = memory.address(c, r.transposed[load], c.op("sub", i, columns[0]), dtype)
        left = c.op("sub", columns[1], i)
        transpose(c, (dtype, dtype), band, (source, step, left, count, to), tile.columns)

    c.each(*columns, band, bring)
