"""The verifier of schedules: one that it accepts computes what its kernel says.

What is exact and what is only faster is for strategies and tuners; here every point of a kernel is
done once, no lane outside, and what is done together may be.
"""

from __future__ import annotations

from typing import TypeVar

from dovetail.errors import InvalidSchedule
from dovetail.ir.kernel import Kernel, Load, Loop, Reduce, Scan, Store
from dovetail.ir.kernel_analysis import without_idle_axes
from dovetail.ir.ops import LOAD_COST
from dovetail.ir.size import Dim
from dovetail.ir.target import Target
from dovetail.ir.verify import requirement
from dovetail.schedule.cpu import patterns
from dovetail.schedule.cpu.code_size import FUNCTIONS
from dovetail.schedule.gpu.blocks import BlockSchedule
from dovetail.schedule.gpu.verify import verify_blocks
from dovetail.schedule.schedule import LOOPS, LoopSchedule, Schedule, Steps, Tile
from dovetail.schedule.verify_tiles import verify_register_tiles

CALLED = FUNCTIONS | {"erf_plus_one"}  # what a renderer can write as a function
_WIDEST = 8  # bytes of an element, at most
_MASKED = ("none", "rest", "all")
_MOST_LANES, _MOST_STEP = 256, 16  # more is no use, and much code
_require = requirement(InvalidSchedule)


AnySchedule = TypeVar("AnySchedule", Schedule, BlockSchedule)


def verify_schedule(kernel: Kernel, schedule: AnySchedule, target: Target) -> AnySchedule:
    """The schedule, when it is one of the kernel; InvalidSchedule says why not."""
    if isinstance(schedule, BlockSchedule):
        return verify_blocks(without_idle_axes(kernel), schedule, target)
    _Verifier(without_idle_axes(kernel), schedule, target).verify()
    return schedule


