"""The verifier of schedules of blocks: each point is done once, rows fit where they are kept."""

from __future__ import annotations

from dovetail.errors import InvalidSchedule
from dovetail.ir.affine import product
from dovetail.ir.kernel import Kernel, Loop, Store
from dovetail.ir.kernel_softmax import power_sums
from dovetail.ir.target import Target
from dovetail.schedule.gpu.blocks import BlockSchedule
from dovetail.schedule.gpu.strategy import MOST_PARTS, is_far, is_short

_MOST_ELEMENTS = 1 << 20  # of a block: what Triton takes for one tensor
_MOST_THREADS = 1024


def verify_blocks(kernel: Kernel, schedule: BlockSchedule, target: Target) -> BlockSchedule:
    """The schedule, when it is one of the kernel; InvalidSchedule says why not."""
    s, loops = schedule, [loop for loop in kernel.loops if loop.axes]
    _require(s.target == target.name, f"it is made for {s.target}")
    _require(bool(target.warp), f"blocks of threads on {target.name}")
    _require(_is_power(s.rows) and (not s.columns or _is_power(s.columns)), "no power of two")
    _require(s.rows * max(s.columns, 1) <= _MOST_ELEMENTS, "a block of too many elements")
    _require(_is_power(s.warps) and s.warps * target.warp <= _MOST_THREADS, f"{s.warps} warps")
    _require(all(b.role != "inout" for b in kernel.buffers), "a kernel that reads what it writes")
    _require(bool(s.columns) == bool(loops or s.along), "columns of nothing")
    _require(not (loops and s.along), "columns of loops and of parallel axes")
    names = [a.name for a in kernel.axes]
    _require(
        not s.along or list(s.along) == names[-len(s.along) :], "columns that are not the last"
    )
    _require(s.wide or not is_far(kernel), "places that 32 bits do not hold")
    _require(not s.short or is_short(kernel), "results that are not rounded to 16 bits")
    pairs = power_sums(kernel)
    _require(not s.online or (bool(pairs) and not s.persistent), "no sum of powers in one loop")
    sums = [i for i in kernel.instructions() if isinstance(i, Store) and i.sums]
    _require(bool(sums) == bool(s.walked), "sums in memory without axes that a block walks")
    if s.walked:
        _walked(kernel, schedule, sums)
    if s.persistent:
        _require(bool(loops), "a persistent kernel without loops")
        _persistent(loops, s.columns)
    return schedule


def _persistent(loops: list[Loop], columns: int) -> None:
    for loop in loops:
        points = product(a.extent for a in loop.axes)
        held = isinstance(points, int) and points <= columns * MOST_PARTS
        _require(held, "a row that registers do not hold")


def _walked(kernel: Kernel, s: BlockSchedule, sums: list[Store]) -> None:
    """Points that add to one element are one block's, and it keeps the element all the time."""
    loops = [loop for loop in kernel.loops if loop.axes]
    last = kernel.axes[-1]
    _require(s.walked == (last.name,) and s.persistent, "a walk along other axes than the last")
    _require(isinstance(last.extent, int) and last.extent % s.rows == 0, "rows cut in the middle")
    widths = {product(a.extent for a in loop.axes) for loop in loops}
    whole = len(widths) == 1 and all(isinstance(w, int) and w <= s.columns for w in widths)
    _require(whole, "a walk over rows that are not whole")
    for store in sums:
        found = next((each for each in loops if store in each.body), None)
        axes = (*kernel.axes[:-1], *(found.axes if found is not None else ()))
        apart = found is not None and all(store.index.stride(a.name) for a in axes)
        _require(apart, "elements that several blocks add to")
        _require(store.index.stride(last.name) == 0, "a sum that moves along the walk")


def _is_power(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise InvalidSchedule(problem)
