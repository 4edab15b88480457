"""Tiles: units of work that span two axes, the vectors' and another.

The stores of an elementwise kernel decide which way its vectors run. A load from memory that lies
the other way (a transposed matrix, channels last) would gather its elements one by one, each from
a cache line of its own. So such loads are read along their own axis, transposed, and kept in a
buffer on the stack, which the rows of the tile are read from.

Where the vectors' axis is short, a tile spares most of the divisions that find a unit's place.
"""

from __future__ import annotations

from dovetail.ir.dtypes import item_bytes
from dovetail.ir.kernel import Axis, Kernel, Load
from dovetail.ir.size import Size
from dovetail.ir.target import Target
from dovetail.schedule.schedule import Tile

ROWS, COLUMNS = 32, 64  # elements of a tile along the loads' axis and along the vectors'
_ELEMENT = 4  # bytes, of most
SHORTEST = 8  # elements of an axis that is worth a tile
ENOUGH = 16  # rows that are worth a unit of work, where they are short
BAND = 8  # columns read together: their cache lines stay, even if a power of two apart


def tile_of(kernel: Kernel, along: Axis | None, block: int, target: Target) -> Tile | None:
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
            most = target.l1_bytes // (ROWS * COLUMNS * _ELEMENT)  # so that all buffers stay in it
            loads = tuple((i.name, _band(kernel, i, target)) for i in found[axis][:most])
            return Tile(axis.name, along.name, ROWS, COLUMNS, loads)
    if not isinstance(along.extent, int) or not 0 < 2 * along.extent <= block:
        return None
    return Tile(_many(others).name, along.name, block // along.extent, block)


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


def _band(kernel: Kernel, load: Load, target: Target) -> int:
    """Columns of a band: what a register, or a part of it, has elements for."""
    size = next(item_bytes(b.dtype) for b in kernel.buffers if b.name == load.buffer)
    return min(BAND, target.lanes, target.vector_bytes // size)


def _is_short(axis: Axis) -> bool:
    return isinstance(axis.extent, int) and axis.extent < SHORTEST