def _is_power(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


class _Verifier:
    def __init__(self, kernel: Kernel, schedule: Schedule, target: Target) -> None:
        self.kernel, self.schedule, self.target = kernel, schedule, target
        self.lanes = schedule.lanes
        self.axis = next((a for a in kernel.axes if a.name == schedule.vector), None)
        self.is_row = schedule.vector == LOOPS

    def verify(self) -> None:
        s, kernel = self.schedule, self.kernel
        _require(s.target == self.target.name, f"it is made for {s.target}")
        _require(len(s.loops) == len(kernel.loops), "it has other loops than the kernel")
        known = s.vector is None or self.is_row or self.axis is not None
        _require(known, f"vectors along {s.vector}, which is no axis of the kernel")
        _require(_is_power(self.lanes) and self.lanes <= _MOST_LANES, f"{self.lanes} lanes")
        _require((s.vector is None) == (self.lanes == 1), "vectors of one lane")
        _require(s.cost >= 0 and s.grain >= LOAD_COST, "no work for a thread")
        is_parallel = self.axis is not None
        _require((s.steps is not None) == is_parallel, "steps without a parallel vector axis")
        _require((s.block > 0) == is_parallel, "a block without a parallel vector axis")
        if self.axis is not None and s.steps is not None:
            self._steps(s.steps, self.axis.extent, s.span)
            _require(s.steps.most == 1, "a parallel vector axis goes vector by vector")
        if s.tile is not None:
            self._tile(s.tile)
        if s.register_tiles is not None:
            verify_register_tiles(kernel, s)
        called = {op for op, _ in s.calls}
        _require(called <= CALLED, f"calls of {sorted(called - CALLED)}")
        sums = set(patterns.erf_plus_one(kernel))
        _require(set(s.erf_plus_one) <= sums, "a sum that is not 1 + erf")
        for loop, how in zip(kernel.loops, s.loops, strict=True):
            self._loop(loop, how)

    def _steps(self, steps: Steps, extent: Dim, piece: int) -> None:
        """Whether vectors meet every element of pieces of an axis, and of what is left."""
        counts, lanes = steps.counts, self.lanes
        _require(steps.masked in _MASKED, f"masked {steps.masked}")
        _require(all(_is_power(n) and n <= _MOST_STEP for n in counts), f"steps of {counts}")
        _require(list(counts) == sorted(set(counts), reverse=True), f"steps of {counts}")
        if steps.masked == "all":
            _require(counts == (1,), "under masks vectors go one by one")
            return
        if not isinstance(extent, int):
            _require(steps.masked == "rest" and 1 in counts, "elements that no step meets")
            _require(piece % lanes == 0, "pieces of no whole number of vectors")
            return
        lengths = {extent}
        if piece and extent > piece:
            # The renderer takes what is left of the axis for what is left of the last piece.
            _require(piece % lanes == 0, "pieces of no whole number of vectors")
            lengths = {piece, extent % piece}
        for left in lengths:
            for count in counts:
                left %= lanes * count
            met = left <= (0 if steps.masked == "none" else lanes)
            _require(met, "elements that no step meets")

    def _tile(self, tile: Tile) -> None:
        kernel, names = self.kernel, [a.name for a in self.kernel.axes]
        _require(tile.along == self.schedule.vector, "a tile along another axis than vectors")
        _require(tile.across in names and tile.across != tile.along, "a tile of one axis")
        _require(tile.rows > 0 and tile.columns > 0, "an empty tile")
        straight = not any(loop.axes for loop in kernel.loops)
        _require(straight or not tile.transposed, "transposed loads beside loops")
        kept = tile.rows * tile.columns * _WIDEST * len(tile.transposed)
        _require(kept <= self.target.l2_bytes, "more on the stack than a near cache holds")
        loads = {i.name: i for i in kernel.instructions() if isinstance(i, Load)}
        roles = {b.name: b.role for b in kernel.buffers}
        brought = [name for name, _ in tile.transposed]
        _require(len(set(brought)) == len(brought), "a load that is transposed twice")
        for name, band in tile.transposed:
            i = loads.get(name)
            _require(i is not None, f"{name} is no load")
            assert i is not None
            _require(i.mask is None and not i.index.values, f"{name} is masked or gathered")
            _require(roles[i.buffer] == "in", f"{name} reads what the kernel writes")
            _require(i.index.stride(tile.across) == 1, f"{name} is not dense across the vectors")
            _require(_is_power(band) and band <= self.target.lanes, f"bands of {band}")
            _require(tile.columns % band == 0, "columns that bands do not divide")

    def _loop(self, loop: Loop, how: LoopSchedule) -> None:
        is_vector = self.is_row and bool(loop.axes)
        _require(
            (how.steps is not None) == is_vector, "steps of a loop that vectors do not go along"
        )
        reduces = [i for i in loop.body if isinstance(i, Reduce)]
        _require(how.chunk >= 0 and (bool(reduces) or not how.chunk), "chunks of no reduction")
        _require(is_vector or not how.exact, "exact totals of a loop without vectors")
        if how.steps is not None:
            self._steps(how.steps, loop.axes[-1].extent, how.chunk)
            scans = any(isinstance(i, Scan) for i in loop.body)
            _require(not scans or how.steps.masked != "all", "a scan under masks")
        self._scans(loop, how)
        products = patterns.multiply_adds(loop)
        for name in how.multiply_adds:
            _require(name in products, f"{name} is no floating-point product that is only summed")
        self._groups(loop, how)

    def _scans(self, loop: Loop, how: LoopSchedule) -> None:
        scans = [i.name for i in loop.body if isinstance(i, Scan)]
        listed = [name for name, _ in how.scans]
        _require(listed == (scans if self.is_row else []), f"scans {listed}")
        _require(
            all(_is_power(n) and n <= self.lanes for _, n in how.scans), "more points than lanes"
        )

    def _groups(self, loop: Loop, how: LoopSchedule) -> None:
        moving = loop.axes[-1].name if self.is_row and loop.axes else self.schedule.vector
        roles = {b.name: b.role for b in self.kernel.buffers}
        places = [place for group in how.interleaved for place in group]
        _require(len(set(places)) == len(places), "an access in two groups")
        for group in how.interleaved:
            _require(all(0 <= place < len(loop.body) for place in group), f"group {group}")
            _require(moving is not None and self.lanes > 1, "groups without vectors")
            found = [i for i in (loop.body[n] for n in group) if isinstance(i, Load | Store)]
            _require(len(found) == len(group) > 1, f"group {group}")
            assert moving is not None
            first = found[0]
            for n, i in enumerate(found):
                alike = type(i) is type(first) and i.buffer == first.buffer
                alike &= frozenset(i.index.axes) == frozenset(first.index.axes)
                _require(alike and not i.index.values, f"group {group} of different accesses")
                _require(i.index.stride(moving) == len(group), f"group {group} is not dense")
                _require(_after(first.index.offset, i.index.offset) == n, f"group {group}")
                _require(not isinstance(i, Load) or i.mask is None, f"group {group} is masked")
                _require(roles[i.buffer] != "inout", f"group {group} is read and written")


def _after(first: Dim, second: Dim) -> Dim | None:
    known = isinstance(first, int) and isinstance(second, int)
    return second - first if known else None  # type: ignore[operator]
