"""Columns are summed by the kernel that goes through the rows: both read the same elements.

The gradient of a normalisation needs sums along rows for what it hands back, and sums down columns
for its weights. A block takes some of the rows, one after the other, with a sum for each column in
registers; what it has in the end is one part of each sum, and a last kernel adds the parts up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dovetail.ir.affine import product
from dovetail.ir.dtypes import item_bytes
from dovetail.ir.kernel import Apply, Axis, Const, Index, Kernel, Load, Loop, Reduce, Store
from dovetail.ir.segment import is_write
from dovetail.ir.target import Target
from dovetail.lower.values import LibraryCall, Value, root_of
from dovetail.schedule.build import Built
from dovetail.schedule.gpu.rows import free_suffix, rename_all
from dovetail.schedule.gpu.steps import Step, reads, writes
from dovetail.schedule.gpu.strategy import walks_fit

BLOCKS = 2  # for each multiprocessor, at most: each adds a part that is read once more
FEWEST = 0.5  # blocks for each multiprocessor that are enough
SHORTEST = 8  # rows of a block, at least
WORTH = 2  # bytes that need not be read again for each byte of parts


def sum_columns(steps: list[Step], wanted: set[Value], target: Target) -> list[Step]:
    """With sums down columns in the kernels that go through the same rows."""
    for step in list(steps):
        if not isinstance(step, Built) or not any(s is step for s in steps):
            continue
        partial = PartialSums.of(step)
        if partial is None or writes(step) & wanted:
            continue
        for other in [s for s in steps if isinstance(s, Built) and s is not step]:
            joined = ColumnJoin(other, step, partial, target).joined(steps)
            if joined is not None:
                steps = joined
                break
    return steps


@dataclass(frozen=True)
class PartialSums:
    """What a kernel is that adds up parts of columns: ``parts`` of ``rows`` rows of ``width``."""

    part: Axis
    column: Axis
    row: Axis
    body: tuple[Load | Const | Apply, ...]
    sums: tuple[tuple[Store, str], ...]  # where each sum goes, and of what it is

    @staticmethod
    def of(step: Built) -> PartialSums | None:
        """None where a kernel does anything else."""
        kernel = step.kernel
        if len(kernel.axes) != 2 or len(kernel.loops) != 2 or kernel.loops[1].axes:
            return None
        first, last = kernel.loops
        sums = {i.name: i for i in first.body if isinstance(i, Reduce)}
        stores = [i for i in last.body if isinstance(i, Store)]
        body = tuple(i for i in first.body if isinstance(i, Load | Const | Apply))
        extents = [a.extent for a in (*kernel.axes, *first.axes)]
        whole = len(first.axes) == 1 and all(isinstance(e, int) for e in extents)
        if not whole or len(body) + len(sums) != len(first.body) or len(stores) != len(last.body):
            return None
        if any(s.op != "sum" or s.dtype != "float32" for s in sums.values()):
            return None
        if any(isinstance(i, Load) and (i.mask or i.index.values) for i in body):
            return None
        if sorted(s.value for s in stores) != sorted(sums) or any(s.index.values for s in stores):
            return None
        named = tuple((s, sums[s.value].args[0]) for s in stores)
        return PartialSums(kernel.axes[0], kernel.axes[1], first.axes[0], body, named)

    def along(self, index: Index) -> tuple[int, int] | None:
        """The steps of an index from row to row and from column to column; None: it has others."""
        steps = [index.stride(a.name) for a in (self.part, self.row, self.column)]
        if not all(isinstance(s, int) for s in steps) or index.offset != 0:
            return None
        part, row, column = (int(s) for s in steps)  # type: ignore[arg-type]
        return (row, column) if part == row * int(self.row.extent) else None  # type: ignore[arg-type]


class ColumnJoin:
    """A kernel of rows, one that adds up parts of columns, and those that add up the parts."""

    def __init__(self, rows: Built, columns: Built, sums: PartialSums, target: Target) -> None:
        self.rows, self.columns, self.sums, self.target = rows, columns, sums, target
        self.made = {root_of(self.columns.buffers[s.buffer]) for s, _ in sums.sums}

    def joined(self, steps: list[Step]) -> list[Step] | None:
        """The steps with both as one kernel; None where they are better apart."""
        axis, loop = self._row_axis(), self._shared_loop()
        if axis is None or loop is None:
            return None
        parts = self._parts(int(axis.extent), int(self.sums.column.extent))  # type: ignore[arg-type]
        readers = [s for s in steps if reads(s) & self.made]
        new = {v: Value(f"{v.name}_parts", v.dtype, (parts, *v.shape[1:])) for v in self.made}
        last = [self._over(reader, parts, new) for reader in readers]
        place = self._place(steps)
        if not parts or None in last or place is None:
            return None
        kernel = self._kernel(axis, loop, parts, new)
        if kernel is None or not walks_fit(kernel.kernel, self.target):
            return None
        both = (self.rows, self.columns)
        rest = [
            kernel if n == place else s for n, s in enumerate(steps) if n == place or s not in both
        ]
        changed = dict(zip(map(id, readers), last, strict=True))
        return [changed.get(id(s)) or s for s in rest]

    def _row_axis(self) -> Axis | None:
        """The rows that both go through."""
        axes, sums = self.rows.kernel.axes, self.sums
        count = int(sums.part.extent) * int(sums.row.extent)  # type: ignore[arg-type]
        return axes[0] if len(axes) == 1 and axes[0].extent == count else None

    def _shared_loop(self) -> Loop | None:
        """A loop of the rows' columns that reads all that the sums are of."""
        known: dict[tuple[Value, int, int], Loop] = {}
        for loop in self.rows.kernel.loops:
            if loop.axes and (
                len(loop.axes) != 1 or loop.axes[0].extent != self.sums.column.extent
            ):
                return None
            known |= {key: loop for i in loop.body if (key := self._key(i, loop)) is not None}
        found = [known.get(key) for key in self._whole()]
        return found[0] if found and None not in found else None

    def _key(self, i: object, loop: Loop) -> tuple[Value, int, int] | None:
        """What a load of the rows' kernel reads, if it is a whole tensor."""
        if not isinstance(i, Load) or not loop.axes or i.mask or i.index.values:
            return None
        steps = [i.index.stride(a.name) for a in (self.rows.kernel.axes[0], loop.axes[0])]
        if i.index.offset != 0 or not all(isinstance(s, int) and s for s in steps):
            return None
        return root_of(self.rows.buffers[i.buffer]), int(steps[0]), int(steps[1])  # type: ignore[arg-type]

    def _whole(self) -> list[tuple[Value, int, int]]:
        """The whole tensors that sums are of."""
        found = []
        for i in self.sums.body:
            steps = self.sums.along(i.index) if isinstance(i, Load) else None
            if isinstance(i, Load) and steps is not None and all(steps):
                found.append((root_of(self.columns.buffers[i.buffer]), *steps))
        return found

    def _parts(self, rows: int, width: int) -> int:
        """Into how many parts rows are cut, each as long as the others; 0: none is right."""
        most = min(BLOCKS * self.target.cores, rows // SHORTEST)
        parts = next((n for n in range(most, 0, -1) if rows % n == 0), 0)
        if parts < FEWEST * self.target.cores:
            return 0
        saved = sum(rows * width * item_bytes(value.dtype) for value, *_ in set(self._whole()))
        added = 2 * parts * width * item_bytes("float32") * len(self.sums.sums)
        return parts if saved >= WORTH * added else 0

    def _place(self, steps: list[Step]) -> int | None:
        """Where one kernel can stand for both; None: nowhere."""
        here, there = steps.index(self.rows), steps.index(self.columns)
        low, high = sorted((here, there))
        between = steps[low + 1 : high]
        if any(isinstance(s, LibraryCall) and is_write(s.call) for s in between):
            return None
        early, late = steps[low], steps[high]
        if not any(writes(s) & reads(late) for s in between):
            return low
        return None if any(reads(s) & writes(early) for s in between) else high

    def _over(self, reader: Step, parts: int, new: dict[Value, Value]) -> Built | None:
        """A kernel that adds up the parts, with as many as there are now."""
        if not isinstance(reader, Built) or not parts:
            return None
        kernel = reader.kernel
        values = {n: new.get(root_of(v), v) for n, v in reader.buffers.items()}
        looped = [loop for loop in kernel.loops if loop.axes]
        read = {root_of(reader.buffers[b.name]) for b in kernel.buffers if b.role == "in"}
        if read - self.made or len(looped) != 1 or len(looped[0].axes) != 1:
            return None
        (axis,) = looped[0].axes
        steps = {i.index.stride(axis.name) for i in kernel.instructions() if isinstance(i, Load)}
        wanted = {product(v.shape[1:]) for v in self.made}
        if axis.extent != self.sums.part.extent or steps != wanted:
            return None
        loops = tuple(
            replace(loop, axes=(Axis(axis.name, parts),)) if loop.axes else loop
            for loop in kernel.loops
        )
        return Built(replace(kernel, loops=loops), values)

    def _kernel(self, axis: Axis, loop: Loop, parts: int, new: dict[Value, Value]) -> Built | None:
        """The rows' kernel over parts and their rows, with the sums in a loop behind its own."""
        rows, suffix = int(axis.extent) // parts, free_suffix(self.rows.kernel)  # type: ignore[arg-type]
        part, row = Axis(f"{axis.name}_part", parts), Axis(f"{axis.name}_row", rows)

        def cut(index: Index) -> Index:
            step = index.stride(axis.name)
            if step == 0:
                return index
            moved = ((part.name, step * rows), (row.name, step))  # type: ignore[operator]
            return replace(index, axes=(*moved, *index.without([axis.name]).axes))

        if any(not isinstance(i.index.stride(axis.name), int) for i in _indexed(self.rows.kernel)):
            return None
        loops = [each.reindexed(cut) for each in self.rows.kernel.loops]
        names, buffers = self._buffers(suffix, new)
        values = self._at_hand()
        if values is None:
            return None
        (column,) = loop.axes
        body = self._body(cut, axis, column)
        if body is None:
            return None
        given = {n: n for n in (axis.name, part.name, row.name, column.name)}
        made = [*rename_all([Loop((), body)], given, names, values, {}, suffix)]
        for store, value in self.sums.sums:
            width = (
                store.index.stride(self.sums.part.name),
                store.index.stride(self.sums.column.name),
            )
            index = Index(0, ((part.name, width[0]), (column.name, width[1])))
            value = values.get(value, f"{value}{suffix}")
            made.append(Store(names[store.buffer], index, value, sums=True))
        kernel = self.rows.kernel
        held = {b.name: b for b in kernel.buffers}
        for b in self.columns.kernel.buffers:
            held.setdefault(names[b.name], replace(b, name=names[b.name]))
        whole = replace(
            kernel,
            buffers=tuple(held.values()),
            axes=(part, row),
            loops=(*loops, Loop((column,), tuple(made))),
        )
        return Built(whole, {**self.rows.buffers, **buffers})

    def _buffers(
        self, suffix: str, new: dict[Value, Value]
    ) -> tuple[dict[str, str], dict[str, Value]]:
        """The names of the sums' buffers in the kernel of both, and what is behind new ones."""
        known = {root_of(v): name for name, v in self.rows.buffers.items()}
        names, values = {}, {}
        for name, value in self.columns.buffers.items():
            root = root_of(value)
            names[name] = known.get(root, f"{name}{suffix}")
            if root not in known:
                values[names[name]] = new.get(root, value)
        return names, values

    def _body(
        self, cut: object, axis: Axis, column: Axis
    ) -> tuple[Load | Const | Apply, ...] | None:
        """What is summed, at the rows and columns of the rows' kernel."""
        found: list[Load | Const | Apply] = []
        for i in self.sums.body:
            if isinstance(i, Load):
                steps = self.sums.along(i.index)
                if steps is None:
                    return None
                pairs = ((axis.name, steps[0]), (column.name, steps[1]))
                index = Index(0, tuple((n, s) for n, s in pairs if s))
                i = replace(i, index=cut(index))  # type: ignore[operator]
            found.append(i)
        return tuple(found)

    def _at_hand(self) -> dict[str, str] | None:
        """Values of a row that the rows' kernel makes and sums need; None: others than such."""
        kernel, found = self.rows.kernel, dict[str, str]()
        made = {root_of(self.rows.buffers[b.name]): b for b in kernel.buffers if b.role != "in"}
        for i in self.sums.body:
            buffer = (
                made.get(root_of(self.columns.buffers[i.buffer])) if isinstance(i, Load) else None
            )
            if not isinstance(i, Load) or buffer is None:
                continue
            steps = self.sums.along(i.index)
            stores = [
                s for s in kernel.instructions() if isinstance(s, Store) and s.buffer == buffer.name
            ]
            alone = [s for loop in kernel.loops if not loop.axes for s in loop.body if s in stores]
            if steps is None or len(stores) != 1 or alone != stores or buffer.dtype != "float32":
                return None
            index = Index(0, ((kernel.axes[0].name, steps[0]),))
            if steps[1] or stores[0].index != index:
                return None
            found[i.name] = stores[0].value
        read = {root_of(self.rows.buffers[b.name]) for b in kernel.buffers if b.role == "in"}
        return None if read & self.made else found


def _indexed(kernel: Kernel) -> Sequence[Load | Store]:
    return [i for i in kernel.instructions() if isinstance(i, Load | Store)]
