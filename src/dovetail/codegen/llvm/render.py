"""A kernel as an LLVM function over a range of its units of work.

Every value is a scalar or a vector along one axis, the vector axis. A unit of work is one point
of the remaining parallel axes, times (where the vector axis is parallel) one block of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.codegen.llvm import (
    guard,
    math,
    memory,
    ranges,
    scalar,
    tile,
)
from dovetail.codegen.llvm.analysis import (
    Groups,
    erf_plus_one,
    interleaved,
    read_after_written,
    summed_products,
    varying,
    without_idle_axes,
)
from dovetail.codegen.llvm.emit import Code, Val
from dovetail.codegen.llvm.math import error_function, integers
from dovetail.codegen.llvm.reduce import Accumulators, met_in_order
from dovetail.codegen.llvm.scan import Scans, at_a_time
from dovetail.codegen.llvm.tile import tile_of
from dovetail.codegen.llvm.volume import GROWN, Volume, call, divides, strides
from dovetail.ir.affine import mul, product
from dovetail.ir.dtypes import FLOATS, item_bytes
from dovetail.ir.kernel import (
    Apply,
    Axis,
    Const,
    Instruction,
    Kernel,
    Load,
    Loop,
    Position,
    Reduce,
    Scan,
    Store,
)
from dovetail.ir.ops import CHECKS, DIVISIONS
from dovetail.ir.size import Dim, Size

BLOCK = 4096  # elements in one unit of work, where the vector axis is parallel
NARROWEST = 64  # but at least these along it
WIDE = 4  # vectors next to each other that are folded together
CHUNK = 16  # steps that are summed before their sum is added to the total
EXACT = 256  # elements of a row whose sum float64 completes; shorter rows take a sixth longer so
LONG = 32  # steps of a loop from which on what follows it counts for less and less
SHORT = 12  # instructions beside a scan for which there are registers, however wide they are
UNROLL = 4  # independent accumulators along the vector axis

SizeOf = Callable[[Dim], Val]


@dataclass(frozen=True)
class Layout:
    """Where a kernel finds its pointers and sizes in the table it is given."""

    pointers: Mapping[str, int]
    sizes: Mapping[Dim, int]
    flag: int
    reaches: Mapping[str, int] = field(default_factory=dict)  # how many elements buffers have


def vector_axis(kernel: Kernel) -> Axis | None:
    """The axis to vectorise: where most accesses are next to each other in memory.

    An axis of a loop stands for the last axis of every loop.
    """
    inner = [loop.axes[-1] for loop in kernel.loops if loop.axes]
    candidates = [*sorted(inner, key=_length)[-1:], *kernel.axes[-1:]]
    if not candidates:
        return None
    return max(candidates, key=lambda axis: _score(kernel, axis))


def _length(axis: Axis) -> float:
    return axis.extent if isinstance(axis.extent, int) else float("inf")


def _score(kernel: Kernel, axis: Axis) -> float:
    if isinstance(axis.extent, int) and axis.extent == 1:
        return -1e9
    score = 0.0
    longest = max((_length(loop.axes[-1]) for loop in kernel.loops if loop.axes), default=0)
    for loop in kernel.loops:
        often = 1.0 if loop.axes else min(1.0, LONG / max(longest, 1))  # against a long loop's body
        name = loop.axes[-1].name if loop.axes and axis not in kernel.axes else axis.name
        for instruction in loop.body:
            if isinstance(instruction, Load | Store):
                stride = instruction.index.stride(name)
                weight = often * (2.0 if isinstance(instruction, Store) else 1.0)
                score += weight if stride in (1, -1) else (0 if stride == 0 else -2 * weight)
    if isinstance(axis.extent, int) and axis.extent < 16:
        score -= 4 * (16 - axis.extent) / 16
    return score


def units(kernel: Kernel) -> Dim:
    """How many units of work a kernel has; none where it does nothing."""
    if not kernel.loops:
        return 0
    axis = vector_axis(kernel)
    tiles = tile_of(kernel, axis, block_of(kernel))
    if tiles is not None:
        return tiles.units(kernel)
    outer = product(a.extent for a in kernel.axes if a is not axis)
    if axis is None or axis not in kernel.axes:
        return outer
    block = block_of(kernel)
    more = Size.binary("add", axis.extent, block - 1)
    return mul(outer, Size.binary("floordiv", more, block))


def block_of(kernel: Kernel) -> int:
    """Elements of a parallel vector axis in one unit of work: fewer where each is a long fold."""
    loops = [product(a.extent for a in loop.axes) for loop in kernel.loops]
    points = max((n if isinstance(n, int) else 256 for n in loops), default=1)
    return max(NARROWEST, BLOCK >> max(points - 1, 0).bit_length())


def _is_light(kernel: Kernel) -> bool:
    """Whether several vectors' worth of a kernel's values fit the registers."""
    body = list(kernel.instructions())
    scans = len(body) <= SHORT and any(isinstance(i, Scan) for i in body)
    for i in body:
        if i.dtype in ("float64", "int64") and not isinstance(i, Const) and not scans:
            return False
        if isinstance(i, Apply) and (
            i.op in math.FUNCTIONS or i.op in (*math.BINARY, "div", *CHECKS)
        ):
            return False
    return True


class Renderer:
    """Writes one kernel."""

    def __init__(
        self, kernel: Kernel, name: str, layout: Layout, lanes: int, *, guarded: bool = False
    ) -> None:
        """``guarded``: nobody vouches for the kernel (see guard.py)."""
        kernel = without_idle_axes(kernel)
        self.kernel, self.name, self.layout, self.guarded = kernel, name, layout, guarded
        self.c = Code(lanes)
        self.axis = vector_axis(kernel)
        self.is_row = self.axis is not None and self.axis not in kernel.axes
        self.lanes = self._lanes(lanes) if self.axis is not None else 1
        self.block = block_of(kernel)
        self.axes: dict[str, Val] = {}
        self.values: dict[str, Val] = {}
        self.pointers: dict[str, Val] = {}
        self.sizes: dict[Dim, Val] = {}
        self.tile = tile_of(kernel, self.axis, self.block)
        self.turned: dict[Load, Val] = {}  # buffers that a tile's loads were brought to
        self.tile_row = Val("0", "int64")  # where the present row starts in each of them
        self.interleaved = interleaved(kernel, self.axis)
        self.groups: Groups = {}  # of the loop that is being written
        self.waiting: set[Instruction] = set()  # stores of a group that is not complete yet
        self.mask: Val | None = None  # the lanes in use, None for all
        self.dtypes = {b.name: b.dtype for b in kernel.buffers}
        self.types = {i.name: i.dtype for i in kernel.instructions()}
        self.varies = varying(kernel, self.axis)
        self.ordered = read_after_written(kernel)
        self.grown, self.unused = erf_plus_one(kernel)
        self.small = ranges.small_divisions(kernel)
        self.volume = Volume(kernel, self.axis, self.lanes, lanes, UNROLL, self.varies, self.grown)
        self.form = self.volume.form()
        self.widened = {
            i.name
            for i in kernel.instructions()
            if isinstance(i, Apply) and i.op == "cast" and i.dtype == "float64"
            if self.types[i.args[0]] == "float32"
        }

    def render(self) -> str:
        """The function's text."""
        c = self.c
        self._load_table()
        if self.tile is not None:
            self.turned = tile.buffers(self, self.tile)
        self.c.each(Val("%begin", "int64"), Val("%end", "int64"), 1, self._unit)
        c.line("ret void")
        head = f"define internal void @{self.name}(ptr %table, i64 %begin, i64 %end) #0 {{"
        return "\n".join([head, "entry:", *c.slots, *c.lines, "}"])

    def _lanes(self, lanes: int) -> int:
        """Lanes of a value that varies; a scan of a short axis has no more than it needs."""
        extent = self.axis.extent if self.axis is not None else 1
        scans = any(isinstance(i, Scan) for i in self.kernel.instructions())
        if scans and isinstance(extent, int) and extent < lanes:
            return max(2, 1 << (extent - 1).bit_length())
        return lanes * self._width(lanes)

    def _width(self, lanes: int) -> int:
        """How many vectors stand next to each other: one alone would wait for its own sums."""
        folds = any(isinstance(i, Reduce | Scan) for i in self.kernel.instructions())
        if self.axis is None or self.is_row or not folds or not _is_light(self.kernel):
            return 1
        extent = self.axis.extent
        return WIDE if not isinstance(extent, int) or extent >= WIDE * lanes else 1

    # ---- the table -------------------------------------------------------------------------

    def _load_table(self) -> None:
        c = self.c
        for buffer in self.kernel.buffers:
            self.pointers[buffer.name] = self._entry(self.layout.pointers[buffer.name], "ptr")
        for dim in dict.fromkeys(self.kernel.dims()):
            if not isinstance(dim, int):
                self.sizes[dim] = self._entry(self.layout.sizes[dim], "int64")
        self.reaches = {
            name: self._entry(place, "int64") for name, place in self.layout.reaches.items()
        }
        tells = guard.may_fail(self.kernel, self.guarded)
        self.flag = self._entry(self.layout.flag, "ptr") if tells else c.const(0, "int64")

    def _entry(self, position: int, dtype: str) -> Val:
        c = self.c
        place = c.new(f"getelementptr i64, ptr %table, i64 {position}", "ptr", 1)
        kind = "ptr" if dtype == "ptr" else "i64"
        return c.new(f"load {kind}, ptr {place.text}", dtype, 1)

    def size(self, dim: Dim) -> Val:
        """A size as an i64."""
        return self.c.const(dim, "int64") if isinstance(dim, int) else self.sizes[dim]

    # ---- units of work ---------------------------------------------------------------------

    def _unit(self, number: Val) -> None:
        if self.tile is not None:
            tile.unit(self, self.tile, number)
            return
        c = self.c
        outer = [a for a in self.kernel.axes if a is not self.axis]
        block = c.const(0, "int64")
        if self.axis is not None and not self.is_row:
            number, block = self._split_block(number)
        self.decode(number, outer)
        if self.axis is None or self.is_row:
            self.loops()
            return
        low = c.op("mul", block, c.const(self.block, "int64"))
        high = c.op("add", low, c.const(self.block, "int64"))
        extent = self.size(self.axis.extent)
        high = c.select(c.compare("icmp slt", extent, high), extent, high)
        self.row(low, high)

    def _divides(self) -> bool:
        return divides(self.axis.extent if self.axis is not None else 0, self.lanes)

    def row(self, low: Val, high: Val) -> None:
        """Part of the vector axis; in straight-line code what is alike all along comes first."""
        straight = not any(loop.axes for loop in self.kernel.loops)
        code = [i for i in self.kernel.instructions() if straight]
        alike = [i for i in code if not self.varies[i.name] and not self._is_in_order(i)]

        def whole() -> None:
            self._run(alike)
            self.along_vector(low, high, self._divides(), lambda _: self.loops())

        self._scoped(whole)

    def _is_in_order(self, i: Instruction) -> bool:
        """Whether an instruction is, or depends on, memory that the kernel writes."""
        return isinstance(i, Store) or i.name in self.ordered

    def _run(self, code: Sequence[Instruction]) -> None:
        """Write instructions, but for those whose values are there."""
        for instruction in code:
            if instruction.name not in self.values:
                self._emit(instruction, None)

    def _split_block(self, number: Val) -> tuple[Val, Val]:
        assert self.axis is not None
        extent = self.axis.extent
        if isinstance(extent, int) and extent <= self.block:
            return number, self.c.const(0, "int64")
        c = self.c
        more = c.op("add", self.size(extent), c.const(self.block - 1, "int64"))
        blocks = c.op("udiv", more, c.const(self.block, "int64"))
        return c.op("udiv", number, blocks), c.op("urem", number, blocks)

    def decode(self, number: Val, outer: list[Axis]) -> None:
        """A unit's number as a position on each outer axis."""
        for axis in reversed(outer[1:]):
            extent = self.size(axis.extent)
            self.axes[axis.name] = self.c.op("urem", number, extent)
            number = self.c.op("udiv", number, extent)
        if outer:
            self.axes[outer[0].name] = number

    # ---- loops -----------------------------------------------------------------------------

    def along_vector(
        self, low: Val, high: Val, exact: bool, body: Callable[[int], None], unroll: int = 1
    ) -> None:
        """Run ``body`` along the vector axis: unrolled, whole vectors, then a masked rest.

        It is told which of ``unroll`` copies it is.
        """
        assert self.axis is not None
        c, width, name = self.c, self.lanes, self.axis.name

        def copies(count: int) -> Callable[[Val], None]:
            def run(i: Val) -> None:
                for copy in range(count):
                    shift = c.const(copy * width, "int64")
                    self.axes[name] = c.op("add", i, shift) if copy else i
                    self._scoped(functools.partial(body, copy))

            return run

        counts = strides(self.axis.extent, width, unroll)
        if self.form.once and counts and not exact:
            self.c.each(low, high, width, lambda i: self._masked(i, high, body))
            return
        for count in counts:
            span = c.op("sub", high, low)
            step = c.const(width * count, "int64")
            whole = c.op("mul", c.op("sdiv", span, step), step)
            stop = c.op("add", low, whole)
            self.c.each(low, stop, width * count, copies(count))
            low = stop
        if not exact:
            some, end = c.label("rest"), c.label("done")
            more = c.compare("icmp slt", low, high)
            c.line(f"br i1 {more.text}, label %{some}, label %{end}")
            c.start(some)
            self._masked(low, high, body)
            c.block(end)

    def _masked(self, low: Val, high: Val, body: Callable[[int], None]) -> None:
        """One vector, of which the lanes below ``high`` are in use."""
        assert self.axis is not None
        c = self.c
        self.axes[self.axis.name] = low
        count = c.op("sub", high, low)
        if self._has_one_small_lane():
            count = c.opaque(count)
        left = c.splat(count, self.lanes)
        self.mask = c.compare("icmp slt", memory.lane_numbers(self.lanes), left)
        self._scoped(lambda: body(0))
        self.mask = None

    def _has_one_small_lane(self) -> bool:
        """Whether LLVM could know a mask to be of the first lane alone.

        It makes a store of such a lane one of four bytes, for elements of fewer.
        """
        assert self.axis is not None
        one = isinstance(self.axis.extent, int) and self.axis.extent % self.lanes == 1
        return one and any(item_bytes(b.dtype) < 4 for b in self.kernel.buffers)

    def _scoped(self, body: Callable[[], None]) -> None:
        """Run ``body``; what it defines is not seen afterwards."""
        values, shared = self.values, self.c.shared
        self.values, self.c.shared = dict(values), dict(shared)
        body()
        self.values, self.c.shared = values, shared

    def loops(self) -> None:
        """The kernel's loops, at the point that ``axes`` says."""
        for number, loop in enumerate(self.kernel.loops):
            self.groups = self.interleaved[number] if self.lanes > 1 else {}
            if loop.axes:
                self._nest(loop)
            else:
                self._run(loop.body)

    def _nest(self, loop: Loop) -> None:
        """A loop over its axes; what depends on outer axes only is computed outside."""
        if self.is_row:
            self.axis = loop.axes[-1]
        reduces = [i for i in loop.body if isinstance(i, Reduce)]
        vector_loop = self.is_row
        copies = 1
        if vector_loop and reduces and not self.form.once:
            copies = max(strides(loop.axes[-1].extent, self.lanes, UNROLL), default=1)
        in_order = met_in_order(loop)
        folded = [(r, self._folded_in(r, loop, in_order), self._fold_lanes(r)) for r in reduces]
        exact = vector_loop and _length(loop.axes[-1]) >= EXACT
        sums = Accumulators(
            self.c, folded, copies, in_lanes=vector_loop, in_order=in_order, exact=exact
        )
        scanned = [i for i in loop.body if isinstance(i, Scan)]
        self.scans = Scans(self.c, {s: self._carried(s) for s in scanned})
        depth = self._depths(loop)
        kept = dict(self.values)
        self._where_it_runs(loop, depth, lambda: self._level(loop, 0, depth, sums))
        self.values = kept
        self.values |= sums.results(self._has_points(loop))

    def _where_it_runs(self, loop: Loop, depth: dict[str, int], nest: Callable[[], None]) -> None:
        """Run a nest; where a loop may have no points, what it reads beforehand waits for a test.

        Nobody promises that there is memory at the places of a loop that does not run.
        """
        c = self.c
        early = any(
            isinstance(i, Load | Apply) and depth[i.name] < len(loop.axes) for i in loop.body
        )
        runs = self._has_points(loop) if early else None
        if runs is None:
            nest()
            return
        some, end = c.label("some"), c.label("none")
        c.line(f"br i1 {runs.text}, label %{some}, label %{end}")
        c.start(some)
        self._scoped(nest)
        c.block(end)

    def _has_points(self, loop: Loop) -> Val | None:
        """Whether a loop has points; None where it surely has."""
        c = self.c
        unknown = [a for a in loop.axes if not isinstance(a.extent, int) or a.extent < 1]
        counts = [self.size(axis.extent) for axis in unknown]
        tests = [c.compare("icmp sgt", count, c.const(0, "int64")) for count in counts]
        return functools.reduce(lambda a, b: c.op("and", a, b), tests) if tests else None

    def _carried(self, s: Scan) -> int:
        """Lanes of what a scan carries on."""
        if not self.is_row:
            return self.lanes if self.varies[s.name] else 1
        most = self.lanes
        if s.op == "prod" and s.dtype in FLOATS:
            # Parts of a product may leave the range that the whole stays in; four factors that
            # were float32 do not leave that of float64.
            most = 4 if s.args[0] in self.widened else 1
        return at_a_time(self.c, s, min(most, self.lanes))

    def _scan(self, s: Scan) -> Val:
        given = self.values[s.args[0]]
        return self.scans.along(s, given, self.lanes) if self.is_row else self.scans.step(s, given)

    def _folded_in(self, r: Reduce, loop: Loop, in_order: frozenset[str]) -> tuple[str, ...]:
        """The types a reduction is folded in: argmax compares values and keeps positions."""
        if not r.op.startswith("arg"):
            return (r.dtype,)
        extent = loop.axes[-1].extent
        few = r.name in in_order and isinstance(extent, int) and extent < 2**31
        return self.types[r.args[0]], "int32" if few else "int64"

    def _fold_lanes(self, r: Reduce) -> int:
        return self.lanes if self.is_row or self.varies[r.name] else 1

    def _depths(self, loop: Loop) -> dict[str, int]:
        """How many of the loop's axes an instruction needs to know: 0 for none."""
        place = {axis.name: n + 1 for n, axis in enumerate(loop.axes)}
        depth: dict[str, int] = {}
        for i in loop.body:
            needs = [depth.get(name, 0) for name in i.uses]
            if isinstance(i, Load | Position):
                needs += [place.get(name, 0) for name, _ in i.index.axes]
            if isinstance(i, Reduce | Scan | Store):
                needs.append(len(loop.axes))
            depth[i.name] = max(needs, default=0)
        return depth

    def _level(self, loop: Loop, level: int, depth: dict[str, int], sums: Accumulators) -> None:
        for instruction in loop.body:
            if not isinstance(instruction, Reduce | Store) and depth[instruction.name] == level:
                if level < len(loop.axes):
                    self._emit(instruction, None)
        axis = loop.axes[level]
        if level + 1 < len(loop.axes):
            low, high = self.c.const(0, "int64"), self.size(axis.extent)

            def inside(i: Val) -> None:
                self.axes[axis.name] = i
                self._scoped(lambda: self._level(loop, level + 1, depth, sums))

            self.c.each(low, high, 1, inside)
            return
        self._innermost(loop, axis, depth, sums)

    def _innermost(self, loop: Loop, axis: Axis, depth: dict[str, int], sums: Accumulators) -> None:
        last = len(loop.axes)
        body = [i for i in loop.body if isinstance(i, Reduce | Store) or depth[i.name] == last]
        bases = self._bases(body, axis.name)
        products = summed_products(loop)

        def run(copy: int) -> None:
            for instruction in body:
                if instruction.name in products:
                    continue
                if isinstance(instruction, Reduce):
                    factors = products.get(instruction.args[0], instruction.args)
                    args = tuple(self.values[a] for a in factors)
                    sums.fold(instruction, args, copy, self.mask if self.is_row else None)
                else:
                    self._emit(instruction, (axis.name, bases))

        low, high = self.c.const(0, "int64"), self.size(axis.extent)
        if self.is_row:
            self._along_row(axis, sums, run, high)
            return

        def step(i: Val) -> None:
            self.axes[axis.name] = i
            self._scoped(lambda: run(0))

        def walk(start: Val, stop: Val) -> None:
            sums.begin()
            self.c.each(start, stop, 1, step)
            sums.end()

        self._in_chunks(axis, sums, CHUNK, low, high, walk)

    def _in_chunks(
        self,
        axis: Axis,
        sums: Accumulators,
        size: int,
        low: Val,
        high: Val,
        walk: Callable[[Val, Val], None],
    ) -> None:
        """Walk an axis; where there is much to sum, in chunks, so that errors grow slowly."""
        if not sums.needed or (isinstance(axis.extent, int) and axis.extent <= size):
            walk(low, high)
            return
        c = self.c

        def chunk(start: Val) -> None:
            stop = c.op("add", start, c.const(size, "int64"))
            walk(start, c.select(c.compare("icmp slt", high, stop), high, stop))

        self.c.each(low, high, size, chunk)

    def _along_row(
        self, axis: Axis, sums: Accumulators, run: Callable[[int], None], high: Val
    ) -> None:
        """The innermost loop is along the vector axis; long sums go in chunks."""
        low, exact = self.c.const(0, "int64"), self._divides()

        def walk(start: Val, stop: Val) -> None:
            sums.begin()
            self.along_vector(start, stop, exact, run, sums.copies)
            sums.end()

        self._in_chunks(axis, sums, CHUNK * self.lanes * sums.copies, low, high, walk)

    def _bases(self, body: list[Instruction], innermost: str) -> dict[Instruction, Val]:
        """Where each access of the innermost loop starts, computed before it."""
        return {
            i: memory.base(self, i.buffer, i.index, innermost)
            for i in body
            if isinstance(i, Load | Store)
        }

    # ---- instructions ----------------------------------------------------------------------

    def _emit(
        self, instruction: Instruction, inner: tuple[str, dict[Instruction, Val]] | None
    ) -> None:
        c = self.c
        if instruction.name in self.unused:
            return
        if isinstance(instruction, Load):
            self.values[instruction.name] = memory.load(self, instruction, inner)
        elif isinstance(instruction, Store):
            memory.store(self, instruction, inner)
        elif isinstance(instruction, Const):
            self.values[instruction.name] = c.const(instruction.value, instruction.dtype)
        elif isinstance(instruction, Position):
            self.values[instruction.name] = memory.position(self, instruction.index)
        elif isinstance(instruction, Apply):
            self.values[instruction.name] = self._apply(instruction)
        elif isinstance(instruction, Scan):
            self.values[instruction.name] = self._scan(instruction)
        else:
            raise AssertionError(f"{type(instruction).__name__} outside a loop")

    def _apply(self, instruction: Apply) -> Val:
        of_erf = self.grown.get(instruction.name)
        op, dtype = instruction.op if of_erf is None else GROWN, instruction.dtype
        args = tuple(self.values[a] for a in (instruction.args if of_erf is None else (of_erf,)))
        if (op, dtype) in self.form.called and self.volume.function(instruction) is not None:
            return call(self.c, op, dtype, args)
        if of_erf is not None:
            return error_function.erf_plus_one(self.c, *args)
        if op in CHECKS:
            return memory.check(self, op, *args)
        if self.guarded and op in DIVISIONS and instruction.name not in self.small:
            guard.divisor(self, args[1])
        if instruction.name in self.small:
            return integers.small_division(self.c, op, *args)
        return scalar.apply(self.c, op, dtype, args)
