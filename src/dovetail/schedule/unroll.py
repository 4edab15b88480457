"""A short axis that memory is interleaved by, written out: pairs, pixels of three colours.

Vectors cannot run along two or three elements. Written out, the next axis is the one they run
along, and the accesses next to each other in memory stand next to each other in the body.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from dovetail.ir.kernel import Axis, Const, Index, Instruction, Kernel, Load, Loop, Position, Store
from dovetail.schedule.limits import Limits
from dovetail.schedule.split import LoopPart


def unroll(kernel: Kernel, limits: Limits) -> Kernel:
    """The elementwise kernel without its short axis, if it has such a one."""
    if any(loop.axes for loop in kernel.loops) or len(kernel.axes) < 2:
        return kernel
    for axis in reversed(kernel.axes):
        others = tuple(a for a in kernel.axes if a is not axis)
        if isinstance(axis.extent, int) and 2 <= axis.extent <= limits.interleaved:
            if _is_interleaved(kernel, axis, others[-1]):
                body = _written_out(kernel, axis, axis.extent)
                if len(body) <= limits.written_out:
                    return replace(kernel, axes=others, loops=(Loop((), body),))
    return kernel


def _is_interleaved(kernel: Kernel, axis: Axis, along: Axis) -> bool:
    """Whether some access takes as many elements as the axis has at every step along the other."""
    return any(
        i.index.stride(axis.name) == 1 and i.index.stride(along.name) == axis.extent
        for i in kernel.instructions()
        if isinstance(i, Load | Store) and not i.index.values
    )


def _written_out(kernel: Kernel, axis: Axis, count: int) -> tuple[Instruction, ...]:
    """What is the same along the axis once, then the rest at each of its points."""
    alike: list[Instruction] = []
    moving: list[Instruction] = []
    names: set[str] = set()
    for i in kernel.instructions():
        moves = isinstance(i, Load | Store | Position) and i.index.stride(axis.name) != 0
        if moves or not names.isdisjoint(i.uses) or isinstance(i, Store):
            names.add(i.name)
            moving.append(i)
        else:
            alike.append(i)
            if isinstance(i, Const):
                moving.append(i)  # what a position is compared with
    body = list(alike)
    for n in range(count):
        piece = LoopPart(axis, n, n + 1, f"u{n}").cut(Loop((axis,), tuple(moving)))
        gone = {piece.axes[-1].name}
        body += piece.reindexed(functools.partial(Index.without, names=gone)).body
    return tuple(body)
