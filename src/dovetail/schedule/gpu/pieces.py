"""Pieces that are only put beside each other (``cat``) are written where they end up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dovetail.ir.kernel import (
    Apply,
    Axis,
    Const,
    Index,
    Instruction,
    Kernel,
    KernelBuffer,
    Load,
    Loop,
    Position,
    Store,
)
from dovetail.ir.strides import contiguous_strides
from dovetail.lower.values import LibraryCall, Value, root_of
from dovetail.schedule.build import Built
from dovetail.schedule.gpu.steps import Step, reads, writes


@dataclass(frozen=True)
class Piece:
    """Part of a result that another kernel has made: where in the result an element goes."""

    buffer: str
    sizes: tuple[int, ...]  # of the piece, along the axes of the result
    steps: tuple[int, ...]  # of the result's memory along them
    start: int

    def place(self, index: Index, extents: dict[str, int]) -> Index | None:
        """A place in the piece's own memory as one in the result's."""
        digits, own = [0] * len(self.sizes), contiguous_strides(self.sizes)
        moved: list[tuple[str, int]] = []
        if index.offset != 0 or index.values:
            return None
        for name, stride in index.axes:
            digit = _digit(stride, own)
            if digit is None:
                return None
            assert isinstance(stride, int)
            times = stride // int(own[digit])  # type: ignore[arg-type]
            digits[digit] += times * (extents[name] - 1)
            moved.append((name, times * self.steps[digit]))
        if any(last >= size for last, size in zip(digits, self.sizes, strict=True)):
            return None
        return Index(self.start, tuple(moved))


def _digit(stride: object, own: Sequence[object]) -> int | None:
    """The dimension that a step of so many elements goes along."""
    if not isinstance(stride, int) or stride <= 0:
        return None
    return next((n for n, s in enumerate(own) if isinstance(s, int) and stride % s == 0), None)


def place_pieces(steps: list[Step], wanted: set[Value]) -> list[Step]:
    """Without kernels that put together what others have made, where those can do so."""
    for number, step in reversed(list(enumerate(steps))):
        if not isinstance(step, Built) or (pieces := _pieces(step.kernel)) is None:
            continue
        made = {root_of(step.buffers[p.buffer]): p for p in pieces}
        alone = not made.keys() & wanted and len(made) == len(pieces)
        others = [s for n, s in enumerate(steps) if n != number]
        if not alone or any(reads(other) & made.keys() for other in others):
            continue
        (result,) = writes(step)
        changed = _written_in_place(steps[:number], made, result)
        if changed is not None:
            steps[:] = [*changed, *steps[number + 1 :]]
    return steps


def _pieces(kernel: Kernel) -> list[Piece] | None:
    """The pieces that a kernel puts together, if it does nothing else and they are all there."""
    if len(kernel.loops) != 1 or kernel.loops[0].axes or not kernel.axes:
        return None
    body = kernel.loops[0].body
    named, stores = {i.name: i for i in body}, [i for i in body if isinstance(i, Store)]
    extents = [a.extent for a in kernel.axes]
    if len(stores) != 1 or not all(isinstance(e, int) for e in extents):
        return None
    dtypes = {b.name: b.dtype for b in kernel.buffers}
    (store,) = stores
    found: list[tuple[int, int, str, Load]] = []
    name = store.value
    while True:
        i, mask = named[name], None
        if isinstance(i, Apply) and i.op == "where":
            mask, piece, name = i.args
            i = named[piece]
        if not isinstance(i, Load) or i.mask is None or mask not in (None, i.mask):
            return None
        bounds = _bounds(i.mask, named, kernel.axes)
        if bounds is None or dtypes[i.buffer] != dtypes[store.buffer]:
            return None
        found.append((*bounds, i))
        if mask is None:
            break
    return _partition(found, kernel.axes, store)


def _partition(
    found: list[tuple[int, int, str, Load]], axes: tuple[Axis, ...], store: Store
) -> list[Piece] | None:
    """The pieces, if they lie side by side along one axis and fill it."""
    pieces: list[Piece] = []
    along, behind = found[0][2], 0
    names = [a.name for a in axes]
    if store.index.offset != 0 or store.index.values or {name for *_, name, _ in found} != {along}:
        return None
    steps = [store.index.stride(name) for name in names]
    for low, high, _, load in sorted(found, key=lambda f: f[0]):
        sizes = tuple(high - low if a.name == along else int(a.extent) for a in axes)  # type: ignore[arg-type]
        own = dict(zip(names, contiguous_strides(sizes), strict=True))
        dense = [(n, s) for n, s in own.items() if load.index.stride(n) != s]
        apart = int(own[along])  # type: ignore[arg-type]
        if low != behind or high <= low or dense or load.index.values:
            return None
        if load.index.offset != -low * apart or not all(isinstance(s, int) for s in steps):
            return None
        numbers = tuple(int(s) for s in steps)  # type: ignore[arg-type]
        pieces.append(Piece(load.buffer, sizes, numbers, low * numbers[names.index(along)]))
        behind = high
    whole = next(a.extent for a in axes if a.name == along)
    return pieces if behind == whole and len(pieces) > 1 else None


def _bounds(
    mask: str, named: dict[str, Instruction], axes: tuple[Axis, ...]
) -> tuple[int, int, str] | None:
    """From where to where along which axis a mask holds."""
    i = named[mask]
    if not isinstance(i, Apply):
        return None
    if i.op == "and":
        parts = [_bounds(a, named, axes) for a in i.args]
        if None in parts or len({p[2] for p in parts if p}) != 1:
            return None
        known = [p for p in parts if p is not None]
        return max(p[0] for p in known), min(p[1] for p in known), known[0][2]
    place, limit = (named.get(a) for a in i.args[:2]) if len(i.args) == 2 else (None, None)
    if not isinstance(place, Position) or not isinstance(limit, Const):
        return None
    if len(place.index.axes) != 1 or place.index.axes[0][1] != 1 or place.index.offset != 0:
        return None
    name, border = place.index.axes[0][0], int(limit.value)
    extent = next(a.extent for a in axes if a.name == name)
    assert isinstance(extent, int)
    if i.op == "lt":
        return 0, min(border, extent), name
    return (max(border, 0), extent, name) if i.op == "ge" else None


def _written_in_place(
    before: list[Step], made: dict[Value, Piece], result: Value
) -> list[Step] | None:
    """The steps before, with each piece written to its part of the result; None: one cannot be."""
    changed: list[Step] = []
    left = set(made)
    for step in before:
        here = writes(step) & made.keys()
        if not here:
            changed.append(step)
            continue
        moved = _redirected(step, {v: made[v] for v in here}, result)
        if moved is None:
            return None
        left -= here
        changed.append(moved)
    return changed if not left else None


def _redirected(step: Step, made: dict[Value, Piece], result: Value) -> Built | None:
    """A kernel whose stores of pieces go to their places in the result."""
    if isinstance(step, LibraryCall):
        return None
    kernel, target = step.kernel, f"{_free_name('joined', step.kernel)}"
    pieces = {name: made[root_of(v)] for name, v in step.buffers.items() if root_of(v) in made}
    extents = {a.name: a.extent for a in kernel.all_axes()}
    if any(b.role != "out" for b in kernel.buffers if b.name in pieces):
        return None
    if not all(isinstance(e, int) for e in extents.values()):
        return None
    loops: list[Loop] = []
    for loop in kernel.loops:
        body: list[Instruction] = []
        for i in loop.body:
            if isinstance(i, Store) and i.buffer in pieces:
                place = pieces[i.buffer].place(i.index, extents)  # type: ignore[arg-type]
                if place is None:
                    return None
                body.append(replace(i, buffer=target, index=place))
            else:
                body.append(i)
        loops.append(replace(loop, body=tuple(body)))
    kept = tuple(b for b in kernel.buffers if b.name not in pieces)
    buffers = (*kept, KernelBuffer(target, result.dtype, "out"))
    values = {name: v for name, v in step.buffers.items() if name not in pieces}
    return Built(replace(kernel, buffers=buffers, loops=tuple(loops)), {**values, target: result})


def _free_name(wish: str, kernel: Kernel) -> str:
    taken, count, name = {b.name for b in kernel.buffers}, 0, wish
    while name in taken:
        count += 1
        name = f"{wish}{count}"
    return name
