"""What the LLVM renderer knows of a kernel before it writes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from dovetail.ir.dtypes import FLOATS
from dovetail.ir.kernel import (
    Apply,
    Axis,
    Const,
    Instruction,
    Kernel,
    Load,
    Loop,
    Position,
    Reduce,
    Scan,
    Store,
)


def without_idle_axes(kernel: Kernel) -> Kernel:
    """The kernel with no axis in an index that moves nothing: its place would have to be known."""

    def moving(i: Instruction) -> Instruction:
        if not isinstance(i, Load | Store | Position) or all(s != 0 for _, s in i.index.axes):
            return i
        axes = tuple((name, stride) for name, stride in i.index.axes if stride != 0)
        return replace(i, index=replace(i.index, axes=axes))

    loops = tuple(Loop(loop.axes, tuple(map(moving, loop.body))) for loop in kernel.loops)
    return replace(kernel, loops=loops)


def summed_products(loop: Loop) -> dict[str, tuple[str, ...]]:
    """Products that are only summed: a fused multiply-add is faster, and rounds once less."""
    used = Counter(name for i in loop.body for name in i.uses)
    summed = {i.args[0]: i.dtype for i in loop.body if isinstance(i, Reduce) and i.op == "sum"}
    return {
        i.name: i.args
        for i in loop.body
        if isinstance(i, Apply) and i.op == "mul" and i.dtype in FLOATS
        if used[i.name] == 1 and summed.get(i.name) == i.dtype
    }


def erf_plus_one(kernel: Kernel) -> tuple[dict[str, str], set[str]]:
    """Sums of 1 and an error function: what the function is applied to, by the sum's name.

    They need no more than the sum's own accuracy, which is cheaper (GELU is made of one). Also
    the error functions that are in no other use.
    """
    ones = {i.name for i in kernel.instructions() if isinstance(i, Const) and i.value == 1}
    erfs = {
        i.name: i.args[0] for i in kernel.instructions() if isinstance(i, Apply) and i.op == "erf"
    }
    sums: dict[str, str] = {}
    used: set[str] = set()
    for i in kernel.instructions() if erfs else ():
        if isinstance(i, Apply) and i.op == "add" and ones & set(i.args) and erfs.keys() & i.args:
            sums[i.name] = next(erfs[a] for a in i.args if a in erfs)
        else:
            used |= erfs.keys() & i.uses
    return sums, erfs.keys() - used


def varying(kernel: Kernel, axis: Axis | None) -> dict[str, bool]:
    """Which values differ along the vector axis."""
    varies: dict[str, bool] = {}
    along_loops = axis is not None and axis not in kernel.axes
    for loop in kernel.loops:
        moving = loop.axes[-1] if along_loops and loop.axes else axis
        for i in loop.body:
            found = any(varies.get(name, False) for name in i.uses)
            if isinstance(i, Load | Position | Store) and moving is not None:
                found |= i.index.stride(moving.name) != 0
            if along_loops and isinstance(i, Reduce | Scan):
                found = isinstance(i, Scan)
            varies[i.name] = found
    return varies


def read_after_written(kernel: Kernel) -> frozenset[str]:
    """Values that come from memory which the kernel writes: they are found in their order."""
    written = {b.name for b in kernel.buffers if b.role != "in"}
    found: set[str] = set()
    for i in kernel.instructions():
        if (isinstance(i, Load) and i.buffer in written) or not found.isdisjoint(i.uses):
            found.add(i.name)
    return frozenset(found)


Group = tuple[Load | Store, ...]
Groups = dict[Instruction, Group]


def interleaved(kernel: Kernel, axis: Axis | None) -> tuple[Groups, ...]:
    """Accesses of each loop that together are dense: every second, third or fourth element each.

    They are given by place; the whole group is done at its first load, or at its last store. A
    group is one loop's: the same store may stand in another, where vectors run along another axis.
    """
    roles = {b.name: b.role for b in kernel.buffers}
    along_loops = axis not in kernel.axes
    return tuple(
        _together(loop, loop.axes[-1] if along_loops and loop.axes else axis, roles)
        for loop in kernel.loops
    )


def _together(loop: Loop, moving: Axis | None, roles: Mapping[str, str]) -> Groups:
    """The groups of a loop whose vectors run along ``moving``."""
    same: dict[tuple[int, object], dict[int, Load | Store]] = {}
    for i in loop.body:
        if moving is None or not isinstance(i, Load | Store) or i.index.values:
            continue
        step, offset = i.index.stride(moving.name), i.index.offset
        if roles[i.buffer] == "inout" or (isinstance(i, Load) and i.mask is not None):
            continue
        if isinstance(step, int) and 2 <= step <= 4 and isinstance(offset, int):
            which = (type(i), i.buffer, frozenset(i.index.axes))
            same.setdefault((step, which), {}).setdefault(offset, i)
    found: Groups = {}
    for (length, _), places in same.items():
        found |= _runs(places, length)
    return found


def _runs(places: dict[int, Load | Store], length: int) -> Groups:
    """Accesses at as many neighbouring places as each skips, in groups."""
    found: Groups = {}
    left = dict(places)
    for offset in sorted(places):
        run = [left[n] for n in range(offset, offset + length) if n in left]
        if len(run) == length:
            found |= dict.fromkeys(run, tuple(run))
            for n in range(offset, offset + length):
                del left[n]
    return found
