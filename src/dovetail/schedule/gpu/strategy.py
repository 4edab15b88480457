"""The schedule of a kernel on a GPU.

Memory sets the pace, so that a block is made to read every element once and 16 bytes a thread at a
time. The figures are those of an H200 (docs/decisions/0093).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from dovetail.ir.affine import product
from dovetail.ir.dtypes import DTYPES, item_bytes
from dovetail.ir.kernel import Axis, Index, Kernel, Load, Loop, Position, Store
from dovetail.ir.kernel_analysis import without_idle_axes
from dovetail.ir.kernel_softmax import power_sums
from dovetail.ir.size import Dim
from dovetail.ir.target import Target
from dovetail.schedule.gpu.blocks import BlockSchedule
from dovetail.schedule.gpu.cost import elements, number, seconds

ACCESS = 16  # bytes of the widest load and store of a thread
WARPS, MOST_WARPS = 4, 32  # of a block, usually and at most
EACH = 8  # elements of a thread in a kernel that goes step by step
EACH_BYTES, MOST_EACH = 32, 16  # of a thread in a kernel without reductions: two wide accesses
# Elements of a row that a thread keeps: four accesses of bfloat16, two of float32 in a short row;
# less where a thread keeps more than two arrays' columns.
KEPT_EACH, KEPT_EACH_FLOAT, MUCH_EACH = 32, 8, 16
KEPT_FLOATS = 1 << 12  # elements of such a short row
MUCH = 8  # bytes of registers for each column that are more than two arrays'
# Elements of the rows that a block takes at a time, those of a thread, and warps, where it adds
# columns up as it goes: the sums take as many registers as what is read. Not measured yet.
WALKED, WALKED_EACH, MOST_WALKING = 1 << 12, 16, 16
BLOCK = 1024  # elements of short rows in a block
STEP = 4096  # columns of a row that is read step by step
# Bytes of such a step in rows of more elements than this that are written too: softmax of 1,024
# rows of 131,072 bfloat16 took an H200 0.190 ms so, 0.198 in steps of half as many (decision 242).
LONG_STEP_BYTES, LONG = 1 << 15, 1 << 16
READ_EACH = 32  # elements of a thread where such rows are only read
PARTS, MOST_PARTS = (8192, 4096), 16  # columns of a row kept in parts, and the most of these
# Elements of a row from which on a block of bfloat16 reads it twice rather than keep it: what one
# block at a time computes does not overlap with what it loads (softmax: 0.139, not 0.168 ms).
KEPT_SHORT = 1 << 14
# Columns beside each other, and rows at a time, of a block down columns; of one of few; as many
# as are one step however often they are read.
ACROSS, DOWN, DEEP, SHALLOW = 64, 16, 128, 64
TILE, TILE_WARPS = 64, 8  # a square that is transposed
SHORT = 16  # an axis that a tile would be half empty along
# The share of a multiprocessor's registers that a row may take: one in two, three in four in parts.
# An H200 took five times as long for group norm of rows of 40,960 in 65,536 as step by step.
KEPT, KEPT_PARTS = 1 / 2, 3 / 4
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
    if any(isinstance(i, Store) and i.sums for i in kernel.instructions()):
        found = iter([walking(kernel, target)])
    elif not any(loop.axes for loop in kernel.loops):
        found = iter([transposing(kernel, target) or pointwise(kernel, target)])
    else:
        found = (down_columns if is_down(kernel) else along_rows)(kernel, target)
    wide, short = is_far(kernel), is_short(kernel)
    yield from (replace(each, wide=wide, short=short) for each in found)


# ---- without reductions ------------------------------------------------------------------------


def pointwise(kernel: Kernel, target: Target) -> BlockSchedule:
    """Points one after another, as many for a thread as its widest access has elements."""
    points, each = _points(kernel.axes), min(EACH_BYTES // _narrowest(kernel), MOST_EACH)
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


def along_rows(kernel: Kernel, target: Target) -> Iterator[BlockSchedule]:
    """Rows that are dense: several short ones in a block, a long one by itself."""
    width = _width(kernel)
    if not prefers_steps(kernel):
        if registers_keep(kernel, target, power_of_two(width), KEPT):
            yield keeping(kernel, target)
        elif _narrowest(kernel) >= 4:
            yield from in_parts(kernel, target)
    yield stepping(kernel, target)


def keeping(kernel: Kernel, target: Target) -> BlockSchedule:
    """Whole rows in registers."""
    columns = power_of_two(_width(kernel))
    rows, each = _rows(kernel, columns, target), KEPT_EACH
    if _kept_bytes(kernel, columns) > MUCH * columns:
        each = MUCH_EACH
    elif _narrowest(kernel) >= 4:
        each = KEPT_EACH_FLOAT if columns <= KEPT_FLOATS else 2 * KEPT_EACH_FLOAT
    if rows > 1:
        each = max(each, columns // target.warp)  # a row is one warp's, which needs no barrier
    warps = _warps(rows * columns, each, target)
    return BlockSchedule(target.name, rows, columns, warps, persistent=True)


def in_parts(kernel: Kernel, target: Target) -> Iterator[BlockSchedule]:
    """Rows in registers that no power of two fits: best where a part lies along one axis."""
    width, last = _width(kernel), {loop.axes[-1].extent for loop in kernel.loops if loop.axes}
    along = [part for part in PARTS if all(number(e) % part == 0 for e in last)]
    part = (along or PARTS)[0]
    count = -(-width // part)
    if count <= MOST_PARTS and registers_keep(kernel, target, count * part, KEPT_PARTS):
        yield BlockSchedule(target.name, 1, part, MOST_WARPS, persistent=True)


def stepping(kernel: Kernel, target: Target) -> BlockSchedule:
    """Rows step by step; a sum of powers is found together with its maximum."""
    width, online = power_of_two(_width(kernel)), bool(power_sums(kernel))
    writes = any(isinstance(i, Store) for loop in kernel.loops if loop.axes for i in loop.body)
    long = online and writes and width > LONG
    columns = min(width, LONG_STEP_BYTES // _narrowest(kernel) if long else STEP)
    rows = _rows(kernel, columns, target)
    warps = _warps(rows * columns, EACH, target)
    if online:
        warps = MOST_WARPS if writes else _warps(rows * columns, READ_EACH, target)
        warps = min(warps, max(1, rows * columns // target.warp))
    return BlockSchedule(target.name, rows, columns, warps, online=online)


def prefers_steps(kernel: Kernel) -> bool:
    """Whether a row that registers hold is better read twice: see KEPT_SHORT."""
    if _width(kernel) <= KEPT_SHORT or not power_sums(kernel):
        return False
    writes = any(isinstance(i, Store) for loop in kernel.loops if loop.axes for i in loop.body)
    return _narrowest(kernel) < 4 or not writes


def walking(kernel: Kernel, target: Target) -> BlockSchedule:
    """A block's own rows one after the other, with what it adds to each column in registers."""
    columns, last = power_of_two(_width(kernel)), kernel.axes[-1]
    rows = 1
    while rows * columns < WALKED and number(last.extent) % (2 * rows) == 0:
        rows *= 2
    warps = min(_warps(rows * columns, WALKED_EACH, target), MOST_WALKING)
    return BlockSchedule(target.name, rows, columns, warps, persistent=True, walked=(last.name,))


