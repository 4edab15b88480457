"""Kernel to kernel: axes in the order memory has them, neighbours merged, size 1 dropped.

And nothing is left in it that no store needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from dovetail.ir.affine import mul
from dovetail.ir.kernel import (
    Apply,
    Axis,
    Index,
    Instruction,
    Kernel,
    Load,
    Loop,
    Position,
    Store,
)
from dovetail.ir.ops import CHECKS
from dovetail.schedule.limits import Limits
from dovetail.schedule.split import split
from dovetail.schedule.unroll import unroll


def simplify(kernel: Kernel, limits: Limits) -> Kernel:
    """The same kernel over fewer, better ordered axes."""
    kernel = _merged(_reorder(_drop_unit_axes(kernel)))
    return _needed(split(_merged(unroll(kernel, limits)), limits))


def _merged(kernel: Kernel) -> Kernel:
    """Neighbouring axes as one, wherever every access goes through both alike."""
    while (pair := _mergeable(kernel)) is not None:
        kernel = _merge(kernel, *pair)
    return kernel


def _needed(kernel: Kernel) -> Kernel:
    """The kernel without what no store needs; a check of an index is needed by itself."""
    wanted: set[str] = set()
    loops: list[Loop] = []
    for loop in reversed(kernel.loops):
        body: list[Instruction] = []
        for i in reversed(loop.body):
            checks = isinstance(i, Apply) and i.op in CHECKS
            if isinstance(i, Store) or checks or i.name in wanted:
                wanted |= set(i.uses)
                body.append(i)
        if body:
            loops.append(replace(loop, body=tuple(reversed(body))))
    return replace(kernel, loops=tuple(reversed(loops)))


def _map(
    kernel: Kernel, axes: Mapping[str, tuple[Axis, ...]], change: Callable[[Index], Index]
) -> Kernel:
    """Replace axes by name, and indices by ``change(index)``."""

    def listed(given: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(new for a in given for new in axes.get(a.name, (a,)))

    loops = tuple(replace(p.reindexed(change), axes=listed(p.axes)) for p in kernel.loops)
    return replace(kernel, axes=listed(kernel.axes), loops=loops)


def _drop_unit_axes(kernel: Kernel) -> Kernel:
    unit = {a.name for a in kernel.all_axes() if a.extent == 1}
    # A loop must keep an axis, or its reductions would have nothing to reduce over.
    for loop in kernel.loops:
        if loop.axes and all(a.name in unit for a in loop.axes):
            unit.discard(loop.axes[-1].name)
    axes: dict[str, tuple[Axis, ...]] = dict.fromkeys(unit, ())
    return _map(kernel, axes, lambda index: index.without(unit))


def _reorder(kernel: Kernel) -> Kernel:
    code = list(kernel.instructions())
    accesses = [i.index for kind in (Store, Load) for i in code if isinstance(i, kind)]
    loops = []
    for loop in kernel.loops:
        own = [i.index for i in loop.body if isinstance(i, Load | Store)]
        loops.append(replace(loop, axes=_sorted(loop.axes, own)))
    return replace(kernel, axes=_sorted(kernel.axes, accesses), loops=tuple(loops))


def _sorted(axes: tuple[Axis, ...], indices: Sequence[Index]) -> tuple[Axis, ...]:
    """Axes by falling stride of the access that moves along most of them."""
    if len(axes) < 2:
        return axes
    names = {a.name for a in axes}
    guide = max(indices, key=lambda i: len(names & {n for n, _ in i.axes}), default=None)
    if guide is None or not all(isinstance(guide.stride(a.name), int) for a in axes):
        return axes
    strides = {a.name: abs(int(guide.stride(a.name))) for a in axes}  # type: ignore[arg-type]
    if any(s == 0 for s in strides.values()):
        return axes
    return tuple(sorted(axes, key=lambda a: -strides[a.name]))


def _mergeable(kernel: Kernel) -> tuple[Axis, Axis] | None:
    groups = dict.fromkeys([kernel.axes, *(loop.axes for loop in kernel.loops)])
    indices = [i.index for i in kernel.instructions() if isinstance(i, Load | Store | Position)]
    for group in groups:
        for outer, inner in pairwise(group):
            if all(_steps_on(i, outer, inner) for i in indices):
                if _together(kernel, outer, inner):
                    return outer, inner
    return None


def _steps_on(index: Index, outer: Axis, inner: Axis) -> bool:
    return index.stride(outer.name) == mul(index.stride(inner.name), inner.extent)


def _together(kernel: Kernel, outer: Axis, inner: Axis) -> bool:
    """Whether every list that holds one axis holds the other right behind or before it."""
    for group in (kernel.axes, *(loop.axes for loop in kernel.loops)):
        if outer in group or inner in group:
            if outer not in group or inner not in group:
                return False
            if group.index(inner) != group.index(outer) + 1:
                return False
    return True


def _merge(kernel: Kernel, outer: Axis, inner: Axis) -> Kernel:
    merged = Axis(inner.name, mul(outer.extent, inner.extent))
    axes = {outer.name: (), inner.name: (merged,)}
    return _map(kernel, axes, lambda index: index.without({outer.name}))
