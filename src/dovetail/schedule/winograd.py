"""Winograd's algorithm: a convolution by 3x3 as kernels with fewer multiplications.

Tiles of ``m`` by ``m`` results need m + 2 squared products for each pair of channels, not 9 m². The
kernel that a plan has for such a convolution, with all that it does with each sum, becomes two: one
transforms the image's tiles, one sums their products with transformed weights, transforms the sums
back and does the rest for each of the m² results. Where the tiles reach beyond the image, results
go through a padded buffer, from which a third kernel takes them.

For ``m`` = 4 points are ±1/√2 and ±√2, with a third of the error that ±1 and ±2 have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from dovetail.ir.affine import mul
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
    Reduce,
    Store,
    reindexed,
    renamed,
)
from dovetail.ir.kernel_convolution import KernelConvolution, kernel_convolution, size_of
from dovetail.lower.values import Source, Value
from dovetail.lower.winograd import WinogradContraction
from dovetail.schedule.build import Built

NEAR, FAR = math.sqrt(0.5), math.sqrt(2.0)  # the points of m = 4, beside 0 and infinity
Grid = list[list[str]]


def points(size: int) -> tuple[float, ...]:
    """Where polynomials are evaluated, but for infinity."""
    return (0.0, 1.0, -1.0) if size == 2 else (0.0, NEAR, -NEAR, FAR, -FAR)


@dataclass
class _Body:
    """Instructions under construction; equal ones are there once."""

    code: list[Instruction] = field(default_factory=list)
    known: dict[object, str] = field(default_factory=dict)

    def add(self, key: object, make: Callable[[str], Instruction]) -> str:
        if key not in self.known:
            self.known[key] = f"w{len(self.known)}"
            self.code.append(make(self.known[key]))
        return self.known[key]

    def const(self, value: float | int, dtype: str) -> str:
        return self.add(("const", dtype, value), lambda n: Const(n, dtype, value))

    def apply(self, op: str, dtype: str, *args: str) -> str:
        return self.add((op, args), lambda n: Apply(n, dtype, op, args))

    def plus(self, left: str, right: str) -> str:
        return self.apply("add", "float32", left, right)

    def minus(self, left: str, right: str) -> str:
        return self.apply("sub", "float32", left, right)

    def times(self, factor: float, value: str) -> str:
        if factor == 1.0:
            return value
        return self.apply("mul", "float32", value, self.const(factor, "float32"))

    def inside(self, axis: str, step: int, shift: int, extent: int) -> str:
        """Whether step * axis + shift is a place of the image."""
        index = Index(shift, ((axis, step),))
        place = self.add(index, lambda n: Position(n, index))
        low, high = self.const(0, "int64"), self.const(extent, "int64")
        above, below = self.apply("ge", "bool", place, low), self.apply("lt", "bool", place, high)
        return self.apply("and", "bool", above, below)

    def load(self, buffer: str, index: Index, mask: str | None = None) -> str:
        key = buffer, index, mask
        return self.add(key, lambda n: Load(n, "float32", buffer, index, mask))


def _forward(b: _Body, x: Sequence[str]) -> list[str]:
    """A row of an image's tile at the points."""
    if len(x) == 4:
        return [b.minus(x[2], x[0]), b.plus(x[1], x[2]), b.minus(x[2], x[1]), b.minus(x[1], x[3])]
    middle = NEAR**2 + FAR**2
    first = b.plus(b.minus(x[0], b.times(middle, x[2])), x[4])
    last = b.plus(b.minus(x[1], b.times(middle, x[3])), x[5])
    found = [first]
    for point, other in ((NEAR, FAR), (FAR, NEAR)):
        even = b.minus(x[4], b.times(other**2, x[2]))
        odd = b.times(point, b.minus(x[3], b.times(other**2, x[1])))
        found += [b.plus(even, odd), b.minus(even, odd)]
    return [*found, last]


