"""The schedule of a kernel on a GPU.

Memory sets the pace, so that a block is made to read every element once and 16 bytes a thread at a
time. The figures are those of an H200 (docs/decisions/0093).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from dovetail.ir.affine import product
from dovetail.ir.dtypes import item_bytes
from dovetail.ir.kernel import Axis, Index, Kernel, Load, Position, Store
from dovetail.ir.kernel_analysis import without_idle_axes
from dovetail.ir.size import Dim
from dovetail.ir.target import Target
from dovetail.schedule.gpu.cost import elements, number, seconds
from dovetail.schedule.schedule import BlockSchedule

ACCESS = 16  # bytes of the widest load and store of a thread
WARPS, MOST_WARPS = 4, 32  # of a block, usually and at most
MOST_EACH = 8  # elements of a thread in a kernel without reductions
EACH_BYTES = 64  # of a row that a thread keeps, as it lies in memory
BLOCK = 1024  # elements of short rows in a block
STEP, STEP_EACH = 8192, 16  # columns of a row that is read step by step; elements for a thread
ACROSS, DOWN = 64, 64  # columns beside each other, and rows at a time, of a block down columns
TILE, TILE_WARPS = 64, 8  # a square that is transposed
SHORT = 16  # an axis that a tile would be half empty along
# The share of a multiprocessor's registers that a row may take: one in two. An H200 took five
# times as long for group norm of rows of 40,960 elements that way as step by step.
KEPT = 2
FAR = 1 << 31  # a place that 32 bits do not hold


def make_schedule(kernel: Kernel, target: Target) -> BlockSchedule:
    """The schedule of a kernel that costs least."""
    kernel = without_idle_axes(kernel)
    found = [replace(s, cost=_cost(kernel, s, target)) for s in candidates(kernel, target)]
    return min(found, key=lambda s: s.cost)


def _cost(kernel: Kernel, schedule: BlockSchedule, target: Target) -> int:
    return round(seconds(kernel, schedule, target) * 1e12)


def candidates(kernel: Kernel, target: Target) -> Iterator[BlockSchedule]:
    """Schedules to choose from, the better one first where costs are equal."""
    wide = is_far(kernel)
    if not any(loop.axes for loop in kernel.loops):
        found = transposing(kernel, target) or pointwise(kernel, target)
        yield replace(found, wide=wide)
        return
    make = down_columns if is_down(kernel) else along_rows
    for persistent in (True, False):
        if not persistent or registers_keep(kernel, target):
            yield replace(make(kernel, target, persistent), wide=wide, persistent=persistent)


# ---- without reductions ------------------------------------------------------------------------


def pointwise(kernel: Kernel, target: Target) -> BlockSchedule:
    """Points one after another, as many for a thread as its widest access has elements."""
    points = _points(kernel.axes)
    each = min(ACCESS // _narrowest(kernel), MOST_EACH)
    warps = WARPS
    while each > 1 and points < target.cores * warps * target.warp * each:
        each //= 2
    while warps > 1 and points <= warps * target.warp // 2:
        warps //= 2
    return BlockSchedule(target.name, warps * target.warp * each, warps=warps)


def transposing(kernel: Kernel, target: Target) -> BlockSchedule | None:
    """A square of two axes, where some memory lies along the one and some along the other."""
    if len(kernel.axes) < 2 or number(kernel.axes[-1].extent) < SHORT:
        return None
    last = kernel.axes[-1]
    for place in range(len(kernel.axes) - 2, -1, -1):
        axis = kernel.axes[place]
        if number(axis.extent) >= SHORT and _lies_along(kernel, axis, last):
            along = tuple(a.name for a in kernel.axes[place + 1 :])
            return BlockSchedule(target.name, TILE, TILE, TILE_WARPS, along=along)
    return None


def _lies_along(kernel: Kernel, axis: Axis, last: Axis) -> bool:
    """Whether memory that is far apart along the last axis is dense along another."""
    return any(
        i.index.stride(axis.name) in (1, -1) and i.index.stride(last.name) not in (0, 1, -1)
        for i in _accesses(kernel)
        if not i.index.values
    )


# ---- reductions --------------------------------------------------------------------------------


def along_rows(kernel: Kernel, target: Target, persistent: bool) -> BlockSchedule:
    """Rows that are dense: several short ones in a block, a long one by itself."""
    width = power_of_two(_width(kernel))
    columns = width if persistent else min(width, STEP)
    points, rows = _points(kernel.axes), 1
    while rows * columns < BLOCK and points >= 2 * rows * target.cores:
        rows *= 2
    each = EACH_BYTES // _narrowest(kernel) if persistent else STEP_EACH
    return BlockSchedule(target.name, rows, columns, _warps(rows * columns, each, target))


def _warps(elements: int, each: int, target: Target) -> int:
    """As many as leave so many elements for each thread."""
    return max(1, min(elements // (each * target.warp), MOST_WARPS))


def down_columns(kernel: Kernel, target: Target, persistent: bool) -> BlockSchedule:
    """Columns that lie beside each other."""
    points, rows = _points(kernel.axes), ACROSS
    while rows > target.warp // 2 and points < rows * target.cores:
        rows //= 2
    height = power_of_two(_width(kernel))
    columns = height if persistent else min(height, DOWN)
    return BlockSchedule(target.name, rows, columns, _warps(rows * columns, STEP_EACH, target))


def registers_keep(kernel: Kernel, target: Target) -> bool:
    """Whether a block can keep its row in registers, all that it reads of it."""
    axes = {frozenset(loop.axes) for loop in kernel.loops if loop.axes}
    if len(axes) > 1 or not all(isinstance(a.extent, int) for a in next(iter(axes))):
        return False
    points = _points(kernel.axes) * _width(kernel)
    kept = {
        (i.buffer, i.index): max(item_bytes(i.dtype), 4)
        for loop in kernel.loops
        for i in loop.body
        # What many points share, such as a weight, is near when it is read again.
        if isinstance(i, Load) and loop.axes and 2 * elements(kernel, loop, i) > points
    }
    row = power_of_two(_width(kernel)) * (sum(kept.values()) or 4)
    rows = ACROSS if is_down(kernel) else 1
    return rows * row * KEPT <= target.vector_registers * 4


def is_down(kernel: Kernel) -> bool:
    """Whether memory lies along the kernel's last axis rather than along its loops'."""
    if not kernel.axes:
        return False
    along = down = 0
    for loop in kernel.loops:
        for i in loop.body:
            if isinstance(i, Load | Store) and loop.axes:
                count = elements(kernel, loop, i)
                along += count * any(i.index.stride(a.name) in (1, -1) for a in loop.axes)
                down += count * (i.index.stride(kernel.axes[-1].name) in (1, -1))
    return down > along


def is_far(kernel: Kernel) -> bool:
    """Whether some place in memory, or some number of points, may need 64 bits."""
    axes = {a.name: a.extent for a in kernel.all_axes()}
    if not all(isinstance(dim, int) for dim in kernel.dims()):
        return True
    spaces = [kernel.axes, *(loop.axes for loop in kernel.loops)]
    if any(_points(space) >= FAR // 2 for space in spaces):
        return True
    indices = [i.index for i in kernel.instructions() if isinstance(i, Load | Store | Position)]
    return any(_farthest(index, axes) >= FAR // 2 for index in indices)


def _farthest(index: Index, axes: Mapping[str, Dim]) -> int:
    total = abs(number(index.offset))
    for name, step in index.axes:
        total += abs(number(step)) * number(axes[name])
    return total


def _points(axes: tuple[Axis, ...]) -> int:
    found = product(number(a.extent) for a in axes)
    return number(found)


def _width(kernel: Kernel) -> int:
    """Points of the longest loop."""
    return max(_points(loop.axes) for loop in kernel.loops if loop.axes)


def power_of_two(n: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(n - 1, 0).bit_length()


def _accesses(kernel: Kernel) -> Iterator[Load | Store]:
    return (i for i in kernel.instructions() if isinstance(i, Load | Store))


def _narrowest(kernel: Kernel) -> int:
    """Bytes of the smallest element that is read or written densely."""
    sizes = {b.name: item_bytes(b.dtype) for b in kernel.buffers}
    last = {axes[-1].name for axes in (kernel.axes, *(x.axes for x in kernel.loops)) if axes}
    dense = [
        sizes[i.buffer]
        for i in _accesses(kernel)
        if any(i.index.stride(name) in (1, -1) for name in last)
    ]
    return min(dense, default=4)
