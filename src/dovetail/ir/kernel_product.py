"""A kernel that sums products, seen as a matrix product: what schedules and renderers ask of it."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.ir.dtypes import FLOATS
from dovetail.ir.kernel import Apply, Axis, Kernel, Load, Reduce, Store


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
    if len(body) != 4 or len(sums) != 1 or sums[0].op != "sum" or sums[0].dtype not in FLOATS:
        return None
    times = named.get(sums[0].args[0])
    if not isinstance(times, Apply) or times.op != "mul" or times.dtype != sums[0].dtype:
        return None
    left, right = (named.get(name) for name in times.args)
    if not isinstance(left, Load) or not isinstance(right, Load) or left == right:
        return None
    roles = {b.name: b.role for b in kernel.buffers}
    if any(i.mask or i.index.values or roles[i.buffer] != "in" for i in (left, right)):
        return None
    return _placed(kernel, sums[0], left, right, along)


def _placed(
    kernel: Kernel, total: Reduce, left: Load, right: Load, along: Axis
) -> KernelProduct | None:
    """The product with its axes, by what moves along each."""
    rows = [a for a in kernel.axes if _moves(left, a) and not _moves(right, a)]
    columns = [a for a in kernel.axes if _moves(right, a) and not _moves(left, a)]
    if not rows or not columns:
        return None
    if _dense(kernel, rows) and not _dense(kernel, columns):
        left, right, rows, columns = right, left, columns, rows
    dense = _dense(kernel, columns) or columns
    return KernelProduct(total, left, right, _longest(rows), _longest(dense), along)


def _moves(load: Load, axis: Axis) -> bool:
    return load.index.stride(axis.name) != 0


def _dense(kernel: Kernel, axes: list[Axis]) -> list[Axis]:
    """Those that stores are dense along."""
    stores = [i for i in kernel.instructions() if isinstance(i, Store)]
    return [a for a in axes if any(s.index.stride(a.name) == 1 for s in stores)]


def _longest(axes: list[Axis]) -> Axis:
    return max(axes, key=lambda a: a.extent if isinstance(a.extent, int) else 0)
