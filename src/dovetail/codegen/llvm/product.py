"""Sums of products in tiles of accumulators: rows are broadcast, columns are loaded in vectors.

A tile's sums go through a buffer on the stack, from which the rest of the kernel reads them vector
by vector. So that rest is written once, whatever the heights of tiles, and long sums are collected
there from parts, so that errors grow slowly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from dovetail.codegen.llvm import memory
from dovetail.codegen.llvm.columns import Columns, array, moved, stored_type, when
from dovetail.codegen.llvm.emit import Code, Val, vector_type
from dovetail.codegen.llvm.tile import Span, span
from dovetail.ir.dtypes import item_bytes
from dovetail.ir.kernel import Load, Store
from dovetail.ir.kernel_product import KernelProduct, kernel_product
from dovetail.ir.size import Dim
from dovetail.schedule.tiles import ProductTile

if TYPE_CHECKING:
    from dovetail.codegen.llvm.render import Renderer

CACHE_LINE = 64  # bytes
_PAIRS = "llvm.x86.avx512bf16.dpbf16ps.512"


class Tiles:
    """Writes the units of one kernel."""

    def __init__(self, r: Renderer, tile: ProductTile) -> None:
        found = kernel_product(r.kernel)
        assert found is not None
        self.r, self.c, self.tile, self.of = r, r.c, tile, found
        self.dtype, self.lanes = found.total.dtype, r.lanes
        self.width = tile.vectors * r.lanes
        self.is_deep = bool(tile.depth)
        held = tile.block if self.is_deep else tile.heights[0]
        self.totals = array(r.c, "totals", held * self.width, self.dtype)
        self.columns = Columns(r, found, tile)
        self.alone = False  # whether a step has no other beside it
        accesses = [i for i in r.kernel.instructions() if isinstance(i, Load | Store)]
        self.met = [i for i in accesses if self._is_met(i)]

    # ---- units -----------------------------------------------------------------------------

    def unit(self, number: Val) -> None:
        """One panel of columns, and a block of rows."""
        r, tile = self.r, self.tile
        outer, every = tile.outer(r.kernel, self.of.columns.name), number
        if tile.by_rows:
            number, columns = span(r, number, self.of.columns, self.width)
            for axis in reversed(outer):
                number, (r.axes[axis.name], _) = span(r, number, axis, 1)
            _, rows = span(r, number, self.of.rows, tile.block)
        else:
            every, rows = span(r, number, self.of.rows, tile.block)
            number, columns = span(r, every, self.of.columns, self.width)
            r.decode(number, outer)
        end = r.size(self.of.sum.extent)
        if self.is_deep:
            if not isinstance(self.of.sum.extent, int):  # there may be no first part
                self._clear(rows, rows[0])
            self.c.each(self._index(0), end, tile.depth, partial(self._part, rows, columns))
            self._finish(rows, rows[0], columns)
            return
        if tile.packed:
            self.columns.bring_once(every, columns)
        steps = self._index(0), end

        def each(low: Val, high: Val) -> None:
            def sums() -> None:
                self._fetch((low, high), columns)
                self._sum((low, high), low, columns, steps, fresh=True)

            if self.of.used_to_row:
                when(self.c, self.c.compare("icmp slt", columns[0], high), sums)
            else:
                sums()
            if not tile.from_registers:
                self._finish((low, high), low, columns)

        self._tiles(rows, each)

    def _part(self, rows: Span, columns: Span, start: Val) -> None:
        """Part of the sum, for all rows of a unit."""
        c = self.c
        end = self.r.size(self.of.sum.extent)
        stop = c.intrinsic("smin", c.op("add", start, self._index(self.tile.depth)), end)
        if self.tile.packed:
            self.columns.bring(columns, (start, stop))
        is_known = isinstance(self.of.sum.extent, int)
        first = c.compare("icmp eq", start, self._index(0))
        last = c.compare("icmp eq", stop, end)

        def each(low: Val, high: Val) -> None:
            if is_known:
                when(c, first, lambda: self._clear((low, high), rows[0]))
            if self.met:
                when(c, last, lambda: self._fetch((low, high), columns))
            self._sum((low, high), rows[0], columns, (start, stop), fresh=False)

        self._tiles(rows, each)

    def _tiles(self, rows: Span, each: Callable[[Val, Val], None]) -> None:
        """Cut rows into tiles of almost one height."""
        c, most = self.c, self.tile.heights[0]
        length = c.op("sub", rows[1], rows[0])
        more = c.op("add", length, self._index(most - 1))
        count = c.op("udiv", more, self._index(most))

        def tile(n: Val) -> None:
            following = c.op("add", n, self._index(1))
            low, high = (c.op("udiv", c.op("mul", i, length), count) for i in (n, following))
            each(c.op("add", rows[0], low), c.op("add", rows[0], high))

        c.each(self._index(0), count, 1, tile)

    def _index(self, number: int) -> Val:
        return self.c.const(number, "int64")

    # ---- sums ------------------------------------------------------------------------------

    def _sum(self, rows: Span, base: Val, columns: Span, steps: Span, *, fresh: bool) -> None:
        """Add a tile's products to its totals; they start at zero where it is ``fresh``."""
        c, heights = self.c, self.tile.heights
        if len(heights) == 1:
            self._height(heights[0], rows, base, columns, steps, fresh)
            return
        height = c.op("sub", rows[1], rows[0])
        labels = [c.label(f"rows{h}_") for h in heights]
        done = c.label("summed")
        cases = " ".join(
            f"i64 {h}, label %{x}" for h, x in zip(heights[1:], labels[1:], strict=True)
        )
        c.line(f"switch i64 {height.text}, label %{labels[0]} [ {cases} ]")
        for h, label in zip(heights, labels, strict=True):
            c.start(label)
            shared, c.shared = c.shared, dict(c.shared)
            self._height(h, rows, base, columns, steps, fresh)
            c.shared = shared
            c.line(f"br label %{done}")
        c.start(done)

    def _height(
        self, height: int, rows: Span, base: Val, columns: Span, steps: Span, fresh: bool
    ) -> None:
        """A tile of one height; long sums in chunks."""
        c, chunk = self.c, self.tile.chunk
        if self.tile.from_registers:
            self._run(height, rows, columns, steps, partial(self._finish_here, rows, columns))
            return
        places = self._places(height, rows[0], base)
        if not chunk and fresh:
            self._run(height, rows, columns, steps, lambda i, j, v: self._keep(places[i][j], v))
            return

        def collect(i: int, j: int, value: Val) -> None:
            old = self._vector(places[i][j])
            self._keep(places[i][j], c.op("fadd", old, value))

        if fresh:
            self._clear(rows, base, height)
        if not chunk:
            self._run(height, rows, columns, steps, collect)
            return

        def part(start: Val) -> None:
            stop = c.intrinsic("smin", c.op("add", start, self._index(chunk)), steps[1])
            self._run(height, rows, columns, (start, stop), collect)

        c.each(*steps, chunk, part)

    def _places(self, height: int, low: Val, base: Val) -> list[list[Val]]:
        """Where a tile's totals lie."""
        c, width = self.c, self.width
        start = self.totals
        if low.text != base.text:
            first = c.op("mul", c.op("sub", low, base), self._index(width))
            start = memory.address(c, start, first, self.dtype)
        return [
            [
                memory.address(c, start, self._index(i * width + j * self.lanes), self.dtype)
                for j in range(self.tile.vectors)
            ]
            for i in range(height)
        ]

    def _vector(self, place: Val) -> Val:
        kind = vector_type(self.dtype, self.lanes)
        size = item_bytes(self.dtype) * self.lanes
        text = f"load {kind}, ptr {place.text}, align {size}"
        return self.c.new(text, self.dtype, self.lanes)

    def _keep(self, place: Val, value: Val) -> None:
        size = item_bytes(self.dtype) * self.lanes
        self.c.line(f"store {value.type} {value.text}, ptr {place.text}, align {size}")

    def _clear(self, rows: Span, base: Val, height: int = 0) -> None:
        """Totals of zero."""
        c = self.c
        zero = c.const(0.0, self.dtype, self.lanes)
        if height:
            for place in (p for row in self._places(height, rows[0], base) for p in row):
                self._keep(place, zero)
            return
        c.each(*rows, 1, lambda i: self._clear((i, i), base, 1))

    def _run(
        self,
        height: int,
        rows: Span,
        columns: Span,
        steps: Span,
        finish: Callable[[int, int, Val], None],
    ) -> None:
        """Products of some steps, summed in registers, which no other code shares."""
        run = partial(self._run_here, height, rows, columns, steps, finish)
        self.c.apart(f"{self.r.name}.sums{height}", run)

    def _run_here(
        self,
        height: int,
        rows: Span,
        columns: Span,
        steps: Span,
        finish: Callable[[int, int, Val], None],
    ) -> None:
        c, tile = self.c, self.tile
        sums = [
            [c.slot(self.dtype, self.lanes) for _ in range(tile.vectors)] for _ in range(height)
        ]
        for slot in (s for row in sums for s in row):
            c.put(slot, c.const(0.0, self.dtype, self.lanes))
        left, left_step = self._left(rows[0], steps[0])
        left_step = 2 if tile.pairs else left_step
        right, right_step, masks = self.columns.read(columns, steps[0])
        at, other = c.slot("ptr", 1), c.slot("ptr", 1)
        c.put(at, left)
        c.put(other, right)

        def step(count: int, within: list[Val] | None = None) -> None:
            here, there = c.get(at, "ptr", 1), c.get(other, "ptr", 1)
            for n in range(count):
                self._step(sums, height, here, there, n, (left_step, right_step), masks, within)
            for slot, place, by, stored in (
                (at, here, left_step, stored_type(self.r, self.of.left)),
                (other, there, right_step, self.columns.element),
            ):
                offset = c.op("mul", self.r.size(by), self._index(count)) if by != 1 else None
                offset = offset or self._index(count)
                c.put(slot, memory.address(c, place, offset, stored))

        if tile.pairs:
            self._pairs(steps, step)
        else:
            self._steps(height, rows, steps, step)
        for i, row in enumerate(sums):
            for j, slot in enumerate(row):
                finish(i, j, c.get(slot, self.dtype, self.lanes))

    def _steps(self, height: int, rows: Span, steps: Span, step: Callable[..., None]) -> None:
        """Take all steps: those that all rows of a tile have, then those that some have."""
        c, unroll = self.c, self.tile.unroll
        stop = self._last_of_all(rows, steps)
        many = c.op("sub", stop, steps[0])
        whole = many
        if unroll > 1:
            whole = c.op("and", many, self._index(-unroll))
        c.each(self._index(0), whole, unroll, lambda _: step(unroll))
        if unroll > 1 and not self._divides(unroll):
            c.each(whole, many, 1, lambda _: step(1))
        if not self.of.sums_to_row:
            return

        def some(k: Val) -> None:
            places = [c.op("add", rows[0], self._index(i)) for i in range(height)]
            step(1, [c.compare("icmp sle", k, place) for place in places])

        c.each(stop, c.intrinsic("smin", steps[1], rows[1]), 1, some)

    def _pairs(self, steps: Span, step: Callable[..., None]) -> None:
        """Take steps two by two, then the last of an odd number with a zero beside it."""
        c, unroll = self.c, self.tile.unroll // 2
        many = c.op("sub", steps[1], steps[0])
        pairs = c.op("lshr", many, self._index(1))
        whole = c.op("and", pairs, self._index(-unroll))
        c.each(self._index(0), whole, unroll, lambda _: step(unroll))
        if self._divides(self.tile.unroll):
            return
        c.each(whole, pairs, 1, lambda _: step(1))
        if isinstance(self.of.sum.extent, int) and self.of.sum.extent % 2 == 0:
            return
        odd = c.op("and", many, self._index(1))
        self.alone = True
        when(c, c.compare("icmp ne", odd, self._index(0)), lambda: step(1))
        self.alone = False

    def _last_of_all(self, rows: Span, steps: Span) -> Val:
        """Where the steps end that all rows of a tile have."""
        c = self.c
        if not self.of.sums_to_row:
            return steps[1]
        first = c.op("add", rows[0], self._index(1))
        return c.intrinsic("smax", steps[0], c.intrinsic("smin", steps[1], first))

    def _divides(self, unroll: int) -> bool:
        extent = self.of.sum.extent
        whole = isinstance(extent, int) and extent % unroll == 0
        return whole and not self.of.sums_to_row

    def _step(
        self,
        sums: list[list[str]],
        height: int,
        left: Val,
        right: Val,
        number: int,
        strides: tuple[Dim, Dim],
        masks: list[Val | None],
        within: list[Val] | None,
    ) -> None:
        """One step of the sum, for all accumulators, or those of rows that it is ``within``."""
        c, lanes = self.c, self.lanes
        stored = self.columns.element
        start = moved(self.r, right, strides[1], number, stored)
        self._ask(right, strides[1], number, stored)
        vectors = []
        for j, mask in enumerate(masks):
            place = memory.address(c, start, self._index(j * lanes), stored)
            vectors.append(
                self._widened(memory.load_dense(c, stored, place, mask, lanes), self.of.right)
            )
        stored = stored_type(self.r, self.of.left)
        start = moved(self.r, left, strides[0], number, stored)
        across = self.of.left.index.stride(self.of.rows.name)
        for i in range(height):
            value = self._broadcast(moved(self.r, start, across, i, stored))
            for j, vector in enumerate(vectors):
                old = c.get(sums[i][j], self.dtype, lanes)
                new = added(c, value, vector, old, pairs=self.tile.pairs)
                c.put(sums[i][j], new if within is None else c.select(within[i], new, old))

    def _widened(self, raw: Val, load: Load) -> Val:
        """What is multiplied, of what lies in memory; pairs are as they lie."""
        dtype = self.r.dtypes[load.buffer]
        return raw if self.tile.pairs else memory.widen(self.c, raw, dtype)

    def _broadcast(self, place: Val) -> Val:
        """A row's element, or its pair, in every lane."""
        c, stored = self.c, stored_type(self.r, self.of.left)
        if self.tile.pairs and not self.alone:
            one = c.new(f"load i32, ptr {place.text}, align {item_bytes(stored)}", "int32", 1)
        else:
            one = memory.load_scalar(c, stored, place, None)
        if self.alone:
            one = c.convert("zext", one, "int32")
        return self._widened(c.splat(one, self.lanes), self.of.left)

    def _ask(self, right: Val, stride: Dim, number: int, stored: str) -> None:
        """Ask for the columns of a step to come; past the last are those of the next tile."""
        if not self.tile.ahead:
            return
        ahead = self.tile.ahead // self.columns.together
        later = moved(self.r, right, stride, number + ahead, stored)
        for n in range(0, self.width, CACHE_LINE // item_bytes(stored)):
            memory.prefetch(self.c, memory.address(self.c, later, self._index(n), stored), 0)

    def _left(self, row: Val, step: Val) -> tuple[Val, Dim]:
        """Where a tile's rows are read from, and how far a step moves."""
        of, r = self.of, self.r
        r.axes[of.rows.name], r.axes[of.sum.name] = row, step
        place = memory.base(r, of.left.buffer, of.left.index, "")
        place = self.c.new(f"freeze ptr {place.text}", "ptr", 1)
        return place, of.left.index.stride(of.sum.name)

    def _is_met(self, i: Load | Store) -> bool:
        """Whether results meet other memory in each row, and vectors of it lie together."""
        if i in (self.of.left, self.of.right) or i.index.values:
            return False
        return i.index.stride(self.of.columns.name) == 1 and i.index.stride(self.of.rows.name) != 0

    # ---- the rest of the kernel ------------------------------------------------------------

    def _fetch(self, rows: Span, columns: Span) -> None:
        """Ask for the memory that a tile's results meet, so that it is near when they are there.

        A tile has so few columns that no processor foresees where its next row lies.
        """
        of, r, c = self.of, self.r, self.c

        def row(i: Val) -> None:
            r.axes[of.rows.name], r.axes[of.columns.name] = i, columns[0]
            for access in self.met:
                dtype, write = r.dtypes[access.buffer], int(isinstance(access, Store))
                place = memory.base(r, access.buffer, access.index, "")
                for n in range(0, self.width, CACHE_LINE // item_bytes(dtype)):
                    memory.prefetch(c, memory.address(c, place, self._index(n), dtype), write)

        if self.met:
            c.each(*rows, 1, row)

    def _finish_here(self, rows: Span, columns: Span, i: int, j: int, value: Val) -> None:
        """The same for one sum while it is in a register."""
        r, c, of, lanes = self.r, self.c, self.of, self.lanes
        r.axes[of.rows.name] = c.op("add", rows[0], self._index(i))
        r.axes[of.columns.name] = c.op("add", columns[0], self._index(j * lanes))

        def vector() -> None:
            r.values[of.total.name] = value
            r.loops()

        left = int(of.columns.extent) - j * lanes  # type: ignore[arg-type]
        if left < lanes:
            count = c.splat(self._index(left), lanes)
            r.mask = c.compare("icmp slt", memory.lane_numbers(lanes), count)
        r.scoped(vector)
        r.mask = None

    def _finish(self, rows: Span, base: Val, columns: Span) -> None:
        finish(self.r, self.of, (self.totals, self.width), rows, base, columns)


def added(c: Code, left: Val, right: Val, old: Val, *, pairs: bool) -> Val:
    """Sums with the products of two more vectors, or with those of both halves of their lanes."""
    if not pairs:
        return c.intrinsic("fma", left, right, old)
    return c.call(_PAIRS, old.dtype, old.lanes, old, left, right)


def finish(
    r: Renderer, of: KernelProduct, totals: tuple[Val, int], rows: Span, base: Val, columns: Span
) -> None:
    """What a kernel does with each sum.

    ``totals``: where they lie from row ``base`` on, and how far a row is from the next.
    """
    c, dtype, (place, width) = r.c, of.total.dtype, totals
    assert r.schedule.steps is not None
    steps = r.schedule.steps

    def row(i: Val) -> None:
        r.axes[of.rows.name] = i
        first = c.op("mul", c.op("sub", i, base), c.const(width, "int64"))
        start = memory.address(c, place, c.op("sub", first, columns[0]), dtype)

        def vector(_: int) -> None:
            at = memory.address(c, start, r.axes[of.columns.name], dtype)
            r.values[of.total.name] = memory.load_dense(c, dtype, at, None, r.lanes)
            r.loops()

        r.along_vector(*columns, steps, vector)

    c.each(*rows, 1, row)