def walks_fit(kernel: Kernel, target: Target) -> bool:
    """Whether registers hold a row with what a block adds to each of its columns."""
    columns = power_of_two(_width(kernel))
    sums = sum(isinstance(i, Store) and i.sums for i in kernel.instructions())
    kept = _kept_bytes(kernel, columns) + sums * 4 * columns
    return kept <= target.vector_registers * 4 * KEPT


def _rows(kernel: Kernel, columns: int, target: Target) -> int:
    """As many rows as make a block, and leave blocks for all multiprocessors."""
    points, rows = _points(kernel.axes), 1
    while rows * columns < BLOCK and points >= 2 * rows * target.cores:
        rows *= 2
    return rows


def _warps(elements: int, each: int, target: Target) -> int:
    """As many as leave so many elements for each thread."""
    return max(1, min(elements // (each * target.warp), MOST_WARPS))


def down_columns(kernel: Kernel, target: Target) -> Iterator[BlockSchedule]:
    """Columns that lie beside each other.

    Sums of one pass are not kept in registers: 16 rows at a time took an H200 9 us where a block
    that took all 196 at once took 27 (decision 287). Few blocks take more rows at a time.
    """
    points, rows = _points(kernel.axes), ACROSS
    while rows > target.warp // 2 and points < rows * target.cores:
        rows //= 2
    height = power_of_two(_width(kernel))
    again = sum(bool(loop.axes) for loop in kernel.loops) > 1
    if (again or height <= SHALLOW) and registers_keep(kernel, target, height, KEPT):
        warps = _warps(rows * height, EACH, target)
        yield BlockSchedule(target.name, rows, height, warps, persistent=True)
    columns = min(height, DOWN if rows == ACROSS else DEEP)
    yield BlockSchedule(target.name, rows, columns, _warps(rows * columns, EACH, target))


def registers_keep(kernel: Kernel, target: Target, width: int, share: float) -> bool:
    """Whether a block can keep its row of this width in registers, all that it reads of it."""
    loops = [loop for loop in kernel.loops if loop.axes]
    if not all(isinstance(a.extent, int) for loop in loops for a in loop.axes):
        return False
    if len({frozenset(loop.axes) for loop in loops}) > 1 and is_down(kernel):
        return False
    rows = ACROSS if is_down(kernel) else 1
    return rows * _kept_bytes(kernel, width) <= target.vector_registers * 4 * share


def _kept_bytes(kernel: Kernel, width: int) -> int:
    """Bytes of registers that all that is read of a row takes."""
    kept = {
        (i.buffer, i.index): max(item_bytes(i.dtype), 4)
        * min(power_of_two(_points(loop.axes)), width)
        for loop in kernel.loops
        if loop.axes
        for i in loop.body
        # What many points share, such as a weight, is near when it is read again.
        if isinstance(i, Load) and 2 * elements(kernel, loop, i) > _all_points(kernel, loop)
    }
    return sum(kept.values()) or 4 * width


def is_short(kernel: Kernel) -> bool:
    """Whether every result is a floating-point number of 16 bits."""
    made = [DTYPES[b.dtype] for b in kernel.buffers if b.role != "in"]
    return all((dtype.kind, dtype.bits) == ("float", 16) for dtype in made)


def _all_points(kernel: Kernel, loop: Loop) -> int:
    return _points(kernel.axes) * _points(loop.axes)


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
