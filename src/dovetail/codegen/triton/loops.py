"""A kernel's loops: step by step, with the row in registers, or two of them as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.codegen.triton import reduce
from dovetail.codegen.triton.operations import NAMES
from dovetail.ir.affine import product
from dovetail.ir.kernel import Loop, Reduce, Scan, Store
from dovetail.ir.kernel_softmax import PowerSum

if TYPE_CHECKING:
    from dovetail.codegen.triton.render import TritonRenderer

FEW_WARPS = 8  # of a block that agrees on a maximum at every step


def walk(r: TritonRenderer) -> None:
    """A block's rows, some at a time; what they add to memory is added up in registers."""
    s, axis = r.schedule, r.kernel.axes[-1]
    sums = [i for i in r.kernel.instructions() if isinstance(i, Store) and i.sums]
    for i in sums:
        r.line(f"sum_{i.buffer} = tl.zeros([{s.rows}, {s.columns}], {NAMES[r.stored[i.buffer]]})")
    r.line(f"for x0 in range(0, {r.size(axis.extent)}, {s.rows}):")
    r.depth += 1
    if s.rows == 1:
        r.line(f"i_{axis.name} = x0")
        r.fixed.add(axis.name)
    else:
        r.line(f"i_{axis.name} = x0 + tl.arange(0, {s.rows})[:, None]")
    r.loops()
    r.depth -= 1
    for i in sums:
        _store_sum(r, i)


def _store_sum(r: TritonRenderer, i: Store) -> None:
    """What a block has added up for each column."""
    (loop,) = [loop for loop in r.kernel.loops if i in loop.body]
    r.columns = r.schedule.columns
    r.walk(loop.axes, "")
    place, _, columns = r.place(i.index)
    mask = "".join(f", {mask}" for mask in r.masks(False, columns))
    r.line(f"total_{i.buffer} = tl.sum(sum_{i.buffer}, 0, keep_dims=True)")
    r.line(f"tl.store(p_{i.buffer} + ({place}), total_{i.buffer}{mask})")


def keep(r: TritonRenderer, loop: Loop) -> None:
    """All columns in registers: at once, or in parts that are written out one after another."""
    points = product(a.extent for a in loop.axes)
    assert isinstance(points, int)
    r.columns = min(r.schedule.columns, 1 << max(points - 1, 0).bit_length())
    count = -(-points // r.columns)
    r.at_once = count == 1
    reductions = [i for i in loop.body if isinstance(i, Reduce | Scan)]
    if not r.at_once:
        for waiting in reductions:
            reduce.start(r, waiting)
    names, memo = r.names, r.memo
    for part in range(count):
        axes = r.stand(loop.axes, part, count)
        r.names = names.new_child()
        r.memo = r.memos.setdefault((axes, part), memo.new_child())
        for i in loop.body:
            r.emit(i)
    found = {i.name: r.names[i.name] for i in reductions if r.at_once and isinstance(i, Reduce)}
    r.names, r.memo = names, memo
    r.names.update(found)
    for done in reductions:
        if not r.at_once and isinstance(done, Reduce):
            reduce.finish(r, done)


def step(r: TritonRenderer, loop: Loop) -> None:
    """A loop over the columns of its axes; reductions go into an accumulator of a block."""
    reductions = [i for i in loop.body if isinstance(i, Reduce | Scan)]
    for waiting in reductions:
        reduce.start(r, waiting)
    names, memo = _enter(r, loop)
    for i in loop.body:
        r.emit(i)
    _leave(r, names, memo)
    for done in reductions:
        if isinstance(done, Reduce):
            reduce.finish(r, done)


def sum_powers(r: TritonRenderer, loop: Loop, found: PowerSum) -> None:
    """A row's maximum and its sum of powers relative to it, in one loop.

    Where a maximum grows, what has been summed shrinks. It is the row's so far; in a block of many
    warps, which take long to agree, every lane has one of its own where powers are cheap. A row of
    nothing but -inf has the sum that its definition gives: NaN.
    """
    top, total = found.maximum.name, found.total.name
    alone = r.schedule.warps > FEW_WARPS and r.schedule.short
    r.line(f"top_{top} = tl.full({r.shape(True, alone)}, float('-inf'), tl.float32)")
    r.line(f"so_far_{total} = tl.full({r.shape(True, True)}, 0.0, tl.float32)")
    names, memo = _enter(r, loop)
    for i in loop.body:
        if i is not found.maximum:
            r.emit(i)
    given = r.define(f"{top}_given", reduce.elements(r, found.maximum), True, True).name
    largest = given if alone else f"tl.reduce({given}, 1, larger, keep_dims=True)"
    r.line(f"next_{top} = larger(top_{top}, {largest})")
    base = _base(r, f"next_{top}", top)
    before = r.applied(found.power, f"top_{top} - {base}")
    power = r.applied(found.power, f"{given} - {base}")
    r.line(f"so_far_{total} = so_far_{total} * {before} + {power}")
    r.line(f"top_{top} = next_{top}")
    _leave(r, names, memo)
    row = f"top_{top}"
    if alone:
        row = f"row_{top}"
        r.line(f"{row} = tl.reduce(top_{top}, 1, larger, keep_dims=True)")
        power = r.applied(found.power, f"top_{top} - {_base(r, row, top)}")
        r.line(f"so_far_{total} = so_far_{total} * {power}")
    r.define(top, row, True, False)
    r.line(f"all_{total} = tl.sum(so_far_{total}, 1, keep_dims=True)")
    nothing = f"{row} == float('-inf')"
    r.define(total, f"tl.where({nothing}, float('nan'), all_{total})", True, False)


def _base(r: TritonRenderer, largest: str, top: str) -> str:
    """What powers are taken relative to: the maximum, or 0 while there is none."""
    r.line(f"base_{top} = tl.where({largest} == float('-inf'), 0.0, {largest})")
    return f"base_{top}"


def _enter(r: TritonRenderer, loop: Loop) -> tuple[object, object]:
    r.columns, r.at_once = r.schedule.columns, False
    r.line(f"for y0 in range(0, {r.extent(loop.axes)}, {r.columns}):")
    names, memo = r.names, r.memo
    r.names, r.memo = names.new_child(), memo.new_child()
    r.depth += 1
    r.walk(loop.axes, "y0")
    return names, memo


def _leave(r: TritonRenderer, names: object, memo: object) -> None:
    r.depth -= 1
    r.names, r.memo, r.column_mask = names, memo, ""  # type: ignore[assignment]
