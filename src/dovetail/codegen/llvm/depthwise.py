"""Convolutions of each channel by itself: tiles of neighbouring pixels by vectors of channels.

Neighbours have most of their places in the image in common. A tile looks each of them up once, for
all channels; where there is no such place it finds zeros.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from dovetail.codegen.llvm import guard, memory
from dovetail.codegen.llvm.columns import array, stored_type
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
        self.walked, inner = found.taps[: tile.walked], found.taps[tile.walked :]
        self.rounds = math.prod(map(size_of, self.walked))
        ranges = [range(1)] * len(self.walked) + [range(size_of(a)) for a in inner]
        self.taps: list[Tap] = list(itertools.product(*ranges))
        tallest = itertools.product(range(tile.heights[0]), self.taps)
        self.held = len({self._same(n, tap) for n, tap in tallest})  # places of a round
        kept = self.rounds * self.held if self.walked else 0
        self.kept = array(r.c, "places", kept, "ptr") if kept else None
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
        keys: dict[object, tuple[int, Tap]] = {}
        for n, tap in itertools.product(range(height), self.taps):
            keys.setdefault(self._same(n, tap), (n, tap))
        places: dict[object, Val] = {}

        def look(number: Val) -> None:
            self._walk(number)
            for place, (key, (n, tap)) in enumerate(keys.items()):
                places[key] = self._look(at[n], tap)
                if self.kept is not None:
                    self._keep(self._slot(number, place), places[key])

        self._rounds(look)
        end = r.size(of.channels.extent)
        r.along_vector(self._index(0), end, steps, lambda _: self._vector(at, places))

    # ---- loops over taps -------------------------------------------------------------------

    def _rounds(self, body: Callable[[Val], None]) -> None:
        """Run for each step of the taps that are walked; once where none are."""
        if self.kept is None:
            body(self._index(0))
        else:
            self.c.each(self._index(0), self._index(self.rounds), 1, body)

    def _walk(self, number: Val) -> None:
        self.r.decode(number, list(self.walked))

    def _at_tap(self, tap: Tap) -> None:
        """Set the axes of taps that are written out."""
        first = self.tile.walked
        for axis, n in zip(self.of.taps[first:], tap[first:], strict=True):
            self.r.axes[axis.name] = self._index(n)

    def _slot(self, number: Val, place: int) -> Val:
        """Where a place of a round is kept."""
        c = self.c
        assert self.kept is not None
        first = c.op("mul", number, self._index(self.held))
        return memory.address(c, self.kept, c.op("add", first, self._index(place)), "ptr")

    def _keep(self, slot: Val, place: Val) -> None:
        self.c.line(f"store ptr {place.text}, ptr {slot.text}, align 8")

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
        self._at_tap(tap)

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
        r, c, of, lanes = self.r, self.c, self.of, self.lanes
        order = list(places)
        channel, zero = r.axes[of.channels.name], c.const(0.0, self.dtype, self.lanes)
        slots = [c.slot(self.dtype, self.lanes) for _ in pixels]
        for slot in slots:
            c.put(slot, zero)

        def add(number: Val) -> None:
            self._walk(number)
            loaded: dict[object, Val] = {}
            for tap in self.taps:
                self._at_tap(tap)
                weight = self._load(
                    of.weight.buffer, memory.base(r, of.weight.buffer, of.weight.index, "")
                )
                for n, slot in enumerate(slots):
                    key = self._same(n, tap)
                    if key not in loaded:
                        place = self._place(number, order.index(key), places[key])
                        there = memory.address(c, place, channel, stored_type(r, of.image))
                        loaded[key] = self._load(of.image.buffer, there)
                    sum_ = c.intrinsic("fma", loaded[key], weight, c.get(slot, self.dtype, lanes))
                    c.put(slot, sum_)

        self._rounds(add)
        sums = [c.get(slot, self.dtype, lanes) for slot in slots]
        for pixel, value in zip(pixels, sums, strict=True):

            def rest(pixel: Val = pixel, value: Val = value) -> None:
                r.axes[of.pixels.name] = pixel
                r.values[of.total.name] = value
                r.loops()

            r.scoped(rest)

    def _place(self, number: Val, place: int, found: Val) -> Val:
        """A place that was looked up, as it was found or as it is kept."""
        if self.kept is None:
            return found
        slot = self._slot(number, place)
        return self.c.new(f"load ptr, ptr {slot.text}, align 8", "ptr", 1)

    def _load(self, buffer: str, place: Val) -> Val:
        r, c = self.r, self.c
        dtype = r.dtypes[buffer]
        stored = memory.STORED.get(dtype, dtype)
        return memory.widen(c, memory.load_dense(c, stored, place, r.mask, r.lanes), dtype)
