"""Facts of a kernel that schedules and renderers need alike."""

from __future__ import annotations

from dataclasses import replace

from dovetail.ir.kernel import Index, Kernel, Load, Position, Reduce, Scan, Store


def without_idle_axes(kernel: Kernel) -> Kernel:
    """The kernel with no axis in an index that moves nothing: its place would have to be known."""

    def moving(index: Index) -> Index:
        return index.without([name for name, stride in index.axes if stride == 0])

    return replace(kernel, loops=tuple(loop.reindexed(moving) for loop in kernel.loops))


def varying(kernel: Kernel, vector: str | None) -> dict[str, bool]:
    """Which values differ from lane to lane.

    ``vector`` is the vectors' axis; one that is not the kernel's stands for every loop's last.
    """
    varies: dict[str, bool] = {}
    along_loops = vector is not None and all(a.name != vector for a in kernel.axes)
    for loop in kernel.loops:
        moving = loop.axes[-1].name if along_loops and loop.axes else vector
        for i in loop.body:
            found = any(varies.get(name, False) for name in i.uses)
            if isinstance(i, Load | Position | Store) and moving is not None:
                found |= i.index.stride(moving) != 0
            if along_loops and isinstance(i, Reduce | Scan):
                found = isinstance(i, Scan)
            varies[i.name] = found
    return varies


def read_after_written(kernel: Kernel) -> frozenset[str]:
    """Values that come from memory which the kernel writes: they are read in their order."""
    written = {b.name for b in kernel.buffers if b.role != "in"}
    found: set[str] = set()
    for i in kernel.instructions():
        if (isinstance(i, Load) and i.buffer in written) or not found.isdisjoint(i.uses):
            found.add(i.name)
    return frozenset(found)
