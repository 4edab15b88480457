"""Convolutions in tiles of accumulators: elements of pixels are broadcast, weights are vectors.

Pixels of all rows are one axis, so that a tile may end in one row and go on in the next. For each
tap a tile looks up where its pixels find their elements; where there are none they find zeros. As
in products (``product.py``) sums go through a buffer on the stack, from which the rest of the
kernel reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from dovetail.codegen.llvm import guard, memory
from dovetail.codegen.llvm.columns import array, moved, stored_type
from dovetail.codegen.llvm.emit import TYPES, Val, vector_type
from dovetail.codegen.llvm.tile import Span, span
from dovetail.ir.dtypes import item_bytes
from dovetail.ir.kernel import Axis, Load
from dovetail.ir.kernel_convolution import kernel_convolution, pixel_step, size_of
from dovetail.schedule.tiles import ConvolutionTile

if TYPE_CHECKING:
    from dovetail.codegen.llvm.render import Renderer

TERM = "term"  # the axis of several sums
Point = tuple[Val, ...]  # where a pixel is along each of its axes
Sums = list[list[str]]  # slots of accumulators: a list a pixel


class PixelTiles:
    """Writes the units of one kernel."""

    def __init__(self, r: Renderer, tile: ConvolutionTile) -> None:
        found = kernel_convolution(r.kernel)
        assert found is not None
        self.r, self.c, self.tile, self.of = r, r.c, tile, found
        self.image, self.weight = (
            _with_terms(load, gap)
            for load, gap in zip((found.image, found.weight), found.apart, strict=True)
        )
        self.dtype, self.lanes = found.total.dtype, r.lanes
        self.width = tile.vectors * r.lanes
        self.extents = [size_of(axis) for axis in found.pixels]
        self.held = tile.held(len(found.totals)) * self.width  # totals of one sum
        self.totals = array(r.c, "totals", len(found.totals) * self.held, self.dtype)
        self.nothing = self._zeros() if guard.is_open(found.image) else None
        self.step = pixel_step(found)

    def _zeros(self) -> Val:
        """What is read where there is no image."""
        kind = TYPES[stored_type(self.r, self.of.image)]
        count = size_of(self.of.channels)
        name = f"zeros{count}_{kind}"
        self.c.globals[name] = f"@{name} = internal constant [{count} x {kind}] zeroinitializer"
        return Val(f"@{name}", "ptr")

    def _index(self, number: int) -> Val:
        return self.c.const(number, "int64")

    # ---- units -----------------------------------------------------------------------------

    def unit(self, number: Val) -> None:
        """Some columns of a block of pixels."""
        r, tile, of = self.r, self.tile, self.of
        every, outer = Axis("pixels", tile.count(r.kernel)), tile.outer(r.kernel, of.columns.name)
        if tile.by_pixels:
            number, columns = span(r, number, of.columns, self.width)
            for axis in reversed(outer):
                number, (r.axes[axis.name], _) = span(r, number, axis, 1)
            _, pixels = span(r, number, every, tile.block)
        else:
            number, pixels = span(r, number, every, tile.block)
            number, columns = span(r, number, of.columns, self.width)
            r.decode(number, outer)
        if len(of.totals) == 1:
            self._tiles(pixels, lambda here: self._tile(here, columns))
        else:
            self._sums(pixels, columns)

    def _tile(self, pixels: Span, columns: Span) -> None:
        """A tile of the only sum."""
        self._heights(pixels, columns, self.totals)
        self._finish(pixels, columns)

    def _sums(self, pixels: Span, columns: Span) -> None:
        """One sum after the other, each for all pixels: its weights stay in the nearest cache."""
        c = self.c

        def term(n: Val) -> None:
            self.r.axes[TERM] = n

            def tile(here: Span) -> None:
                first = c.op("mul", c.op("sub", here[0], pixels[0]), self._index(self.width))
                place = c.op("add", c.op("mul", n, self._index(self.held)), first)
                self._heights(here, columns, memory.address(c, self.totals, place, self.dtype))

            self._tiles(pixels, tile)

        c.each(self._index(0), self._index(len(self.of.totals)), 1, term)
        self._finish(pixels, columns)

    def _tiles(self, pixels: Span, each: Callable[[Span], None]) -> None:
        """Cut pixels into tiles of almost one height."""
        c, most = self.c, self.tile.heights[0]
        length = c.op("sub", pixels[1], pixels[0])
        count = c.op("udiv", c.op("add", length, self._index(most - 1)), self._index(most))

        def tile(n: Val) -> None:
            following = c.op("add", n, self._index(1))
            low, high = (c.op("udiv", c.op("mul", i, length), count) for i in (n, following))
            each((c.op("add", pixels[0], low), c.op("add", pixels[0], high)))

        c.each(self._index(0), count, 1, tile)

    def _heights(self, pixels: Span, columns: Span, totals: Val) -> None:
        """The sums of a tile, by code for its height."""
        c, heights = self.c, self.tile.heights
        labels = [c.label(f"pixels{h}_") for h in heights]
        done = c.label("summed")
        height = c.op("sub", pixels[1], pixels[0])
        cases = " ".join(
            f"i64 {h}, label %{x}" for h, x in zip(heights[1:], labels[1:], strict=True)
        )
        c.line(f"switch i64 {height.text}, label %{labels[0]} [ {cases} ]")
        for h, label in zip(heights, labels, strict=True):
            c.start(label)
            shared, c.shared = c.shared, dict(c.shared)
            self._sum(self._points(pixels[0], h), columns, totals)
            c.shared = shared
            c.line(f"br label %{done}")
        c.start(done)

    def _points(self, first: Val, count: int) -> list[Point]:
        """Where pixels are: the first by division, each other next to the one before."""
        found = [self._point(first)]
        while len(found) < count:
            found.append(self._next(found[-1]))
        return found

    def _point(self, pixel: Val) -> Point:
        c, parts = self.c, list[Val]()
        for extent in reversed(self.extents[1:]):
            parts.append(c.op("urem", pixel, self._index(extent)))
            pixel = c.op("udiv", pixel, self._index(extent))
        return (pixel, *reversed(parts))

    def _next(self, point: Point) -> Point:
        c, found, carry = self.c, list[Val](), self._index(1)
        for place, extent in zip(reversed(point[1:]), reversed(self.extents[1:]), strict=True):
            more = c.op("add", place, carry)
            wraps = c.compare("icmp eq", more, self._index(extent))
            found.append(c.select(wraps, self._index(0), more))
            carry = c.convert("zext", wraps, "int64")
        return (c.op("add", point[0], carry), *reversed(found))

    # ---- sums ------------------------------------------------------------------------------

    def _sum(self, points: Sequence[Point], columns: Span, totals: Val) -> None:
        """All taps and channels of a tile."""
        c, tile = self.c, self.tile
        once = not tile.apart and not tile.chunk
        sums = [[c.slot(self.dtype, self.lanes) for _ in range(tile.vectors)] for _ in points]
        if not once:
            self._each_sum(sums, totals, lambda _, place: self._keep(place, self._zero()))

        def collect(slot: str, place: Val) -> None:
            value = c.get(slot, self.dtype, self.lanes)
            self._keep(place, value if once else c.op("fadd", self._total(place), value))

        def level(number: int) -> None:
            if number == tile.apart and not tile.chunk:
                self._each_sum(sums, totals, lambda slot, _: c.put(slot, self._zero()))
                walk(number)
                self._each_sum(sums, totals, collect)
            else:
                walk(number)

        def walk(number: int) -> None:
            if number == len(self.of.taps):
                self._channels(
                    points, columns, sums, partial(self._each_sum, sums, totals, collect)
                )
                return
            axis = self.of.taps[number]

            def tap(i: Val) -> None:
                self.r.axes[axis.name] = i
                level(number + 1)

            c.each(self._index(0), self._index(size_of(axis)), 1, tap)

        level(0)

    def _channels(
        self,
        points: Sequence[Point],
        columns: Span,
        sums: Sums,
        collect: Callable[[], None],
    ) -> None:
        """The products of one tap."""
        c, count, chunk = self.c, size_of(self.of.channels), self.tile.chunk
        places = self._places(points)
        if not chunk:
            self._run(places, columns, sums, self._index(0), self._index(count))
            return

        def part(start: Val) -> None:
            stop = c.intrinsic("smin", c.op("add", start, self._index(chunk)), self._index(count))
            for slot in (s for row in sums for s in row):
                c.put(slot, self._zero())
            self._run(places, columns, sums, start, stop)
            collect()

        c.each(self._index(0), self._index(count), chunk, part)

    def _places(self, points: Sequence[Point]) -> list[Val]:
        """Where all pixels' channels are at the present tap."""
        if self.step is None:
            return [self._image(point) for point in points]
        first, stored = self._image(points[0]), stored_type(self.r, self.of.image)
        return [moved(self.r, first, self.step, n, stored) for n in range(len(points))]

    def _image(self, point: Point) -> Val:
        """Where a pixel's channels are at the present tap, or zeros."""
        r, c, image = self.r, self.c, self.image
        found: list[Val] = []
        for axis, place in zip(self.of.pixels, point, strict=True):
            r.axes[axis.name] = place
        r.axes[self.of.channels.name] = self._index(0)

        def look() -> None:
            r.run(self.of.places)
            mask = None if image.mask is None else r.values[image.mask]
            if r.guarded and self.nothing is not None:
                found.append(guard.run_of(r, image, mask, size_of(self.of.channels), self.nothing))
                return
            place = memory.base(r, image.buffer, replace(image.index, values=()), "")
            gathered = memory.gathered(r, image.index)
            if gathered is not None:
                place = memory.address(c, place, gathered, stored_type(r, image))
            if mask is not None and self.nothing is not None:
                place = c.select(mask, place, self.nothing)
            found.append(c.freeze(place))

        r.scoped(look)
        return found[0]

    def _run(self, places: list[Val], columns: Span, sums: Sums, start: Val, stop: Val) -> None:
        """Products of some channels, added to sums in registers."""
        c, r, weight = self.c, self.r, self.weight
        r.axes[self.of.columns.name], r.axes[self.of.channels.name] = columns[0], start
        base = c.freeze(memory.base(r, weight.buffer, weight.index, ""))
        along, masks = c.slot("ptr", 1), self._masks(columns)
        step = weight.index.stride(self.of.channels.name)
        c.put(along, base)

        def steps(i: Val, count: int) -> None:
            here = c.get(along, "ptr", 1)
            for n in range(count):
                at = moved(r, here, step, n, stored_type(r, weight))
                self._step(places, at, i, n, sums, masks)
            c.put(along, moved(r, here, step, count, stored_type(r, weight)))

        count, rest = self._parts()
        left = c.op("urem", c.op("sub", stop, start), self._index(count))
        whole = c.op("sub", stop, left) if rest else stop
        c.each(start, whole, count, lambda i: steps(i, count))
        if rest:
            c.each(whole, stop, 1, lambda i: steps(i, 1))

    def _parts(self) -> tuple[int, bool]:
        """Steps that are written out, and whether some may be left."""
        count, tile = size_of(self.of.channels), self.tile
        lengths = {count} if not tile.chunk else {tile.chunk, count % tile.chunk}
        return tile.unroll, any(length % tile.unroll for length in lengths)

    def _step(
        self,
        places: list[Val],
        weights: Val,
        channel: Val,
        number: int,
        sums: Sums,
        masks: list[Val | None],
    ) -> None:
        """One channel of a tap, for all accumulators."""
        c, r, lanes = self.c, self.r, self.lanes
        dtype, stored = r.dtypes[self.of.weight.buffer], stored_type(r, self.of.weight)
        vectors = []
        for j, mask in enumerate(masks):
            place = memory.address(c, weights, self._index(j * lanes), stored)
            vectors.append(memory.widen(c, memory.load_dense(c, stored, place, mask, lanes), dtype))
        dtype, stored = r.dtypes[self.of.image.buffer], stored_type(r, self.of.image)
        for place, row in zip(places, sums, strict=True):
            place = memory.address(c, place, channel, stored)
            place = memory.address(c, place, self._index(number), stored)
            raw = memory.widen(c, memory.load_scalar(c, stored, place, None), dtype)
            value = c.splat(raw, lanes)
            for slot, vector in zip(row, vectors, strict=True):
                c.put(slot, c.intrinsic("fma", value, vector, c.get(slot, self.dtype, lanes)))

    def _masks(self, columns: Span) -> list[Val | None]:
        """The lanes of each vector that are columns; None where all are."""
        c, lanes = self.c, self.lanes
        if size_of(self.of.columns) % self.width == 0:
            return [None] * self.tile.vectors
        count = c.op("sub", columns[1], columns[0])
        found: list[Val | None] = []
        for j in range(self.tile.vectors):
            left = c.splat(c.op("sub", count, self._index(j * lanes)), lanes)
            found.append(c.compare("icmp slt", memory.lane_numbers(lanes), left))
        return found

    # ---- totals ----------------------------------------------------------------------------

    def _each_sum(self, sums: Sums, totals: Val, body: Callable[[str, Val], None]) -> None:
        """Each accumulator, and where its total lies."""
        for i, row in enumerate(sums):
            for j, slot in enumerate(row):
                place = self._index(i * self.width + j * self.lanes)
                body(slot, memory.address(self.c, totals, place, self.dtype))

    def _zero(self) -> Val:
        return self.c.const(0.0, self.dtype, self.lanes)

    def _total(self, place: Val) -> Val:
        kind, size = vector_type(self.dtype, self.lanes), item_bytes(self.dtype) * self.lanes
        text = f"load {kind}, ptr {place.text}, align {size}"
        return self.c.new(text, self.dtype, self.lanes)

    def _keep(self, place: Val, value: Val) -> None:
        size = item_bytes(self.dtype) * self.lanes
        self.c.line(f"store {value.type} {value.text}, ptr {place.text}, align {size}")

    # ---- the rest of the kernel ------------------------------------------------------------

    def _finish(self, pixels: Span, columns: Span) -> None:
        """What the kernel does with each sum."""
        of, r, c = self.of, self.r, self.c
        steps = r.schedule.steps
        assert steps is not None

        def pixel(i: Val) -> None:
            for axis, place in zip(of.pixels, self._point(i), strict=True):
                r.axes[axis.name] = place
            first = c.op("mul", c.op("sub", i, pixels[0]), self._index(self.width))
            start = memory.address(c, self.totals, c.op("sub", first, columns[0]), self.dtype)

            def vector(_: int) -> None:
                place = memory.address(c, start, r.axes[of.columns.name], self.dtype)
                for n, total in enumerate(of.totals):
                    here = memory.address(c, place, self._index(n * self.held), self.dtype)
                    r.values[total.name] = memory.load_dense(c, self.dtype, here, None, r.lanes)
                r.loops()

            r.along_vector(*columns, steps, vector)

        c.each(*pixels, 1, pixel)


def _with_terms(load: Load, gap: int) -> Load:
    """A load that moves with the number of a sum."""
    return (
        replace(load, index=replace(load.index, axes=(*load.index.axes, (TERM, gap))))
        if gap
        else load
    )
