"""Convolutions of each channel by itself: tiles of neighbouring pixels by vectors of channels.

Neighbours have most of their places in the image in common. A tile looks each of them up once, for
all channels; where there is no such place it finds zeros.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from dovetail.codegen.llvm import guard, memory
from dovetail.codegen.llvm.columns import stored_type
from dovetail.codegen.llvm.emit import TYPES, Val
from dovetail.codegen.llvm.tile import Span
from dovetail.ir.kernel import Index, Position
from dovetail.ir.kernel_convolution import size_of
from dovetail.ir.kernel_depthwise import kernel_depthwise
from dovetail.schedule.tiles import DepthwiseTile

if TYPE_CHECKING:
    from dovetail.codegen.llvm.render import Renderer

Tap = tuple[int, ...]


class ChannelTiles:
    """Writes the units of one kernel."""

    def __init__(self, r: Renderer, tile: DepthwiseTile) -> None:
        found = kernel_depthwise(r.kernel)
        assert found is not None
        self.r, self.c, self.tile, self.of = r, r.c, tile, found
        self.dtype, self.lanes = found.total.dtype, r.lanes
        self.taps = list(itertools.product(*(range(size_of(a)) for a in found.taps)))
        self.nothing = self._zeros() if guard.is_open(found.image) else None

    def _zeros(self) -> Val:
        kind, count = TYPES[stored_type(self.r, self.of.image)], size_of(self.of.channels)
        name = f"zeros{count}_{kind}"
        self.c.globals[name] = f"@{name} = internal constant [{count} x {kind}] zeroinitializer"
        return Val(f"@{name}", "ptr")

    def _index(self, number: int) -> Val:
        return self.c.const(number, "int64")

    def unit(self, number: Val) -> None:
        """A row of pixels, with all channels."""
        r, c, of = self.r, self.c, self.of
        gone = (of.pixels.name, of.channels.name)
        r.decode(number, [a for a in r.kernel.axes if a.name not in gone])
        length, most = size_of(of.pixels), self.tile.heights[0]
        count = -(-length // most)

        def tile(n: Val) -> None:
            following = c.op("add", n, self._index(1))
            total = self._index(length)
            low, high = (
                c.op("udiv", c.op("mul", i, total), self._index(count)) for i in (n, following)
            )
            self._heights((low, high))

        c.each(self._index(0), self._index(count), 1, tile)

    def _heights(self, pixels: Span) -> None:
        """A tile, by code for its height."""
        c, heights = self.c, self.tile.heights
        labels, done = [c.label(f"pixels{h}_") for h in heights], c.label("summed")
        height = c.op("sub", pixels[1], pixels[0])
        cases = " ".join(
            f"i64 {h}, label %{x}" for h, x in zip(heights[1:], labels[1:], strict=True)
        )
        c.line(f"switch i64 {height.text}, label %{labels[0]} [ {cases} ]")
        for h, label in zip(heights, labels, strict=True):
            c.start(label)
            shared, c.shared = c.shared, dict(c.shared)
            self._channels(pixels[0], h)
            c.shared = shared
            c.line(f"br label %{done}")
        c.start(done)

    def _channels(self, first: Val, height: int) -> None:
        """All channels of a tile's pixels."""
        r, of = self.r, self.of
        steps = r.schedule.steps
        assert steps is not None
        at = [r.c.op("add", first, self._index(n)) for n in range(height)]
        r.axes[of.channels.name] = self._index(0)
        places: dict[object, Val] = {}
        for n, tap in itertools.product(range(height), self.taps):
            key = self._same(n, tap)
            if key not in places:
                places[key] = self._look(at[n], tap)
        end = r.size(of.channels.extent)
        r.along_vector(self._index(0), end, steps, lambda _: self._vector(at, places))

    def _same(self, pixel: int, tap: Tap) -> object:
        """What tells places of a tile apart."""
        moved = [self.of.image.index]
        moved += [i.index for i in self.of.places if isinstance(i, Position)]
        return tuple(self._distance(index, pixel, tap) for index in moved)

    def _distance(self, index: Index, pixel: int, tap: Tap) -> int:
        steps = zip((self.of.pixels, *self.of.taps), (pixel, *tap), strict=True)
        return sum(n * index.stride(axis.name) for axis, n in steps)  # type: ignore[operator,misc]

    def _look(self, pixel: Val, tap: Tap) -> Val:
        """Where a pixel's channels begin under a tap, or zeros."""
        r, c, image = self.r, self.c, self.of.image
        found: list[Val] = []
        r.axes[self.of.pixels.name] = pixel
        for axis, n in zip(self.of.taps, tap, strict=True):
            r.axes[axis.name] = self._index(n)

        def look() -> None:
            r.run(self.of.places)
            mask = None if image.mask is None else r.values[image.mask]
            if r.guarded and self.nothing is not None:
                count = size_of(self.of.channels)
                found.append(guard.run_of(r, image, mask, count, self.nothing))
                return
            place = memory.base(r, image.buffer, replace(image.index, values=()), "")
            if mask is not None and self.nothing is not None:
                place = c.select(mask, place, self.nothing)
            found.append(c.freeze(place))

        r.scoped(look)
        return found[0]

    def _vector(self, pixels: list[Val], places: dict[object, Val]) -> None:
        """One vector of channels, then the rest of the kernel for each pixel."""
        r, c, of = self.r, self.c, self.of
        channel, zero = r.axes[of.channels.name], c.const(0.0, self.dtype, self.lanes)
        sums: list[Val] = [zero] * len(pixels)
        loaded: dict[object, Val] = {}
        for tap in self.taps:
            for axis, n in zip(of.taps, tap, strict=True):
                r.axes[axis.name] = self._index(n)
            weight = self._load(
                of.weight.buffer, memory.base(r, of.weight.buffer, of.weight.index, "")
            )
            for n in range(len(pixels)):
                key = self._same(n, tap)
                if key not in loaded:
                    stored = stored_type(r, of.image)
                    place = memory.address(c, places[key], channel, stored)
                    loaded[key] = self._load(of.image.buffer, place)
                sums[n] = c.intrinsic("fma", loaded[key], weight, sums[n])
        for pixel, value in zip(pixels, sums, strict=True):

            def rest(pixel: Val = pixel, value: Val = value) -> None:
                r.axes[of.pixels.name] = pixel
                r.values[of.total.name] = value
                r.loops()

            r.scoped(rest)

    def _load(self, buffer: str, place: Val) -> Val:
        r, c = self.r, self.c
        dtype = r.dtypes[buffer]
        stored = memory.STORED.get(dtype, dtype)
        return memory.widen(c, memory.load_dense(c, stored, place, r.mask, r.lanes), dtype)
