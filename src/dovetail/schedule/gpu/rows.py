"""What is computed of whole rows is computed where they are reduced: a block has just read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dovetail.ir.affine import product
from dovetail.ir.dtypes import DTYPES
from dovetail.ir.kernel import (
    Apply,
    Axis,
    Index,
    Instruction,
    Kernel,
    Load,
    Loop,
    Position,
    Reduce,
    Scan,
    Store,
)
from dovetail.ir.segment import is_write
from dovetail.ir.strides import contiguous_strides
from dovetail.ir.target import Target
from dovetail.lower.values import LibraryCall, Value, root_of
from dovetail.schedule.build import Built
from dovetail.schedule.gpu.steps import Step, reads, writes
from dovetail.schedule.gpu.strategy import is_down

ROWS = 2  # for each multiprocessor, from which on rows are enough to share
LONGEST = 1 << 15  # points of a row that near memory still holds when they are read again


def finish_rows(steps: list[Step], wanted: set[Value], target: Target) -> list[Step]:
    """With what is computed of rows in the kernels that reduce them."""
    number = 0
    while number < len(steps):
        first = steps[number]
        place = _next_reader(steps, number)
        if isinstance(first, Built) and place is not None:
            second = steps[place]
            assert isinstance(second, Built)
            rest = [s for n, s in enumerate(steps) if n not in (number, place)]
            kept = wanted.union(*map(reads, rest))
            joined = RowJoin(first, second, kept, target).joined()
            if joined is not None:
                steps[number : place + 1] = [*steps[number + 1 : place], joined]
                continue
        number += 1
    return steps


def _next_reader(steps: list[Step], number: int) -> int | None:
    """The first step that reads what a kernel makes, if it is a kernel that can join it."""
    made = writes(steps[number])
    for place in range(number + 1, len(steps)):
        step = steps[place]
        if isinstance(step, LibraryCall):
            if is_write(step.call) or reads(step) & made:
                return None
        elif reads(step) & made:
            return place
    return None


class RowJoin:
    """A kernel that reduces rows, and one that computes elements of the same rows."""

    def __init__(self, first: Built, second: Built, kept: set[Value], target: Target) -> None:
        self.first, self.second, self.kept, self.target = first, second, kept, target

    def joined(self) -> Built | None:
        """One kernel for both, if that is better."""
        one, two = self.first.kernel, self.second.kernel
        if not any(loop.axes for loop in one.loops) or any(loop.axes for loop in two.loops):
            return None
        split = _split_axes(one, two.axes)
        if split is None or len(split.axes) == len(two.axes) or not self._pays(two, split):
            return None
        values = self._values(split, two)
        if values is None:
            return None
        made = self._merged(split, two, values)
        return None if is_down(made.kernel) else made

    def _pays(self, two: Kernel, split: Kernel) -> bool:
        """Whether rows are many enough to share, and short enough to stay near."""
        rows = product(a.extent for a in split.axes)
        columns = product(a.extent for a in two.axes[len(split.axes) :])
        widths = [product(a.extent for a in loop.axes) for loop in split.loops]
        if not isinstance(rows, int) or not all(isinstance(w, int) for w in (columns, *widths)):
            return False
        longest = max(int(w) for w in (columns, *widths))  # type: ignore[arg-type]
        return rows >= ROWS * self.target.cores and longest <= LONGEST

    def _values(self, split: Kernel, two: Kernel) -> dict[str, str] | None:
        """For each load of what the first makes, the value it would find; None: not all at hand."""
        names = {a.name: b.name for a, b in zip(two.axes, split.axes, strict=False)}
        made = {root_of(self.first.buffers[b.name]): b for b in split.buffers if b.role != "in"}
        found: dict[str, str] = {}
        for i in two.instructions():
            if not isinstance(i, Load):
                continue
            buffer = made.get(root_of(self.second.buffers[i.buffer]))
            if buffer is None:
                continue
            renamed = frozenset((names.get(n, n), s) for n, s in i.index.axes)
            stored = [
                s
                for loop in split.loops
                if not loop.axes
                for s in loop.body
                if isinstance(s, Store) and s.buffer == buffer.name
            ]
            same = [s for s in stored if frozenset(s.index.axes) == renamed]
            exact = same and same[0].index.offset == i.index.offset and not i.index.values
            if len(stored) != 1 or not exact or i.mask is not None or same[0].index.values:
                return None
            found[i.name] = same[0].value
        return found

    def _merged(self, split: Kernel, two: Kernel, values: dict[str, str]) -> Built:
        held = {root_of(v): name for name, v in self.first.buffers.items()}
        buffers, roots = {b.name: b for b in split.buffers}, dict(self.first.buffers)
        suffix = free_suffix(split)
        renamed: dict[str, str] = {}
        for b in two.buffers:
            value = self.second.buffers[b.name]
            known = held.get(root_of(value))
            name = known or f"{b.name}{suffix}"
            renamed[b.name] = name
            if known is None:
                buffers[name], roots[name] = replace(b, name=name), value
        axes = {a.name: b.name for a, b in zip(two.axes, split.axes, strict=False)}
        inner = tuple(Axis(f"{a.name}{suffix}", a.extent) for a in two.axes[len(split.axes) :])
        axes |= {a.name: f"{a.name}{suffix}" for a in two.axes[len(split.axes) :]}
        body = tuple(
            rename_all(two.loops, axes, renamed, values, self._rounding(values, two), suffix)
        )
        loops = (*self._without_unread(split), Loop(inner, body))
        used = {i.buffer for loop in loops for i in loop.body if isinstance(i, Load | Store)}
        kernel = Kernel(
            split.name, tuple(b for n, b in buffers.items() if n in used), split.axes, loops
        )
        return Built(kernel, {n: v for n, v in roots.items() if n in used})

    def _rounding(self, values: dict[str, str], two: Kernel) -> dict[str, str]:
        """What memory would have done to each value that does not go there any more."""
        dtypes = {b.name: b.dtype for b in two.buffers}
        loads = [i for i in two.instructions() if isinstance(i, Load) and i.name in values]
        found = {i.name: DTYPES[dtypes[i.buffer]].rounding for i in loads}
        return {name: op for name, op in found.items() if op}

    def _without_unread(self, split: Kernel) -> Iterator[Loop]:
        """The first kernel's loops, less stores that only the second kernel reads."""
        unread = {
            b.name
            for b in split.buffers
            if b.role == "out" and root_of(self.first.buffers[b.name]) not in self.kept
        }
        read = {root_of(self.second.buffers[b.name]) for b in self.second.kernel.buffers}
        for loop in split.loops:
            body = tuple(
                i
                for i in loop.body
                if not (
                    isinstance(i, Store)
                    and i.buffer in unread
                    and root_of(self.first.buffers[i.buffer]) in read
                )
            )
            if body:
                yield replace(loop, body=body)


