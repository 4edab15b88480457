"""What a kernel takes on a GPU: the bytes it moves, over what its blocks can move."""

from __future__ import annotations

from dovetail.ir.affine import product
from dovetail.ir.dtypes import item_bytes
from dovetail.ir.kernel import Index, Kernel, Load, Loop, Store
from dovetail.ir.size import Dim, Size
from dovetail.ir.target import Target
from dovetail.schedule.gpu.blocks import BlockSchedule

UNKNOWN_SIZE = 1024  # what a size that is not known counts as
# The share of the bandwidth that a copy reaches: 4.3 of 4.8 TB/s on an H200.
REACHED = 0.9
# Bytes that come from the second-level cache, beside those that come from memory: a third of the
# time, as read off an H200 with rows of 131,072 bfloat16.
CACHED = 0.35
ALONE = 2  # blocks for each multiprocessor from which on memory is the limit


def number(dim: Dim) -> int:
    """A size, or what stands for one that is not known."""
    return dim if isinstance(dim, int) else UNKNOWN_SIZE


def seconds(kernel: Kernel, schedule: BlockSchedule, target: Target) -> float:
    """The time of a kernel."""
    units = schedule.units(kernel)
    blocks = number(units) if isinstance(units, int) else target.cores * ALONE
    busy = min(1.0, blocks / (ALONE * target.cores))
    rate = target.bytes_per_second * REACHED * max(busy, 1 / target.cores)
    return target.thread_seconds + moved_bytes(kernel, schedule, target) / rate


def moved_bytes(kernel: Kernel, schedule: BlockSchedule, target: Target) -> float:
    """Bytes to and from memory; what is read again from a near cache counts for less."""
    sizes = {b.name: item_bytes(b.dtype) for b in kernel.buffers}
    total, seen = 0.0, set[tuple[str, Index]]()
    again = CACHED if _stays_near(kernel, schedule, target) else 1.0
    for loop in kernel.loops:
        here = set[tuple[str, Index]]()
        for i in loop.body:
            if not isinstance(i, Load | Store) or (i.buffer, i.index) in here:
                continue
            here.add((i.buffer, i.index))
            known = (i.buffer, i.index) in seen
            factor = (0.0 if schedule.persistent else again) if known else 1.0
            total += factor * elements(kernel, loop, i) * sizes[i.buffer]
        seen |= here
    return total


def elements(kernel: Kernel, loop: Loop, i: Load | Store) -> int:
    """How many elements an access touches, each counted once where its index is affine."""
    axes = (*kernel.axes, *loop.axes)
    walked = axes if i.index.values else [a for a in axes if i.index.stride(a.name) != 0]
    count = product(number(a.extent) for a in walked)
    assert not isinstance(count, Size)
    return count


def _stays_near(kernel: Kernel, schedule: BlockSchedule, target: Target) -> bool:
    """Whether the rows that are being worked on stay in the second-level cache."""
    widest = max((item_bytes(b.dtype) for b in kernel.buffers), default=4)
    lengths = [product(number(a.extent) for a in loop.axes) for loop in kernel.loops]
    row = number(max(map(number, lengths), default=1)) * schedule.rows * widest
    return row * ALONE <= target.l2_bytes  # a multiprocessor's share
