"""A kernel that sums products, seen as a matrix product: what schedules and renderers ask of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.ir.dtypes import FLOATS
from dovetail.ir.kernel import (
    Apply,
    Axis,
    Const,
    Instruction,
    Kernel,
    Load,
    Position,
    Reduce,
    Store,
)
from dovetail.ir.ops import CHECKS


@dataclass(frozen=True, slots=True)
class KernelProduct:
    """Σ over ``sum`` of ``left`` times ``right``, at each point of the kernel's axes.

    ``left`` does not move along the columns, ``right`` does not move along the rows.
    """

    total: Reduce
    left: Load
    right: Load
    rows: Axis
    columns: Axis
    sum: Axis
    sums_to_row: bool = False  # a row's sum ends with the step of the row's own number
    used_to_row: bool = False  # sums of columns behind the row's own number are not used


def kernel_product(kernel: Kernel) -> KernelProduct | None:
    """The product that a kernel is made of; None where it is none, or more than that.

    All else that such a kernel has is done once for each element of the result. Of several axes
    of rows or columns the one that results are dense along are columns, the longest are rows.
    """
    loops = [loop for loop in kernel.loops if loop.axes]
    if len(loops) != 1 or len(loops[0].axes) != 1:
        return None
    (along,), body = loops[0].axes, loops[0].body
    named = {i.name: i for i in body}
    sums = [i for i in body if isinstance(i, Reduce)]
    if len(sums) != 1 or sums[0].op != "sum" or sums[0].dtype not in FLOATS:
        return None
    times, bound, others = named.get(sums[0].args[0]), None, 0
    if isinstance(times, Apply) and times.op == "where":
        bound, others = _bound(named, times, along), 5
        times = named.get(times.args[1])
    if len(body) != 4 + others or (others and bound is None):
        return None
    if not isinstance(times, Apply) or times.op != "mul" or times.dtype != sums[0].dtype:
        return None
    left, right = (named.get(name) for name in times.args)
    if not isinstance(left, Load) or not isinstance(right, Load) or left == right:
        return None
    roles = {b.name: b.role for b in kernel.buffers}
    if any(i.mask or i.index.values or roles[i.buffer] != "in" for i in (left, right)):
        return None
    return _placed(kernel, sums[0], left, right, along, bound)


def are_pairs(kernel: Kernel, found: KernelProduct) -> bool:
    """Whether a product is one of bfloat16 whose neighbouring steps can be taken as pairs.

    Those of a row lie together, and those of the columns can be brought together.
    """
    types = {b.dtype for b in kernel.buffers if b.name in (found.left.buffer, found.right.buffer)}
    if types != {"bfloat16"} or found.total.dtype != "float32" or found.sums_to_row:
        return False
    across = [found.right.index.stride(a.name) for a in (found.sum, found.columns)]
    return found.left.index.stride(found.sum.name) == 1 and 1 in across


def _bound(named: Mapping[str, Instruction], chosen: Apply, along: Axis) -> str | None:
    """The axis whose number ends the sum: where the step is larger, 0 is added."""
    test, _, other = (named.get(name) for name in chosen.args)
    if not isinstance(other, Const) or other.value != 0 or not isinstance(test, Apply):
        return None
    row, step = (_axis_of(named.get(name)) for name in test.args)
    return row if test.op == "ge" and step == along.name and row != step else None


def _axis_of(i: Instruction | None) -> str | None:
    """The axis whose number an instruction gives, if it does just that."""
    if not isinstance(i, Position) or len(i.index.axes) != 1:
        return None
    ((axis, stride),) = i.index.axes
    return axis if stride == 1 and i.index.offset == 0 and not i.index.values else None


def _used_to_row(kernel: Kernel, total: str, rows: Axis, columns: Axis) -> bool:
    """Whether what depends on a sum is replaced where its column is behind the row's number."""
    code = [i for loop in kernel.loops if not loop.axes for i in loop.body]
    named = {i.name: i for i in code}
    depends, replaced = {total}, False
    for i in code:
        if depends.isdisjoint(i.uses):
            continue
        if not isinstance(i, Apply) or i.op in CHECKS:
            return False
        test = named.get(i.args[0])
        here = isinstance(test, Apply) and test.op == "ge" and i.op == "where"
        if here and i.args[2] not in depends and i.args[0] not in depends:
            pair = [_axis_of(named.get(name)) for name in test.uses]  # type: ignore[union-attr]
            if pair == [rows.name, columns.name]:
                replaced = True
                continue
        depends.add(i.name)
    return replaced


def _placed(
    kernel: Kernel, total: Reduce, left: Load, right: Load, along: Axis, bound: str | None
) -> KernelProduct | None:
    """The product with its axes, by what moves along each."""
    rows = [a for a in kernel.axes if _moves(left, a) and not _moves(right, a)]
    columns = [a for a in kernel.axes if _moves(right, a) and not _moves(left, a)]
    if not rows or not columns:
        return None
    if _dense(kernel, rows) and not _dense(kernel, columns):
        left, right, rows, columns = right, left, columns, rows
    if bound is not None:
        rows = [a for a in rows if a.name == bound]
    if not rows:
        return None
    row, column = _longest(rows), _longest(_dense(kernel, columns) or columns)
    used = _used_to_row(kernel, total.name, row, column)
    return KernelProduct(total, left, right, row, column, along, bound is not None, used)


def _moves(load: Load, axis: Axis) -> bool:
    return load.index.stride(axis.name) != 0


def _dense(kernel: Kernel, axes: list[Axis]) -> list[Axis]:
    """Those that stores are dense along."""
    stores = [i for i in kernel.instructions() if isinstance(i, Store)]
    return [a for a in axes if any(s.index.stride(a.name) == 1 for s in stores)]


def _longest(axes: list[Axis]) -> Axis:
    """The axis with most points; one of no known length may have any number of them."""
    return max(axes, key=lambda a: a.extent if isinstance(a.extent, int) else math.inf)
