"""Images sampled where a grid says (spatial transformers, warps by optical flow)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dovetail.ir.affine import Affine
from dovetail.ir.call import OpCall
from dovetail.ir.dtypes import FLOATS
from dovetail.lower.expression import Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.indexing import checked
from dovetail.lower.masks import all_of
from dovetail.lower.rules import Lower, Refused, rule, static, tensor
from dovetail.lower.values import Pointwise, Value

_BILINEAR, _NEAREST, _BICUBIC = range(3)  # PyTorch's numbers of the interpolations
_ZEROS, _BORDER, _REFLECTION = range(3)  # and of what lies outside an image
_MOST = 2**23  # of a size: floats from here on have no halves
# One thread, AVX-512: PyTorch takes half the time, as it computes a place once for all channels.
_LIBRARY = "samples, whose places a library computes once for all channels"
_CUBIC = -0.75  # the parameter of the cubic convolution, as PyTorch's


@rule("grid_sampler_2d.default")
def lower_grid_sampler(lower: Lower, call: OpCall) -> Pointwise:
    """Each element from the pixels around a place that is computed from the grid."""
    image, grid = map(lower.value, call.args[:2])
    mode, outside, corners = call.args[2:5]
    dtype = tensor(call.output).dtype
    if dtype not in FLOATS or {image.dtype, grid.dtype} != {dtype}:
        raise Refused(f"samples of {dtype}")
    sizes = [static(size, "the size of an image") for size in image.shape[2:]]
    if not all(0 < size < _MOST for size in sizes):
        raise Refused("an image of no pixels, or of too many")
    sample = _SAMPLES[mode]

    def body(b: Builder, index: Indices) -> str:
        n, channel, row, column = index
        lines = []
        for size, which in zip(sizes, (1, 0), strict=True):  # a grid has x first
            place = b.read(grid, (n, row, column, Affine(which)))
            lines.append(_Line(b, dtype, size, outside, bool(corners), place))
        return sample(_Pixels(b, image, (n, channel), dtype), *lines)

    return lower.pointwise(call, body, (image, grid), _COSTS[mode], library=_LIBRARY)


@dataclass(frozen=True)
class _Line:
    """One dimension of an image, and the place along it that the grid names."""

    b: Builder
    dtype: str
    size: int
    outside: int
    corners: bool
    named: str

    def const(self, value: float) -> str:
        return self.b.const(value, self.dtype)

    def apply(self, op: str, *args: str) -> str:
        return self.b.apply(op, self.dtype, *args)

    def place(self) -> str:
        """Where the grid points to, in pixels: -1 and 1 are the first and the last, or edges."""
        shifted = self.apply("add", self.named, self.const(1.0))
        if self.corners:
            return self.apply("mul", shifted, self.const((self.size - 1) / 2))
        scaled = self.apply("mul", shifted, self.const(self.size / 2))
        return self.apply("sub", scaled, self.const(0.5))

    def brought_in(self, place: str) -> str:
        """A place inside the image, as the way in which its outside is filled has it."""
        if self.outside == _ZEROS:
            return place
        return self._clipped(self._reflected(place) if self.outside == _REFLECTION else place)

    def _clipped(self, place: str) -> str:
        """Between the first and the last pixel; a NaN is the first, as in PyTorch."""
        zero, last = self.const(0.0), self.const(float(self.size - 1))
        above = self.b.apply("gt", "bool", place, zero)
        low = self.apply("where", above, place, zero)
        return self.apply("where", self.b.apply("lt", "bool", low, last), low, last)

    def _reflected(self, place: str) -> str:
        """Back and forth between the centres of the outermost pixels, or between their edges."""
        low, span = (0.0, self.size - 1) if self.corners else (-0.5, self.size)
        if span == 0:
            return self.const(0.0)
        far = self.apply("abs", self.apply("sub", place, self.const(low)))
        flips = self.apply("floor", self.apply("div", far, self.const(float(span))))
        rest = self.apply("sub", far, self.apply("mul", flips, self.const(float(span))))
        half = self.apply("mul", flips, self.const(0.5))
        even = self.b.apply("eq", "bool", self.apply("floor", half), half)
        there = self.apply("add", rest, self.const(low))
        back = self.apply("sub", self.const(span + low), rest)
        return self.apply("where", even, there, back)

    def inside(self, place: str) -> str:
        """Whether there is a pixel at a place; NaN is nowhere."""
        low = self.b.apply("ge", "bool", place, self.const(0.0))
        high = self.b.apply("lt", "bool", place, self.const(float(self.size)))
        return self.b.apply("and", "bool", low, high)


@dataclass(frozen=True)
class _Pixels:
    """The pixels of one channel of one image."""

    b: Builder
    image: Value
    of: Indices
    dtype: str

    def at(self, rows: _Line, row: str, columns: _Line, column: str) -> str:
        """A pixel at whole numbers of rows and columns; zero where there is none."""
        mask = all_of(self.b, [rows.inside(row), columns.inside(column)])
        assert mask is not None

        zero = self.b.const(0.0, self.dtype)
        named = (
            (line.size, self.b.apply("where", self.dtype, mask, place, zero))
            for line, place in ((rows, row), (columns, column))
        )  # no NaN becomes an integer

        def read() -> str:
            places = [checked(self.b, name, size, "check_bounds") for size, name in named]
            return self.b.read(self.image, (*self.of, *places))

        return self.b.apply("where", self.dtype, mask, self.b.masked(mask, read), zero)


def _nearest(pixels: _Pixels, rows: _Line, columns: _Line) -> str:
    row, column = (line.apply("round", line.brought_in(line.place())) for line in (rows, columns))
    return pixels.at(rows, row, columns, column)


def _bilinear(pixels: _Pixels, rows: _Line, columns: _Line) -> str:
    (row, down), (column, right) = (
        _pair(line, line.brought_in(line.place())) for line in (rows, columns)
    )
    products = [
        rows.apply("mul", pixels.at(rows, y, columns, x), rows.apply("mul", v, h))
        for y, v in zip(row, down, strict=True)
        for x, h in zip(column, right, strict=True)
    ]
    return pixels.b.joined("add", pixels.dtype, products)


def _pair(line: _Line, place: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """The pixels before and after a place, and how much each counts."""
    before = line.apply("floor", place)
    part = line.apply("sub", place, before)
    after = line.apply("add", before, line.const(1.0))
    return (before, after), (line.apply("sub", line.const(1.0), part), part)


def _bicubic(pixels: _Pixels, rows: _Line, columns: _Line) -> str:
    (row, down), (column, right) = (_four(line) for line in (rows, columns))

    def across(y: str) -> str:
        taps = (
            rows.apply("mul", pixels.at(rows, y, columns, x), h)
            for x, h in zip(column, right, strict=True)
        )
        return pixels.b.joined("add", pixels.dtype, taps)

    taps = (rows.apply("mul", across(y), v) for y, v in zip(row, down, strict=True))
    return pixels.b.joined("add", pixels.dtype, taps)


def _four(line: _Line) -> tuple[list[str], list[str]]:
    """The four pixels around a place, and the cubic convolution's weight of each."""
    place = line.place()
    before = line.apply("floor", place)
    part = line.apply("sub", place, before)
    rest = line.apply("sub", line.const(1.0), part)
    one = line.const(1.0)
    weights = [
        _outer(line, line.apply("add", part, one)),
        _inner(line, part),
        _inner(line, rest),
        _outer(line, line.apply("add", rest, one)),
    ]
    places = [line.apply("add", before, line.const(float(n))) for n in (-1, 0, 1, 2)]
    return [line.brought_in(each) for each in places], weights


def _inner(line: _Line, far: str) -> str:
    """The weight of a pixel at most one away: (a+2)x³ - (a+3)x² + 1."""
    first = line.apply("mul", line.const(_CUBIC + 2), far)
    second = line.apply("sub", first, line.const(_CUBIC + 3))
    third = line.apply("mul", line.apply("mul", second, far), far)
    return line.apply("add", third, line.const(1.0))


def _outer(line: _Line, far: str) -> str:
    """The weight of a pixel between one and two away: ax³ - 5ax² + 8ax - 4a."""
    total = line.const(_CUBIC)
    for factor in (-5 * _CUBIC, 8 * _CUBIC, -4 * _CUBIC):
        total = line.apply("add", line.apply("mul", total, far), line.const(factor))
    return total


_Sample = Callable[[_Pixels, _Line, _Line], str]
_SAMPLES: tuple[_Sample, ...] = (_bilinear, _nearest, _bicubic)
_COSTS = (60.0, 25.0, 250.0)  # operations for each element