def _split_axes(kernel: Kernel, axes: Sequence[Axis]) -> Kernel | None:
    """A kernel with its axes cut like the first ones of others; None: they cannot be."""
    place, new, cuts = 0, [], dict[str, list[tuple[str, int]]]()
    for axis in kernel.axes:
        total, parts = 1, []
        while total != axis.extent:
            if place == len(axes) or not isinstance(axes[place].extent, int):
                return None
            parts.append(axes[place])
            total *= int(axes[place].extent)  # type: ignore[arg-type]
            place += 1
            if not isinstance(axis.extent, int) or total > axis.extent:
                return None
        if not parts:
            return None
        names = [axis.name, *(f"{axis.name}_{n}" for n in range(1, len(parts)))]
        steps = contiguous_strides([p.extent for p in parts])
        cuts[axis.name] = [(n, int(s)) for n, s in zip(names, steps, strict=True)]  # type: ignore[arg-type]
        new += [Axis(n, p.extent) for n, p in zip(names, parts, strict=True)]

    def cut(index: Index) -> Index:
        found: list[tuple[str, object]] = []
        for name, stride in index.axes:
            pieces = cuts.get(name, [(name, 1)])
            found += [(n, stride * s if isinstance(stride, int) else stride) for n, s in pieces]
        return replace(index, axes=tuple(found))  # type: ignore[arg-type]

    if any(
        not isinstance(stride, int) and len(cuts.get(name, ())) > 1
        for i in kernel.instructions()
        if isinstance(i, Load | Store | Position)
        for name, stride in i.index.axes
    ):
        return None
    loops = tuple(loop.reindexed(cut) for loop in kernel.loops)
    return replace(kernel, axes=tuple(new), loops=loops)


def free_suffix(kernel: Kernel) -> str:
    """What names of a kernel that joins this one end in; this one may be joined itself."""
    names = {b.name for b in kernel.buffers} | {i.name for i in kernel.instructions() if i.name}
    names |= {a.name for axes in (kernel.axes, *(loop.axes for loop in kernel.loops)) for a in axes}
    suffix, number = "_second", 2
    while any(name.endswith(suffix) for name in names):
        suffix, number = f"_second{number}", number + 1
    return suffix


def rename_all(
    loops: Sequence[Loop],
    axes: dict[str, str],
    buffers: dict[str, str],
    values: dict[str, str],
    rounding: dict[str, str],
    suffix: str,
) -> Iterator[Instruction]:
    """A second kernel's instructions with names that no first one has."""
    names: dict[str, str] = {}
    for i in (i for loop in loops for i in loop.body):
        new = f"{i.name}{suffix}" if i.name else ""
        if isinstance(i, Load) and i.name in values:
            names[i.name] = values[i.name]
            if i.name in rounding:
                names[i.name] = new
                yield Apply(new, i.dtype, rounding[i.name], (values[i.name],))
            continue
        if i.name:
            names[i.name] = new
        if isinstance(i, Load | Store | Position):
            index = Index(
                i.index.offset,
                tuple((axes[n], s) for n, s in i.index.axes),
                tuple((names[n], s) for n, s in i.index.values),
            )
            if isinstance(i, Load):
                mask = None if i.mask is None else names[i.mask]
                yield replace(i, name=new, buffer=buffers[i.buffer], index=index, mask=mask)
            elif isinstance(i, Store):
                yield replace(i, buffer=buffers[i.buffer], index=index, value=names[i.value])
            else:
                yield replace(i, name=new, index=index)
        elif isinstance(i, Apply):
            yield replace(i, name=new, args=tuple(names[a] for a in i.args))
        else:
            assert not isinstance(i, Reduce | Scan)
            yield replace(i, name=new)
