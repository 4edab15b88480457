"""Sums of products of few rows, in vectors along the sum.

Where rows are few, bringing columns together costs more than the products do. Here they are read
where they lie: a tile's sums are vectors of neighbouring steps, whose lanes are added up at the
end, those of several columns together. Sums go through a buffer on the stack, as in other products.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from dovetail.codegen.llvm import memory
from dovetail.codegen.llvm.columns import array, moved, stored_type
from dovetail.codegen.llvm.emit import Code, Val, vector_type
from dovetail.codegen.llvm.product import added, finish
from dovetail.codegen.llvm.reduce import part
from dovetail.codegen.llvm.tile import Span, span
from dovetail.ir.kernel import Load
from dovetail.ir.kernel_product import kernel_product
from dovetail.schedule.tiles import DotTile

if TYPE_CHECKING:
    from dovetail.codegen.llvm.render import Renderer


class DotTiles:
    """Writes the units of one kernel."""

    def __init__(self, r: Renderer, tile: DotTile) -> None:
        found = kernel_product(r.kernel)
        assert found is not None
        assert isinstance(found.rows.extent, int)
        self.r, self.c, self.tile, self.of = r, r.c, tile, found
        self.dtype, self.lanes, self.rows = found.total.dtype, r.lanes, found.rows.extent
        self.steps = r.lanes * (1 + tile.pairs)  # of a vector
        self.totals = array(r.c, "totals", self.rows * tile.block, self.dtype)

    def unit(self, number: Val) -> None:
        """A block of columns, and all rows."""
        r, c, tile = self.r, self.c, self.tile
        number, columns = span(r, number, self.of.columns, tile.block)
        r.decode(number, [a for a in r.kernel.axes if a not in (self.of.rows, self.of.columns)])
        count = c.op("sub", columns[1], columns[0])
        whole = c.op("and", count, self._index(-tile.together))
        stop = c.op("add", columns[0], whole)
        c.each(columns[0], stop, tile.together, partial(self._column, columns[0], tile.together))
        if tile.together > 1:
            c.each(stop, columns[1], 1, partial(self._column, columns[0], 1))
        zero = self._index(0)
        finish(r, self.of, (self.totals, tile.block), (zero, self._index(self.rows)), zero, columns)

    def _column(self, first: Val, together: int, column: Val) -> None:
        """Some columns, with the rows tile by tile."""
        most = self.tile.heights[0]
        count = -(-self.rows // most)
        for n in range(count):
            low, high = (i * self.rows // count for i in (n, n + 1))
            self._tile(range(low, high), self.c.op("sub", column, first), column, together)

    def _tile(self, rows: range, place: Val, column: Val, together: int) -> None:
        """The sums of some rows and columns, chunk by chunk."""
        c, zero, end = self.c, self._index(0), self.r.size(self.of.sum.extent)
        lefts, rights = self._lefts(rows), self._rights(column, together)
        sums = partial(self._sums, lefts, rights, asks=self.tile.ahead > 0 and rows[0] == 0)
        at = [
            memory.address(
                c, self.totals, c.op("add", place, self._index(i * self.tile.block)), self.dtype
            )
            for i in rows
        ]
        if not self.tile.chunk:
            for to, value in zip(at, sums((zero, end)), strict=True):
                memory.store_vector(c, value, to, None)
            return
        for to in at:
            memory.store_vector(c, c.const(0.0, self.dtype, together), to, None)

        def add(start: Val) -> None:
            stop = c.intrinsic("smin", c.op("add", start, self._index(self.tile.chunk)), end)
            for to, value in zip(at, sums((start, stop)), strict=True):
                old = memory.load_dense(c, self.dtype, to, None, together)
                memory.store_vector(c, c.op("fadd", old, value), to, None)

        c.each(zero, end, self.tile.chunk, add)

    def _lefts(self, rows: range) -> list[Val]:
        """Where some rows begin."""
        of, r = self.of, self.r
        r.axes[of.rows.name], r.axes[of.sum.name] = self._index(0), self._index(0)
        start, stride = self._place(of.left), of.left.index.stride(of.rows.name)
        return [moved(r, start, stride, i, stored_type(r, of.left)) for i in rows]

    def _rights(self, column: Val, together: int) -> list[Val]:
        """Where some columns begin."""
        of, r = self.of, self.r
        r.axes[of.columns.name], r.axes[of.sum.name] = column, self._index(0)
        start, stride = self._place(of.right), of.right.index.stride(of.columns.name)
        return [moved(r, start, stride, j, stored_type(r, of.right)) for j in range(together)]

    def _place(self, load: Load) -> Val:
        return self.c.freeze(memory.base(self.r, load.buffer, load.index, ""))

    def _sums(
        self, lefts: Sequence[Val], rights: Sequence[Val], steps: Span, *, asks: bool
    ) -> list[Val]:
        """For each row its sums over some steps, one lane for each column."""
        c, lanes, each = self.c, self.lanes, self.steps
        slots = [[c.slot(self.dtype, lanes) for _ in rights] for _ in lefts]
        for slot in (s for row in slots for s in row):
            c.put(slot, c.const(0.0, self.dtype, lanes))

        def step(mask: Val | None, k: Val) -> None:
            for place in rights if asks else ():
                self._ask(place, k)
            columns = [self._vector(self.of.right, place, k, mask) for place in rights]
            for row, place in zip(slots, lefts, strict=True):
                left = self._vector(self.of.left, place, k, mask)
                for slot, right in zip(row, columns, strict=True):
                    old = c.get(slot, self.dtype, lanes)
                    c.put(slot, added(c, left, right, old, pairs=self.tile.pairs))

        count = c.op("sub", steps[1], steps[0])
        whole = c.op("add", steps[0], c.op("and", count, self._index(-each)))
        c.each(steps[0], whole, each, partial(step, None))
        extent = self.of.sum.extent
        if not isinstance(extent, int) or extent % each:
            left = c.splat(c.op("sub", steps[1], whole), each)
            some = c.compare("icmp slt", memory.lane_numbers(each), left)
            c.each(whole, steps[1], each, partial(step, some))
        return [add_lanes(c, [c.get(slot, self.dtype, lanes) for slot in row]) for row in slots]

    def _ask(self, column: Val, step: Val) -> None:
        """Ask memory for the same steps of a column to come; past the last is the next unit's."""
        of, r, c = self.of, self.r, self.c
        stored, stride = stored_type(r, of.right), of.right.index.stride(of.columns.name)
        later = moved(r, column, stride, self.tile.ahead, stored)
        memory.prefetch(c, memory.address(c, later, step, stored), 0)

    def _vector(self, load: Load, place: Val, step: Val, mask: Val | None) -> Val:
        """Neighbouring steps of an operand; those that are masked count nothing."""
        c, dtype, stored = self.c, self.r.dtypes[load.buffer], stored_type(self.r, load)
        at = memory.address(c, place, step, stored)
        raw = memory.load_dense(c, stored, at, mask, self.steps)
        if self.tile.pairs:
            kind = vector_type("int32", self.lanes)
            return c.new(f"bitcast {raw.type} {raw.text} to {kind}", "int32", self.lanes)
        return memory.widen(c, raw, dtype)

    def _index(self, number: int) -> Val:
        return self.c.const(number, "int64")


def add_lanes(c: Code, vectors: list[Val]) -> Val:
    """The sums of the lanes of several vectors, a power of two of them, one lane for each.

    Halves of two vectors lie side by side in one from then on, so that one addition serves both.
    """
    width = vectors[0].lanes
    while width > 1:
        half = width // 2
        if len(vectors) > 1:
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [_halves(c, a, b, width) for a, b in pairs]
        else:
            vectors = [_halves(c, vectors[0], None, width)]
        width = half
    return vectors[0]


def _halves(c: Code, first: Val, second: Val | None, width: int) -> Val:
    """Of groups of ``width`` lanes, the first halves plus the second ones."""
    starts = range(0, first.lanes * (1 if second is None else 2), width)
    half = width // 2
    if first.lanes == width == 2 and second is None:  # LLVM has vectors of one lane, we have none
        return c.op("fadd", part(c, first, 0, 1), part(c, first, 1, 1))
    low, high = (
        c.shuffle(first, second, [s + n + by for s in starts for n in range(half)])
        for by in (0, half)
    )
    return c.op("fadd", low, high)