def _back(b: _Body, m: Sequence[str]) -> list[str]:
    """Results of a row of products."""
    if len(m) == 4:
        return [b.plus(b.plus(m[0], m[1]), m[2]), b.minus(b.minus(m[1], m[2]), m[3])]
    sums = b.plus(m[1], m[2]), b.plus(m[3], m[4])
    gaps = b.minus(m[1], m[2]), b.minus(m[3], m[4])

    def mixed(pair: tuple[str, str], power: int) -> str:
        return b.plus(b.times(NEAR**power, pair[0]), b.times(FAR**power, pair[1]))

    return [
        b.plus(m[0], b.plus(*sums)),
        mixed(gaps, 1),
        mixed(sums, 2),
        b.plus(mixed(gaps, 3), m[5]),
    ]


def _both_ways(b: _Body, grid: Grid, change: Callable[[_Body, Sequence[str]], list[str]]) -> Grid:
    """Columns, then rows."""
    columns = [change(b, [row[j] for row in grid]) for j in range(len(grid))]
    return [change(b, [column[i] for column in columns]) for i in range(len(columns[0]))]


@dataclass(frozen=True, slots=True)
class _Tiling:
    """What a convolution's kernel says of its image."""

    of: KernelConvolution
    value: WinogradContraction
    down: Axis  # of pixels
    across: Axis
    batch: tuple[Axis, ...]

    @property
    def side(self) -> int:
        return self.value.size + 2

    @property
    def tiles(self) -> tuple[Axis, Axis]:
        """Tiles down and across."""
        size = self.value.size
        return tuple(  # type: ignore[return-value]
            Axis(a.name, -(-size_of(a) // size)) for a in (self.down, self.across)
        )

    @property
    def is_whole(self) -> bool:
        """Whether tiles end where the image does."""
        return all(size_of(a) % self.value.size == 0 for a in (self.down, self.across))

    @property
    def rows(self) -> tuple[Axis, ...]:
        """All that counts tiles."""
        return (*self.batch, *self.tiles)


def winograd(built: Built, members: Sequence[Value]) -> tuple[Built, ...]:
    """The kernels that stand for one; itself where it is none that can be done so."""
    values = [v for v in members if isinstance(v, WinogradContraction)]
    found = kernel_convolution(built.kernel)
    if len(values) != 1 or found is None or found.image.dtype != "float32":
        return (built,)
    place = _place(found, values[0])
    if place is None or not isinstance(values[0].transformed, Source):
        return (built,)
    image = Value(
        f"{values[0].name}.tiles",
        "float32",
        (place.side**2, *(a.extent for a in place.rows), found.channels.extent),
    )
    first = _transform(built, place, image)
    if place.is_whole:
        return first, _products(built, place, image)
    sizes = [place.value.size * size_of(a) for a in place.tiles]
    shape = (*(a.extent for a in place.batch), *sizes, found.columns.extent)
    sums = Value(f"{values[0].name}.sums", "float32", shape)
    return first, _products(built, place, image, sums), _rest(built, place, sums)


def _place(of: KernelConvolution, value: WinogradContraction) -> _Tiling | None:
    """Where pixels and taps move alike: tiles are made of those."""
    if [a.extent for a in of.taps] != [3, 3] or of.more:
        return None
    strides = {t.name: of.image.index.stride(t.name) for t in of.taps}
    pairs = [
        next((p for p in of.pixels if of.image.index.stride(p.name) == strides[t.name]), None)
        for t in of.taps
    ]
    down, across = pairs
    if down is None or across is None or down == across:
        return None
    rows = [size_of(a) for a in (down, across)]
    if rows != [int(n) for n in value.shape[-2:]]:  # type: ignore[arg-type]
        return None
    batch = tuple(a for a in of.pixels if a not in (down, across))
    return _Tiling(of, value, down, across, batch)


def _dense(axes: Sequence[Axis], buffer_offset: int = 0) -> Index:
    """Row-major order of axes."""
    strides, step = [], 1
    for axis in reversed(axes):
        strides.append((axis.name, step))
        step *= size_of(axis)
    return Index(buffer_offset, tuple(reversed(strides)))


def _transform(built: Built, p: _Tiling, made: Value) -> Built:
    """The image's tiles at the points."""
    b, of, size = _Body(), p.of, p.value.size
    index, down, across = of.image.index, p.down.name, p.across.name
    steps = {down: size, across: size}
    axes = [
        (name, stride * steps.get(name, 1))  # type: ignore[operator]
        for name, stride in index.axes
        if name not in {t.name for t in of.taps}
    ]
    strides = index.stride(down), index.stride(across)
    grid: Grid = []
    for i in range(p.side):
        grid.append([])
        for j in range(p.side):
            masks = [
                b.inside(axis, size, n - pad, extent)
                for axis, n, pad, extent in zip(
                    (down, across), (i, j), p.value.pads, p.value.extents, strict=True
                )
            ]
            offset = index.offset + i * strides[0] + j * strides[1]  # type: ignore[operator]
            mask = b.apply("and", "bool", *masks)
            grid[-1].append(b.load(of.image.buffer, Index(offset, tuple(axes)), mask))
    tile = (*p.rows, of.channels)
    count = math.prod(size_of(a) for a in tile)
    out = "tiles"
    results = [name for row in _both_ways(b, grid, _forward) for name in row]
    stores = [Store(out, _dense(tile, n * count), name) for n, name in enumerate(results)]
    code = (*b.code, *stores)
    source = next(x for x in built.kernel.buffers if x.name == of.image.buffer)
    buffers = (source, KernelBuffer(out, "float32", "out"))
    kernel = Kernel(f"{built.kernel.name}_tiles", buffers, tile, (Loop((), code),))
    return Built(kernel, {of.image.buffer: built.buffers[of.image.buffer], out: made})


def _products(built: Built, p: _Tiling, image: Value, sums: Value | None = None) -> Built:
    """Sums of products, transformed back, and what the kernel does with each; or sums alone."""
    of, weights = p.of, p.value.transformed
    tile = (*p.rows, of.channels)
    count = math.prod(size_of(a) for a in tile)
    panel, columns = _panels(p)
    terms: list[Instruction] = []
    reduces: list[Instruction] = []
    down, _, across, one = weights.strides
    along = (panel.name, down), (of.channels.name, across), (columns.name, one)
    for n in range(p.side**2):
        at = n * int(weights.strides[1])  # type: ignore[arg-type]
        terms.append(Load(f"x{n}", "float32", "tiles", _dense(tile, n * count)))
        terms.append(Load(f"u{n}", "float32", "weights", Index(at, along)))
        terms.append(Apply(f"p{n}", "float32", "mul", (f"x{n}", f"u{n}")))
        reduces.append(Reduce(f"s{n}", "float32", "sum", (f"p{n}",)))
    b = _Body()
    grid = [[f"s{i * p.side + j}" for j in range(p.side)] for i in range(p.side)]
    back = _both_ways(b, grid, _back)
    loops = [Loop((of.channels,), (*terms, *reduces)), Loop((), ())]
    buffers = {"tiles": image, "weights": weights}
    listed = [KernelBuffer("tiles", "float32"), KernelBuffer("weights", "float32")]
    if sums is not None:
        listed.append(KernelBuffer("sums", "float32", "out"))
        buffers["sums"] = sums
        rest: list[Instruction] = _stores(p, back)
    else:
        gone = {of.image.buffer, of.weight.buffer}
        kept = [x for x in built.kernel.buffers if x.name not in gone or _is_used(built, x.name)]
        listed += kept
        buffers |= {x.name: built.buffers[x.name] for x in kept}
        rest = _repeated(built.kernel, p, back)
    loops[1] = Loop((), (*b.code, *(_in_panels(code, panel, columns) for code in rest)))
    order = (*p.batch, *p.tiles, panel, columns)
    axes = (*order, *(a for a in built.kernel.axes if a.name not in {o.name for o in order}))
    name = f"{built.kernel.name}_products"
    return Built(Kernel(name, tuple(listed), axes, tuple(loops)), buffers)


def _panels(p: _Tiling) -> tuple[Axis, Axis]:
    """What counts panels of columns, and the columns of one."""
    count, _, _, width = p.value.transformed.shape
    return Axis(f"{p.of.columns.name}_panel", count), Axis(p.of.columns.name, width)


def _in_panels(code: Instruction, panel: Axis, columns: Axis) -> Instruction:
    """What moves with the columns, moving with panels too."""
    if not isinstance(code, Load | Store | Position):
        return code
    stride = code.index.stride(columns.name)
    if stride == 0:
        return code
    axes = (*code.index.axes, (panel.name, mul(stride, size_of(columns))))
    return replace(code, index=replace(code.index, axes=axes))


def _is_used(built: Built, buffer: str) -> bool:
    """Whether the rest of a kernel reads what the sum does."""
    rest = (i for loop in built.kernel.loops if not loop.axes for i in loop.body)
    return any(isinstance(i, Load | Store) and i.buffer == buffer for i in rest)


def _stores(p: _Tiling, back: Grid) -> list[Instruction]:
    """Each result to its place in a padded image."""
    size = p.value.size
    wide = [Axis(a.name, size * size_of(a)) for a in p.tiles]
    index = _dense((*p.batch, *wide, p.of.columns))
    return [
        Store("sums", _moved(index, p, i, j), back[i][j]) for i in range(size) for j in range(size)
    ]


def _moved(index: Index, p: _Tiling, i: int, j: int) -> Index:
    """An index of pixels as one of tiles, at one of their results."""
    down, across = index.stride(p.down.name), index.stride(p.across.name)
    size = p.value.size
    factors = {p.down.name: size, p.across.name: size}
    axes = tuple((name, stride * factors.get(name, 1)) for name, stride in index.axes)  # type: ignore[operator]
    return Index(index.offset + i * down + j * across, axes, index.values)  # type: ignore[operator]


def _repeated(kernel: Kernel, p: _Tiling, back: Grid) -> list[Instruction]:
    """The rest of a kernel at each result of a tile."""
    size, found = p.value.size, list[Instruction]()
    rest = [i for loop in kernel.loops if not loop.axes for i in loop.body]
    for i in range(size):
        for j in range(size):
            names = {p.of.total.name: back[i][j]}
            for code in rest:
                moved = reindexed(code, partial(_moved, p=p, i=i, j=j))
                name = f"{code.name}_{i}_{j}" if code.name else ""
                found.append(renamed(moved, name, names))
                if code.name:
                    names[code.name] = found[-1].name
    return found


def _rest(built: Built, p: _Tiling, sums: Value) -> Built:
    """What the kernel does with each sum, which it reads from a padded image."""
    kernel, size = built.kernel, p.value.size
    wide = [Axis(a.name, size * size_of(a)) for a in p.tiles]
    index = _dense((*p.batch, *wide, p.of.columns))
    load = Load(p.of.total.name, "float32", "sums", index)
    rest = tuple(i for loop in kernel.loops if not loop.axes for i in loop.body)
    gone = {p.of.image.buffer, p.of.weight.buffer}
    kept = [x for x in kernel.buffers if x.name not in gone or _is_used(built, x.name)]
    buffers = (KernelBuffer("sums", "float32"), *kept)
    made = Kernel(f"{kernel.name}_rest", buffers, kernel.axes, (Loop((), (load, *rest)),))
    return Built(made, {"sums": sums, **{x.name: built.buffers[x.name] for x in kept}})
