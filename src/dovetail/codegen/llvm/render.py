"""A kernel as an LLVM function over a range of its units of work.

Every value is a scalar or a vector along one axis, the vector axis. A unit of work is one point
of the remaining parallel axes, times (where the vector axis is parallel) one block of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.codegen.llvm import (
    convolution,
    depthwise,
    dots,
    guard,
    memory,
    outline,
    product,
    ranges,
    scalar,
    tile,
)
from dovetail.codegen.llvm.emit import Code, Val
from dovetail.codegen.llvm.math import small_division
from dovetail.codegen.llvm.reduce import Accumulators, met_in_order
from dovetail.codegen.llvm.scan import Scans
from dovetail.ir.dtypes import item_bytes
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
from dovetail.ir.kernel_analysis import read_after_written, varying, without_idle_axes
from dovetail.ir.ops import CHECKS, DIVISIONS
from dovetail.ir.size import Dim
from dovetail.ir.target import Target
from dovetail.schedule.schedule import LOOPS, LoopSchedule, Schedule, Steps
from dovetail.schedule.tiles import ConvolutionTile, DepthwiseTile, DotTile, ProductTile

Group = tuple[Load | Store, ...]
# What writes the units of a kernel that is done in tiles of registers.
_TILES: Mapping[type, Callable[..., Any]] = {
    ProductTile: product.Tiles,
    DotTile: dots.DotTiles,
    ConvolutionTile: convolution.PixelTiles,
    DepthwiseTile: depthwise.ChannelTiles,
}


@dataclass(frozen=True)
class TableLayout:
    """Where a kernel finds its pointers and sizes in the table it is given."""

    pointers: Mapping[str, int]
    sizes: Mapping[Dim, int]
    flag: int
    reaches: Mapping[str, int] = field(default_factory=dict)  # how many elements buffers have


class Renderer:
    """Writes one kernel."""

    def __init__(
        self,
        kernel: Kernel,
        schedule: Schedule,
        target: Target,
        name: str,
        layout: TableLayout,
        *,
        guarded: bool = False,
    ) -> None:
        """``guarded``: nobody vouches for the kernel (see guard.py)."""
        kernel = without_idle_axes(kernel)
        self.kernel, self.schedule, self.name = kernel, schedule, name
        self.layout, self.guarded = layout, guarded
        self.c = Code(target.lanes)
        self.axis = next((a for a in kernel.axes if a.name == schedule.vector), None)
        self.is_row = schedule.vector == LOOPS
        self.lanes = schedule.lanes
        self.axes: dict[str, Val] = {}
        self.values: dict[str, Val] = {}
        self.pointers: dict[str, Val] = {}
        self.sizes: dict[Dim, Val] = {}
        self.transposed: dict[Load, Val] = {}  # buffers that a tile's loads were brought to
        self.tile_row = Val("0", "int64")  # where the present row starts in each of them
        self.groups: dict[Instruction, Group] = {}  # of the loop that is being written
        self.waiting: set[Instruction] = set()  # stores of a group that is not complete yet
        self.mask: Val | None = None  # the lanes in use, None for all
        self.dtypes = {b.name: b.dtype for b in kernel.buffers}
        self.types = {i.name: i.dtype for i in kernel.instructions()}
        self.varies = varying(kernel, schedule.vector)
        self.ordered = read_after_written(kernel)
        self.erf_sums, self.unused = _erf_sums(kernel, schedule.erf_plus_one)
        self.small = ranges.small_divisions(kernel)

    def render(self) -> str:
        """The function's text."""
        c = self.c
        self._load_table()
        if self.schedule.tile is not None:
            self.transposed = tile.buffers(self, self.schedule.tile)
        tiles = self.schedule.register_tiles
        unit = self._unit if tiles is None else _TILES[type(tiles)](self, tiles).unit
        self.c.each(Val("%begin", "int64"), Val("%end", "int64"), 1, unit)
        c.line("ret void")
        head = f"define internal void @{self.name}(ptr %table, i64 %begin, i64 %end) #0 {{"
        return "\n".join([head, "entry:", *c.slots, *c.lines, "}"])

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
        c, block_size = self.c, self.schedule.block
        if self.schedule.tile is not None:
            tile.unit(self, self.schedule.tile, number)
            return
        outer = [a for a in self.kernel.axes if a is not self.axis]
        block = c.const(0, "int64")
        if self.axis is not None and not self.is_row:
            number, block = self._split_block(number)
        self.decode(number, outer)
        if self.axis is None or self.is_row:
            self.loops()
            return
        low = c.op("mul", block, c.const(block_size, "int64"))
        high = c.op("add", low, c.const(block_size, "int64"))
        extent = self.size(self.axis.extent)
        high = c.select(c.compare("icmp slt", extent, high), extent, high)
        self.row(low, high)

    def row(self, low: Val, high: Val) -> None:
        """Part of the vector axis; in straight-line code what is alike all along comes first."""
        straight = not any(loop.axes for loop in self.kernel.loops)
        code = [i for i in self.kernel.instructions() if straight]
        alike = [i for i in code if not self.varies[i.name] and not self._is_in_order(i)]

        def whole() -> None:
            assert self.schedule.steps is not None
            self.run(alike)
            self.along_vector(low, high, self.schedule.steps, lambda _: self.loops())

        self.scoped(whole)

    def _is_in_order(self, i: Instruction) -> bool:
        """Whether an instruction is, or depends on, memory that the kernel writes."""
        return isinstance(i, Store) or i.name in self.ordered

    def run(self, code: Sequence[Instruction]) -> None:
        """Write instructions, but for those whose values are there."""
        for instruction in code:
            if instruction.name not in self.values:
                self._emit(instruction, None)

    def _split_block(self, number: Val) -> tuple[Val, Val]:
        assert self.axis is not None
        extent, block = self.axis.extent, self.schedule.block
        if isinstance(extent, int) and extent <= block:
            return number, self.c.const(0, "int64")
        c = self.c
        more = c.op("add", self.size(extent), c.const(block - 1, "int64"))
        blocks = c.op("udiv", more, c.const(block, "int64"))
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

    def along_vector(self, low: Val, high: Val, steps: Steps, body: Callable[[int], None]) -> None:
        """Run ``body`` along the vector axis: unrolled, whole vectors, then a masked rest.

        It is told which vector of a step it is.
        """
        assert self.axis is not None
        c, width, name = self.c, self.lanes, self.axis.name

        def copies(count: int) -> Callable[[Val], None]:
            def run(i: Val) -> None:
                for copy in range(count):
                    shift = c.const(copy * width, "int64")
                    self.axes[name] = c.op("add", i, shift) if copy else i
                    self.scoped(functools.partial(body, copy))

            return run

        if steps.masked == "all":
            self.c.each(low, high, width, lambda i: self._masked(i, high, body))
            return
        for count in steps.counts:
            span = c.op("sub", high, low)
            step = c.const(width * count, "int64")
            whole = c.op("mul", c.op("sdiv", span, step), step)
            stop = c.op("add", low, whole)
            self.c.each(low, stop, width * count, copies(count))
            low = stop
        if steps.masked == "rest":
            c.when(c.compare("icmp slt", low, high), lambda: self._masked(low, high, body))

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
        self.scoped(lambda: body(0))
        self.mask = None

    def _has_one_small_lane(self) -> bool:
        """Whether LLVM could know a mask to be of the first lane alone.

        It makes a store of such a lane one of four bytes, for elements of fewer.
        """
        assert self.axis is not None
        one = isinstance(self.axis.extent, int) and self.axis.extent % self.lanes == 1
        return one and any(item_bytes(b.dtype) < 4 for b in self.kernel.buffers)

    def scoped(self, body: Callable[[], None]) -> None:
        """Run ``body``; what it defines is not seen afterwards."""
        values, shared = self.values, self.c.shared
        self.values, self.c.shared = dict(values), dict(shared)
        body()
        self.values, self.c.shared = values, shared

    def loops(self) -> None:
        """The kernel's loops, at the point that ``axes`` says."""
        is_tiled = self.schedule.register_tiles is not None
        for loop, how in zip(self.kernel.loops, self.schedule.loops, strict=True):
            groups = [_accesses(loop, places) for places in how.interleaved]
            self.groups = {i: group for group in groups for i in group}
            if loop.axes and not is_tiled:
                self._nest(loop, how)
            elif not loop.axes:
                self.run(loop.body)

    def _nest(self, loop: Loop, how: LoopSchedule) -> None:
        """A loop over its axes; what depends on outer axes only is computed outside."""
        if self.is_row:
            self.axis = loop.axes[-1]
        reduces = [i for i in loop.body if isinstance(i, Reduce)]
        copies = how.steps.most if how.steps is not None else 1
        in_order = met_in_order(loop)
        types = {r: self._reduced_in(r, loop, in_order) for r in reduces}
        reduced = [(r, types[r], self._reduction_lanes(r)) for r in reduces]
        sums = Accumulators(
            self.c, reduced, copies, in_lanes=self.is_row, in_order=in_order, exact=how.exact
        )
        scanned, along = [i for i in loop.body if isinstance(i, Scan)], dict(how.scans)
        self.scans = Scans(self.c, {s: along.get(s.name, self._scan_lanes(s)) for s in scanned})
        depth = self._depths(loop)
        kept = dict(self.values)
        self._where_it_runs(loop, depth, lambda: self._level(loop, how, 0, depth, sums))
        self.values = kept
        self.values |= sums.results(self._has_points(loop))

    def _where_it_runs(self, loop: Loop, depth: dict[str, int], nest: Callable[[], None]) -> None:
        """Run a nest; where a loop may have no points, what it reads beforehand waits for a test.

        Nobody promises that there is memory at the places of a loop that does not run.
        """
        early = any(
            isinstance(i, Load | Apply) and depth[i.name] < len(loop.axes) for i in loop.body
        )
        runs = self._has_points(loop) if early else None
        if runs is None:
            nest()
        else:
            self.c.when(runs, lambda: self.scoped(nest))

    def _has_points(self, loop: Loop) -> Val | None:
        """Whether a loop has points; None where it surely has."""
        c = self.c
        unknown = [a for a in loop.axes if not isinstance(a.extent, int) or a.extent < 1]
        counts = [self.size(axis.extent) for axis in unknown]
        tests = [c.compare("icmp sgt", count, c.const(0, "int64")) for count in counts]
        return functools.reduce(lambda a, b: c.op("and", a, b), tests) if tests else None

    def _scan_lanes(self, s: Scan) -> int:
        """Lanes of a scan whose lanes are scans of their own."""
        return self.lanes if self.varies[s.name] else 1

    def _scan(self, s: Scan) -> Val:
        given = self.values[s.args[0]]
        return self.scans.along(s, given, self.lanes) if self.is_row else self.scans.step(s, given)

    def _reduced_in(self, r: Reduce, loop: Loop, in_order: frozenset[str]) -> tuple[str, ...]:
        """The types a reduction runs in: argmax compares values and keeps positions."""
        if not r.op.startswith("arg"):
            return (r.dtype,)
        extent = loop.axes[-1].extent
        few = r.name in in_order and isinstance(extent, int) and extent < 2**31
        return self.types[r.args[0]], "int32" if few else "int64"

    def _reduction_lanes(self, r: Reduce) -> int:
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

    def _level(
        self, loop: Loop, how: LoopSchedule, level: int, depth: dict[str, int], sums: Accumulators
    ) -> None:
        for instruction in loop.body:
            if not isinstance(instruction, Reduce | Store) and depth[instruction.name] == level:
                if level < len(loop.axes):
                    self._emit(instruction, None)
        axis = loop.axes[level]
        if level + 1 < len(loop.axes):
            low, high = self.c.const(0, "int64"), self.size(axis.extent)

            def inside(i: Val) -> None:
                self.axes[axis.name] = i
                self.scoped(lambda: self._level(loop, how, level + 1, depth, sums))

            self.c.each(low, high, 1, inside)
            return
        self._innermost(loop, how, depth, sums)

    def _innermost(
        self, loop: Loop, how: LoopSchedule, depth: dict[str, int], sums: Accumulators
    ) -> None:
        last, axis = len(loop.axes), loop.axes[-1]
        body = [i for i in loop.body if isinstance(i, Reduce | Store) or depth[i.name] == last]
        bases = self._bases(body, axis.name)
        products = {i.name: i.uses for i in loop.body if i.name in how.multiply_adds}

        def run(copy: int) -> None:
            for instruction in body:
                if instruction.name in products:
                    continue
                if isinstance(instruction, Reduce):
                    factors = products.get(instruction.args[0], instruction.args)
                    args = tuple(self.values[a] for a in factors)
                    sums.accumulate(instruction, args, copy, self.mask if self.is_row else None)
                else:
                    self._emit(instruction, (axis.name, bases))

        low, high = self.c.const(0, "int64"), self.size(axis.extent)
        if self.is_row:
            self._along_row(how, sums, run, high)
            return

        def step(i: Val) -> None:
            self.axes[axis.name] = i
            self.scoped(lambda: run(0))

        def walk(start: Val, stop: Val) -> None:
            sums.begin()
            self.c.each(start, stop, 1, step)
            sums.end()

        self._in_chunks(how.chunk, low, high, walk)

    def _in_chunks(self, size: int, low: Val, high: Val, walk: Callable[[Val, Val], None]) -> None:
        """Walk an axis; where there is much to sum, in chunks, so that errors grow slowly."""
        if not size:
            walk(low, high)
            return
        c = self.c

        def chunk(start: Val) -> None:
            stop = c.op("add", start, c.const(size, "int64"))
            walk(start, c.select(c.compare("icmp slt", high, stop), high, stop))

        self.c.each(low, high, size, chunk)

    def _along_row(
        self, how: LoopSchedule, sums: Accumulators, run: Callable[[int], None], high: Val
    ) -> None:
        """The innermost loop is along the vector axis; long sums go in chunks."""
        steps = how.steps
        assert steps is not None

        def walk(start: Val, stop: Val) -> None:
            sums.begin()
            self.along_vector(start, stop, steps, run)
            sums.end()

        self._in_chunks(how.chunk, self.c.const(0, "int64"), high, walk)

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
        of_erf = self.erf_sums.get(instruction.name)
        op, dtype = instruction.op if of_erf is None else outline.ERF_PLUS_ONE, instruction.dtype
        args = tuple(self.values[a] for a in (instruction.args if of_erf is None else (of_erf,)))
        on_vectors = self.lanes > 1 and self.varies[instruction.name]
        if on_vectors and (op, dtype) in self.schedule.calls:
            return outline.call(self.c, op, dtype, args)
        if of_erf is not None:
            return outline.write(self.c, op, dtype, args)
        if op in CHECKS:
            return memory.check(self, op, *args)
        if self.guarded and op in DIVISIONS and instruction.name not in self.small:
            guard.divisor(self, args[1])
        if instruction.name in self.small:
            return small_division(self.c, op, *args)
        return scalar.apply(self.c, op, dtype, args)


def _accesses(loop: Loop, places: tuple[int, ...]) -> Group:
    found = (loop.body[place] for place in places)
    return tuple(i for i in found if isinstance(i, Load | Store))


def _erf_sums(kernel: Kernel, names: tuple[str, ...]) -> tuple[dict[str, str], set[str]]:
    """What the error function of each sum is applied to; and those in no other use."""
    code = list(kernel.instructions()) if names else []
    erfs = {i.name: i.args[0] for i in code if isinstance(i, Apply) and i.op == "erf"}
    sums = {
        i.name: next(erfs[a] for a in i.args if a in erfs)
        for i in code
        if isinstance(i, Apply) and i.op == "add" and i.name in names
    }
    used = {name for i in code if i.name not in sums for name in i.uses}
    return sums, erfs.keys() - used
